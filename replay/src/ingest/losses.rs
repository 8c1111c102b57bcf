//! What keeps a trace from being complete: lost events, damage, and what was under way at the end.

use gpumemtrace_format::Counter;
use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;

use super::{TraceBody, TraceHead};

/// Most damaged places described one by one.
const MAX_DAMAGE_TOLD: usize = 3;

/// What is missing, told apart from what was under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingEvents {
    /// Places in the order that were given out and whose events are gone.
    pub lost: u64,
    /// Places that were given out to calls in flight when the process died (or which has not written them yet).
    pub in_flight: u64,
}

/// Tells losses from calls in flight. A thread takes its place in the order a moment before its record is complete, so a
/// process that dies, or still runs, may leave one hole per thread; only where nothing else can have made the holes.
pub fn missing(head: &TraceHead, body: &TraceBody, threads: u64) -> MissingEvents {
    let ring = head.ring.as_ref();
    // A thread that was held up for long while the recording ended writes its last event into the ring, after the end.
    let said = head.end.as_ref().map_or(0, |end| end.events);
    let given_out = ring.map_or(0, |ring| ring.next_seq).max(said);
    let holes = body.order.missing.saturating_add(given_out.saturating_sub(body.order.next_seq));
    // Those of parts that were dropped are told apart.
    let holes = holes.saturating_sub(head.dropped_parts().1);
    // A ring that is still there after the end belongs to such threads; one with an end of its own and no end in the trace is
    // that of a writer that did not finish.
    let said_end = head.end.is_none() && ring.is_some_and(|ring| ring.end.is_some());
    let dropped = head.counters().is_some_and(|counters| counters.get(Counter::DroppedEvents) > 0);
    let damaged = head.damage.count + body.damage.count + head.malformed_records() + head.cut_bytes() > 0;
    let only_threads = ring.is_some() && !said_end && !damaged && !dropped;
    let may_be_in_flight = only_threads && (holes <= threads.max(1) || head.is_locked);
    if may_be_in_flight {
        MissingEvents { lost: 0, in_flight: holes }
    } else {
        MissingEvents { lost: holes, in_flight: 0 }
    }
}

/// Everything that keeps a trace from being complete, one sentence each.
pub fn incompleteness(
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
    let (parts, events) = head.dropped_parts();
    if parts > 0 {
        reasons.push(format!(
            "the oldest {parts} parts with {events} events were dropped, as GPUMEMTRACE_KEEP asked for: what was allocated before the parts \
             that are left has no line"
        ));
    }
    reasons.extend(head.absent.iter().cloned());
    let mut damage: Vec<&CorruptRegion> = head.damage.first.iter().chain(&body.damage.first).collect();
    damage.sort_by_key(|damage| damage.offset);
    for damage in damage.iter().take(MAX_DAMAGE_TOLD) {
        let place = head.place_of(damage.offset);
        reasons.push(format!("damage at byte {place} ({} bytes): {}", damage.len, damage.why));
    }
    let more = (head.damage.count + body.damage.count).saturating_sub(MAX_DAMAGE_TOLD as u64);
    if more > 0 {
        reasons.push(format!("{more} more damaged places"));
    }
    // While the recorder writes, the block it is at is not whole yet.
    let is_being_written = head.is_locked && head.ring.is_some();
    if let Some(cut) = head.cut.filter(|cut| head.ring.is_none() || !(cut.is_in_ring() || is_being_written)) {
        let what = match cut.kind {
            Some(BlockKind::META) => " of metadata",
            Some(BlockKind::MODULES) => " of modules",
            _ => "",
        };
        reasons.push(format!("the file ends inside the block{what} at byte {}", head.place_of(cut.offset)));
    }
    if head.unknown_blocks > 0 {
        let blocks = head.unknown_blocks;
        reasons.push(format!("{blocks} blocks are from a newer recorder and were passed over"));
    }
    if body.unknown_events > 0 {
        let events = body.unknown_events;
        reasons.push(format!(
            "{events} events are of a kind that this gpumemtrace does not know, and are not in the numbers: use a newer one"
        ));
    }
    if body.misdated_events > 0 {
        let events = body.misdated_events;
        reasons.push(format!(
            "{events} events have a time outside of the run; each is placed at the time of the event before it"
        ));
    }
    let needs_ring = head.end.is_none() || missing.lost > 0 || !head.has_no_ring_of_its_own();
    if let Some(why) = head.ring_problem.as_ref().filter(|_| needs_ring) {
        reasons.push(format!("the ring file beside the trace {why}"));
    }
    if !has_all_records && head.ring_problem.is_none() {
        reasons.push(
            "the process did not close the trace and its ring file (the trace's name with .ring added) is not there: \
             the last moments are missing"
                .to_owned(),
        );
    }
    if head.stopped_early() {
        let message = head.end.as_ref().map(|end| end.message.as_str()).unwrap_or_default();
        let why = if message.is_empty() { String::new() } else { format!(": {message}") };
        reasons.push(format!("recording stopped before the program did{why}"));
    }
    if head.cut_bytes() > 0 {
        let (bytes, cut) = (head.own_bytes, head.cut_bytes());
        reasons.push(format!("the file ends at byte {bytes}; {cut} bytes more had been written"));
    }
    if head.malformed_records() > 0 {
        reasons.push(format!("{} records of the ring file make no sense", head.malformed_records()));
    }
    // The process counts before it records, and its ring file is read before its trace.
    let given_out = head.ring.as_ref().filter(|_| !head.is_locked).map_or(u64::MAX, |ring| ring.next_seq);
    if given_out < body.order.next_seq {
        reasons.push(format!(
            "the ring file says that there were {given_out} events, and there are {}",
            body.order.next_seq
        ));
    }
    for (counter, what) in [
        (Counter::WriteErrors, "writes of the trace file failed"),
        (Counter::ThreadsWithoutRing, "threads found no ring"),
        (Counter::InternalErrors, "internal failures of the recorder"),
    ] {
        let count = head.counters().map_or(0, |counters| counters.get(counter));
        if count > 0 {
            reasons.push(format!("{count} {what}"));
        }
    }
    reasons
}
