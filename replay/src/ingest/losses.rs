//! Losses of a trace: missing events, damage and calls in flight at exit.
//!
//! [`count_missing_events`] separates lost events from calls in flight, and
//! [`describe_incompleteness`] writes one sentence for each reason. Both run once per trace, after
//! the second reading. `replay/tests/damage.rs` checks them against traces with known damage.

use gpumemtrace_format::Counter;
use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;

use super::trace_head::DroppedParts;
use super::{TraceBody, TraceHead};

/// Damaged regions that are described one by one.
const MAX_DESCRIBED_DAMAGE: usize = 3;

/// Sequence numbers without an event, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingEvents {
    /// Events that were lost.
    pub lost: u64,
    /// Calls in flight when the process died, or when a running process was read.
    pub in_flight: u64,
}

/// Counts the sequence numbers without an event and separates losses from calls in flight.
///
/// A thread takes its sequence number before it completes its record, so a process that died or
/// still runs leaves at most one gap per thread. Gaps count as calls in flight only if the trace
/// shows no other cause, such as damage or dropped events.
pub fn count_missing_events(head: &TraceHead, body: &TraceBody, threads: u64) -> MissingEvents {
    let ring = head.ring.as_ref();
    // A thread delayed past the end of the recording writes its last event to the ring only.
    let events_at_end = head.end.as_ref().map_or(0, |end| end.events);
    let issued = ring.map_or(0, |ring| ring.next_seq).max(events_at_end);
    let gaps = body.order.missing.saturating_add(issued.saturating_sub(body.order.next_seq));
    // Events of dropped parts are reported separately.
    let gaps = gaps.saturating_sub(head.dropped_parts().events);
    // A ring with an end, beside a trace without one, comes from a writer thread that did not
    // finish. A ring beside a trace with an end belongs to delayed threads.
    let is_unfinished = head.end.is_none() && ring.is_some_and(|ring| ring.end.is_some());
    let has_drops = head.counters().is_some_and(|counters| counters.get(Counter::DroppedEvents) > 0);
    let damage = head.damage.count + body.damage.count;
    let is_damaged = damage + head.malformed_ring_records() + head.truncated_bytes() > 0;
    let has_only_thread_gaps = ring.is_some() && !is_unfinished && !is_damaged && !has_drops;
    if has_only_thread_gaps && (gaps <= threads.max(1) || head.is_locked) {
        MissingEvents { lost: 0, in_flight: gaps }
    } else {
        MissingEvents { lost: gaps, in_flight: 0 }
    }
}

/// The reasons why the trace is incomplete, one sentence each; empty for a complete trace.
/// `dropped` is the number of events that the recorder dropped by its own count.
pub fn describe_incompleteness(
    head: &TraceHead,
    body: &TraceBody,
    missing: MissingEvents,
    dropped: u64,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let has_all_records = head.ring.is_some() || head.end.is_some();
    if dropped > 0 {
        reasons.push(format!("the recorder dropped {dropped} events"));
    }
    if missing.lost > 0 {
        reasons.push(format!("{} events are missing from the file", missing.lost));
    }
    let DroppedParts { parts, events } = head.dropped_parts();
    if parts > 0 {
        reasons.push(format!(
            "the oldest {parts} parts with {events} events were dropped to stay within the total size limit; \
             blocks allocated in them have no call site"
        ));
    }
    reasons.extend(head.absent.iter().cloned());
    let mut damage: Vec<&CorruptRegion> = head.damage.first.iter().chain(&body.damage.first).collect();
    damage.sort_by_key(|damage| damage.offset);
    for damage in damage.iter().take(MAX_DESCRIBED_DAMAGE) {
        let offset = head.format_offset(damage.offset);
        reasons.push(format!("damage at byte {offset} ({} bytes): {}", damage.len, damage.why));
    }
    let more = (head.damage.count + body.damage.count).saturating_sub(MAX_DESCRIBED_DAMAGE as u64);
    if more > 0 {
        reasons.push(format!("{more} more damaged regions"));
    }
    // While the recorder runs, the block that it is writing is incomplete.
    let is_being_written = head.is_locked && head.ring.is_some();
    if let Some(end) =
        head.truncated_end.filter(|end| head.ring.is_none() || !(end.is_in_ring() || is_being_written))
    {
        let content = match end.kind {
            Some(BlockKind::META) => " of metadata",
            Some(BlockKind::MODULES) => " of modules",
            _ => "",
        };
        let offset = head.format_offset(end.offset);
        reasons.push(format!("the file ends inside the block{content} at byte {offset}"));
    }
    if head.unknown_blocks > 0 {
        let blocks = head.unknown_blocks;
        reasons.push(format!("{blocks} blocks of a newer recorder were skipped; use a newer gpumemtrace"));
    }
    if body.unknown_events > 0 {
        let events = body.unknown_events;
        reasons.push(format!(
            "{events} events of an unknown kind are not included in the numbers; use a newer gpumemtrace"
        ));
    }
    if body.misdated_events > 0 {
        let events = body.misdated_events;
        reasons.push(format!(
            "{events} events have a time outside of the run; each is shown at the time of the event before it"
        ));
    }
    let needs_ring = head.end.is_none() || missing.lost > 0 || !head.has_separated_ring();
    if let Some(why) = head.ring_problem.as_ref().filter(|_| needs_ring) {
        reasons.push(format!("the ring file beside the trace {why}"));
    }
    if !has_all_records && head.ring_problem.is_none() {
        reasons.push(
            "the process did not close the trace, and its ring file (the trace's name plus .ring) is missing: \
             the last events are lost"
                .to_owned(),
        );
    }
    if head.has_stopped_early() {
        let message = head.end.as_ref().map(|end| end.message.as_str()).unwrap_or_default();
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        reasons.push(format!("recording stopped before the program did{why}"));
    }
    if head.truncated_bytes() > 0 {
        let (bytes, truncated) = (head.last_file_bytes, head.truncated_bytes());
        reasons.push(format!("the file ends at byte {bytes}, but {truncated} more bytes had been written"));
    }
    if head.malformed_ring_records() > 0 {
        reasons.push(format!("{} records of the ring file are malformed", head.malformed_ring_records()));
    }
    // The process takes a sequence number before it writes the event, so the ring's count is never
    // lower than the trace's. A running process is exempt: its ring was read before its trace.
    let issued = head.ring.as_ref().filter(|_| !head.is_locked).map_or(u64::MAX, |ring| ring.next_seq);
    if issued < body.order.next_seq {
        reasons.push(format!(
            "the ring file counts {issued} events, but the trace contains {}",
            body.order.next_seq
        ));
    }
    for (counter, failure) in [
        (Counter::WriteErrors, "writes to the trace file failed"),
        (Counter::ThreadsWithoutRing, "threads were not recorded: they got no ring buffer"),
        (Counter::InternalErrors, "internal errors in the recorder"),
    ] {
        let count = head.counters().map_or(0, |counters| counters.get(counter));
        if count > 0 {
            reasons.push(format!("{count} {failure}"));
        }
    }
    reasons
}
