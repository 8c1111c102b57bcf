//! Losses of a trace: missing events, damage and calls in flight at exit.
//!
//! [`find_losses`] separates lost events from calls in flight and lists everything that is missing.
//! It runs once per trace, after the second reading. `crates/replay/tests/damage.rs` checks it
//! against traces with known damage.

use gpumemtrace_format::Counter;
use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;

use super::trace_head::{DroppedParts, RingProblem};
use super::{TraceBody, TraceHead};
use crate::report::{BlockContent, TraceLoss};

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
fn count_missing_events(head: &TraceHead, body: &TraceBody, threads: u64) -> MissingEvents {
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

/// Everything that is missing from the trace; empty for a complete trace. `threads` is the number
/// of threads that have events.
pub fn find_losses(head: &TraceHead, body: &TraceBody, threads: u64) -> (MissingEvents, Vec<TraceLoss>) {
    let missing = count_missing_events(head, body, threads);
    let dropped = head.counters().map_or(0, |counters| counters.get(Counter::DroppedEvents));
    let mut losses = Vec::new();
    let mut add_count = |count: u64, loss: TraceLoss| losses.extend((count > 0).then_some(loss));
    add_count(dropped, TraceLoss::DroppedEvents { events: dropped });
    add_count(missing.lost, TraceLoss::MissingEvents { events: missing.lost });
    let DroppedParts { parts, events } = head.dropped_parts();
    add_count(parts, TraceLoss::DroppedParts { parts, events });
    if head.meta.number("snapshot.overwritten") == Some(1) {
        losses.push(TraceLoss::HistoryOverwritten);
    }
    losses.extend(head.absent.iter().map(|detail| TraceLoss::AbsentFiles { detail: detail.clone() }));
    losses.extend(find_damage(head, body));
    // While the recorder runs, the block that it is writing is incomplete.
    let is_being_written = head.is_locked && head.ring.is_some();
    if let Some(end) =
        head.truncated_end.filter(|end| head.ring.is_none() || !(end.is_in_ring() || is_being_written))
    {
        let (file, offset_bytes) = head.find_offset(end.offset);
        let content = match end.kind {
            Some(BlockKind::META) => BlockContent::Metadata,
            Some(BlockKind::MODULES) => BlockContent::Modules,
            _ => BlockContent::Other,
        };
        losses.push(TraceLoss::CutBlock { file, offset_bytes, content });
    }
    let mut add_count = |count: u64, loss: TraceLoss| losses.extend((count > 0).then_some(loss));
    add_count(head.unknown_blocks, TraceLoss::UnknownBlocks { blocks: head.unknown_blocks });
    add_count(body.unknown_events, TraceLoss::UnknownEvents { events: body.unknown_events });
    add_count(body.misdated_events, TraceLoss::MisdatedEvents { events: body.misdated_events });
    losses.extend(find_ring_loss(head, missing));
    if head.has_stopped_early() {
        losses.push(TraceLoss::StoppedEarly { reason: head.stop_reason() });
    }
    losses
        .extend(counted_losses(head, body).into_iter().filter(|(count, _)| *count > 0).map(|(_, loss)| loss));
    (missing, losses)
}

/// Losses with their counts; a count of 0 is no loss.
fn counted_losses(head: &TraceHead, body: &TraceBody) -> [(u64, TraceLoss); 9] {
    let (file_bytes, missing_bytes) = (head.last_file_bytes, head.truncated_bytes());
    let records = head.malformed_ring_records();
    // The process takes a sequence number before it writes the event, so the ring's count is never
    // lower than the trace's. A running process is exempt: its ring was read before its trace.
    let ring_events = head.ring.as_ref().filter(|_| !head.is_locked).map_or(u64::MAX, |ring| ring.next_seq);
    let trace_events = body.order.next_seq;
    let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
    let writes = counter(Counter::WriteErrors);
    let threads = counter(Counter::ThreadsWithoutRing);
    let errors = counter(Counter::InternalErrors);
    let interrupted = counter(Counter::InterruptedEvents);
    let late = counter(Counter::EventsAfterEnd);
    let frames = body.undefined_frames;
    [
        (missing_bytes, TraceLoss::TruncatedFile { file_bytes, missing_bytes }),
        (records, TraceLoss::MalformedRingRecords { records }),
        (u64::from(ring_events < trace_events), TraceLoss::RingBehindTrace { ring_events, trace_events }),
        (writes, TraceLoss::WriteErrors { writes }),
        (threads, TraceLoss::ThreadsWithoutRing { threads }),
        (errors, TraceLoss::InternalErrors { errors }),
        (interrupted, TraceLoss::InterruptedEvents { events: interrupted }),
        (late, TraceLoss::EventsAfterEnd { events: late }),
        (frames, TraceLoss::UndefinedFrames { frames }),
    ]
}

/// The first damaged regions, and the number of the others.
fn find_damage(head: &TraceHead, body: &TraceBody) -> Vec<TraceLoss> {
    let mut regions: Vec<&CorruptRegion> = head.damage.first.iter().chain(&body.damage.first).collect();
    regions.sort_by_key(|region| region.offset);
    let described = regions.iter().take(MAX_DESCRIBED_DAMAGE).map(|region| {
        let (file, offset_bytes) = head.find_offset(region.offset);
        TraceLoss::Damage { file, offset_bytes, bytes: region.len, detail: region.why.clone() }
    });
    let mut losses: Vec<TraceLoss> = described.collect();
    let regions = (head.damage.count + body.damage.count).saturating_sub(MAX_DESCRIBED_DAMAGE as u64);
    if regions > 0 {
        losses.push(TraceLoss::MoreDamage { regions });
    }
    losses
}

/// The loss if a ring file that the trace needs is missing or cannot be used.
fn find_ring_loss(head: &TraceHead, missing: MissingEvents) -> Option<TraceLoss> {
    let needs_ring = head.end.is_none() || missing.lost > 0 || !head.has_separated_ring();
    match &head.ring_problem {
        Some(RingProblem::Foreign) => needs_ring.then_some(TraceLoss::RingForeign),
        Some(RingProblem::Unusable(detail)) => {
            needs_ring.then(|| TraceLoss::RingUnusable { detail: detail.clone() })
        }
        None => (head.ring.is_none() && head.end.is_none()).then_some(TraceLoss::RingMissing),
    }
}
