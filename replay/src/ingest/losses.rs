//! What is missing from a trace: lost events and damage, apart from calls in flight at the end.

use gpumemtrace_format::Counter;
use gpumemtrace_format::block::BlockKind;
use gpumemtrace_format::reader::CorruptRegion;

use super::trace_head::RingProblem;
use super::{TraceBody, TraceHead};
use crate::report::{BlockContent, TraceLoss};

/// Most damaged regions that are described one by one.
const MAX_DAMAGE_DESCRIBED: usize = 3;

/// What is missing, told apart from what was under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingEvents {
    /// Places in the order that were given out and whose events are gone.
    pub lost: u64,
    /// Places that were given out to calls in flight when the process died (or which has not
    /// written them yet).
    pub in_flight: u64,
}

/// Tells losses from calls in flight. A thread takes its place in the order a moment before its
/// record is complete, so a process that dies, or still runs, may leave one hole per thread; only
/// where nothing else can have made the holes.
pub fn missing(head: &TraceHead, body: &TraceBody, threads: u64) -> MissingEvents {
    let ring = head.ring.as_ref();
    // A thread that was held up for long while the recording ended writes its last event into the
    // ring, after the end.
    let said = head.end.as_ref().map_or(0, |end| end.events);
    let given_out = ring.map_or(0, |ring| ring.next_seq).max(said);
    let holes = body.order.missing.saturating_add(given_out.saturating_sub(body.order.next_seq));
    // Those of parts that were dropped are told apart.
    let holes = holes.saturating_sub(head.dropped_parts().1);
    // A ring that is still there after the end belongs to such threads; one with an end of its own
    // and no end in the trace is that of a writer that did not finish.
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

/// Everything that is missing from a trace.
pub fn incompleteness(
    head: &TraceHead,
    body: &TraceBody,
    missing: MissingEvents,
    dropped: u64,
) -> Vec<TraceLoss> {
    let mut losses = Vec::new();
    let mut add_count = |count: u64, loss: TraceLoss| losses.extend((count > 0).then_some(loss));
    add_count(dropped, TraceLoss::DroppedEvents { events: dropped });
    add_count(missing.lost, TraceLoss::MissingEvents { events: missing.lost });
    let (parts, events) = head.dropped_parts();
    add_count(parts, TraceLoss::DroppedParts { parts, events });
    losses.extend(head.absent.iter().map(|detail| TraceLoss::AbsentFiles { detail: detail.clone() }));
    losses.extend(damage(head, body));
    // While the recorder writes, its last block is incomplete.
    let is_being_written = head.is_locked && head.ring.is_some();
    if let Some(cut) = head.cut.filter(|cut| head.ring.is_none() || !(cut.is_in_ring() || is_being_written)) {
        let (file, offset_bytes) = head.place_of(cut.offset);
        let content = match cut.kind {
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
    losses.extend(ring_losses(head, missing));
    if head.stopped_early() {
        let message = head.end.as_ref().map(|end| end.message.clone());
        losses.push(TraceLoss::StoppedEarly { reason: message.filter(|message| !message.is_empty()) });
    }
    let mut add_count = |count: u64, loss: TraceLoss| losses.extend((count > 0).then_some(loss));
    let (file_bytes, missing_bytes) = (head.own_bytes, head.cut_bytes());
    add_count(missing_bytes, TraceLoss::TruncatedFile { file_bytes, missing_bytes });
    let records = head.malformed_records();
    add_count(records, TraceLoss::MalformedRingRecords { records });
    // The process counts before it records, and its ring file is read before its trace.
    let ring_events = head.ring.as_ref().filter(|_| !head.is_locked).map_or(u64::MAX, |ring| ring.next_seq);
    let trace_events = body.order.next_seq;
    add_count(
        u64::from(ring_events < trace_events),
        TraceLoss::RingBehindTrace { ring_events, trace_events },
    );
    let counter = |counter| head.counters().map_or(0, |counters| counters.get(counter));
    let writes = counter(Counter::WriteErrors);
    add_count(writes, TraceLoss::WriteErrors { writes });
    let threads = counter(Counter::ThreadsWithoutRing);
    add_count(threads, TraceLoss::ThreadsWithoutRing { threads });
    let errors = counter(Counter::InternalErrors);
    add_count(errors, TraceLoss::InternalErrors { errors });
    losses
}

/// The first damaged regions, and the number of the others.
fn damage(head: &TraceHead, body: &TraceBody) -> Vec<TraceLoss> {
    let mut regions: Vec<&CorruptRegion> = head.damage.first.iter().chain(&body.damage.first).collect();
    regions.sort_by_key(|region| region.offset);
    let described = regions.iter().take(MAX_DAMAGE_DESCRIBED).map(|region| {
        let (file, offset_bytes) = head.place_of(region.offset);
        TraceLoss::Damage { file, offset_bytes, bytes: region.len, detail: region.why.clone() }
    });
    let mut losses: Vec<TraceLoss> = described.collect();
    let regions = (head.damage.count + body.damage.count).saturating_sub(MAX_DAMAGE_DESCRIBED as u64);
    if regions > 0 {
        losses.push(TraceLoss::MoreDamage { regions });
    }
    losses
}

/// Losses because the ring file is missing or cannot be used.
fn ring_losses(head: &TraceHead, missing: MissingEvents) -> Option<TraceLoss> {
    let needs_ring = head.end.is_none() || missing.lost > 0 || !head.has_no_ring_of_its_own();
    match &head.ring_problem {
        Some(RingProblem::Foreign) => needs_ring.then_some(TraceLoss::RingForeign),
        Some(RingProblem::Unusable(detail)) => {
            needs_ring.then(|| TraceLoss::RingUnusable { detail: detail.clone() })
        }
        None => (head.ring.is_none() && head.end.is_none()).then_some(TraceLoss::RingMissing),
    }
}
