//! The second reading of a trace: all events in the order of their sequence numbers.
//!
//! Decompressing blocks takes nearly as long as analysing them, so an `unpack` thread runs up to
//! [`CHUNKS_AHEAD`] chunks of events ahead of the analysis. A whole block decodes to megabytes of
//! events, more than the caches hold, and fresh pages cost as much as filling them. Chunks are
//! therefore small, and consumed buffers return to the unpacker for reuse.
//! If no thread can be started, the caller's thread does both with the same result. The [`Merger`]
//! restores the order. `tests/benches/million.rs` measures the whole path.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, sync_channel};

use gpumemtrace_format::reader::{CorruptRegion, Item, OpenError, TraceBytes, TraceReader};
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{Event, EventKind};

use crate::ingest::event_batch::EventBatch;
use crate::ingest::merger::{MergedSlice, Merger, OrderSummary};
use crate::ingest::{DamageList, TraceHead};

/// Chunks that the unpacker may decode ahead.
const CHUNKS_AHEAD: usize = 4;
/// Buffers that are kept for reuse. Chunks of several threads wait for each other in the merger.
const SPARE_BUFFERS: usize = 64;

/// Opens a trace from its start. Each call must yield the same bytes.
pub(crate) type OpenTrace<'a> = dyn Fn() -> std::io::Result<Box<dyn TraceBytes>> + 'a;

/// Findings of the second reading besides the events.
#[derive(Debug, Default)]
pub struct TraceBody {
    /// Gaps, repetitions and unplaced calls in the order of events.
    pub order: OrderSummary,
    /// Event blocks that could not be decoded.
    pub damage: DamageList,
    /// Events of a kind that this version does not know.
    pub unknown_events: u64,
    /// Events with a time outside the run.
    pub misdated_events: u64,
    /// Frames that are used and not defined, if that was counted.
    pub undefined_frames: u64,
}

/// Passes all events to `sink` in order, until it breaks.
///
/// Of a running program, only events below [`TraceHead::cut_seq`] are passed on.
///
/// An event with a time outside the run gets the time of the event before it, so that one corrupt
/// record does not stretch every chart.
pub fn read_events(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    sink: &mut impl FnMut(&Event) -> ControlFlow<()>,
) -> Result<TraceBody, OpenError> {
    read_event_slices(open, head, &mut |events| events.iter().try_for_each(&mut *sink))
}

/// Like [`read_events`], but passes slices of consecutive events. A slice counts as consumed even
/// if `sink` breaks on it.
pub(crate) fn read_event_slices(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>,
) -> Result<TraceBody, OpenError> {
    let mut body = TraceBody::default();
    let rules = EventRules::new(head);
    let cut = head.cut_seq().unwrap_or(u64::MAX);
    let mut passed = 0u64;
    let mut repair = EventRepair { rules, last_ns: rules.earliest_ns, unknown: 0, misdated: 0 };
    let sink = &mut |slice: MergedSlice<'_>| {
        let events = events_before(cut, slice.events);
        if events.is_empty() && !slice.events.is_empty() {
            return ControlFlow::Continue(());
        }
        passed += events.len() as u64;
        if slice.needs_check {
            return sink(&repair.repair_events(events));
        }
        repair.last_ns = events.last().map_or(repair.last_ns, |event| event.time_ns);
        sink(events)
    };
    let mut merger = Merger::new();
    let (return_buffer, returned_buffers) = sync_channel(SPARE_BUFFERS);
    let reader = TraceReader::new(open()?)?.passing_holes().events_only();
    let is_regular = move |event: &Event| rules.is_known(event) && rules.is_in_run(event.time_ns);
    let unpacker = BlockUnpacker { reader, returned_buffers, is_regular };
    let stopped = for_each_block_item(unpacker, &mut |item| match item {
        BlockItem::Events(batch) => {
            let flow = merger.push_batch(batch, sink);
            // If the channel is full, the buffer is freed.
            merger.take_spent_buffers().for_each(|events| drop(return_buffer.try_send(events)));
            flow
        }
        BlockItem::Damage(damage) => {
            body.damage.add(damage);
            ControlFlow::Continue(())
        }
    });
    let mut stopped = stopped.is_break();
    if let Some(ring) = head.ring.as_ref().filter(|_| !stopped) {
        stopped = merger.push(events_of_ring(ring), sink).is_break();
    }
    if !stopped {
        body.order = merger.finish(sink);
        if body.order.next_seq > cut {
            (body.order.next_seq, body.order.missing) = (cut, cut.saturating_sub(passed));
        }
    }
    (body.unknown_events, body.misdated_events) = (repair.unknown, repair.misdated);
    Ok(body)
}

/// What an event of this trace must be like.
#[derive(Clone, Copy)]
struct EventRules {
    is_known_kind: [bool; 256],
    earliest_ns: u64,
    /// `None` if no time is valid.
    max_span_ns: Option<u64>,
}

impl EventRules {
    fn new(head: &TraceHead) -> Self {
        let valid_times = head.valid_times();
        let earliest_ns = *valid_times.start();
        Self {
            is_known_kind: std::array::from_fn(|kind| EventKind(kind as u8).name().is_some()),
            earliest_ns,
            max_span_ns: valid_times.end().checked_sub(earliest_ns),
        }
    }

    #[inline]
    fn is_known(&self, event: &Event) -> bool {
        self.is_known_kind[usize::from(event.kind.0)]
    }

    #[inline]
    fn is_in_run(&self, time_ns: u64) -> bool {
        self.max_span_ns.is_some_and(|span| time_ns.wrapping_sub(self.earliest_ns) <= span)
    }
}

/// Gives events with a time outside the run the time of the event before, and counts them.
struct EventRepair {
    rules: EventRules,
    last_ns: u64,
    unknown: u64,
    misdated: u64,
}

impl EventRepair {
    fn repair_events(&mut self, events: &[Event]) -> Vec<Event> {
        let mut events = events.to_vec();
        for event in &mut events {
            self.unknown += u64::from(!self.rules.is_known(event));
            if self.rules.is_in_run(event.time_ns) {
                self.last_ns = event.time_ns;
            } else {
                self.misdated += 1;
                event.time_ns = self.last_ns;
            }
        }
        events
    }
}

/// The events with a lower sequence number than `cut`.
fn events_before(cut: u64, events: &[Event]) -> &[Event] {
    if events.last().is_none_or(|event| event.seq < cut) {
        return events;
    }
    &events[..events.partition_point(|event| event.seq < cut)]
}

/// The events of a ring file in order.
fn events_of_ring(ring: &RingImage) -> Vec<Event> {
    let events = ring.records.iter().filter_map(|record| match record {
        RingRecord::Event(event) => Some(*event),
        _ => None,
    });
    let mut events: Vec<Event> = events.collect();
    events.sort_by_key(|event| event.seq);
    events
}

/// The items of a trace that the second reading uses.
enum BlockItem {
    Events(EventBatch),
    /// Damage inside an event block. The first reading reports damage between blocks.
    Damage(CorruptRegion),
}

/// Decodes event blocks into buffers that the consumer returned.
struct BlockUnpacker<IsRegular> {
    reader: TraceReader<Box<dyn TraceBytes>>,
    returned_buffers: Receiver<Vec<Event>>,
    /// True for an event with a known kind and a time within the run.
    is_regular: IsRegular,
}

impl<IsRegular: Fn(&Event) -> bool> BlockUnpacker<IsRegular> {
    /// Passes on all events and damaged regions, until `deliver` breaks.
    fn unpack(&mut self, deliver: &mut dyn FnMut(BlockItem) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut flow = ControlFlow::Continue(());
        while flow.is_continue() {
            let item = self.reader.next_with_event_chunks(&mut |events| {
                let needs_check = !events.iter().all(&self.is_regular);
                flow = deliver(BlockItem::Events(EventBatch::new(events, needs_check)));
                flow?;
                ControlFlow::Continue(self.returned_buffers.try_recv().unwrap_or_default())
            });
            match item {
                Some(Item::CorruptRegion(damage)) if damage.is_in_block && flow.is_continue() => {
                    flow = deliver(BlockItem::Damage(damage));
                }
                // The first reading used all other items.
                Some(_) => {}
                None => break,
            }
        }
        flow
    }
}

/// Runs `unpacker` on its own thread and passes its items to `consume` on this one.
fn for_each_block_item(
    unpacker: BlockUnpacker<impl Fn(&Event) -> bool + Send>,
    consume: &mut impl FnMut(BlockItem) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // Shared instead of moved: if the thread cannot be started, this thread unpacks.
    let unpacker = std::sync::Mutex::new(unpacker);
    let unpack = |deliver: &mut dyn FnMut(BlockItem) -> ControlFlow<()>| match unpacker.lock() {
        Ok(mut unpacker) => unpacker.unpack(deliver),
        Err(_) => ControlFlow::Break(()),
    };
    std::thread::scope(|scope| {
        let (sender, items) = sync_channel(CHUNKS_AHEAD);
        let send_all = move || {
            let _ = unpack(&mut |item| match sender.send(item) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            });
        };
        match std::thread::Builder::new().name("unpack".to_owned()).spawn_scoped(scope, send_all) {
            Ok(_) => items.into_iter().try_for_each(&mut *consume),
            Err(_) => unpack(consume),
        }
    })
}
