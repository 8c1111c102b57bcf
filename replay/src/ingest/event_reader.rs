//! The second reading: all events of a trace, in order.
//!
//! Constraint: unpacking blocks takes nearly as long as analysing what is in them, and neither needs the other. Consequence: a
//! thread of its own unpacks a few blocks ahead, and hands them over one by one. Blocks of events are megabytes, and the system
//! takes as long to give memory as we to fill it: what was used comes back and is filled again. Where the system has no thread
//! to give, one does both; the result is the same.

use std::io::Read;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, sync_channel};

use gpumemtrace_format::reader::{CorruptRegion, Item, OpenError, TraceReader};
use gpumemtrace_format::ring::RingRecord;
use gpumemtrace_format::{Event, EventKind};

use crate::ingest::merger::{EventBatch, Merger, OrderSummary};
use crate::ingest::{DamageList, TraceHead};

/// How far the unpacking may be ahead. A block has 65,536 events at most, unless somebody means harm.
const BLOCKS_AHEAD: usize = 4;

/// Opens a trace from its start; the same bytes each time.
pub type OpenTrace<'a> = dyn Fn() -> std::io::Result<Box<dyn Read + Send>> + 'a;

/// What the second reading showed beside the events.
#[derive(Debug, Default)]
pub struct TraceBody {
    /// The order.
    pub order: OrderSummary,
    /// Blocks of events that could not be used.
    pub damage: DamageList,
    /// Events of a kind that this version does not know.
    pub unknown_events: u64,
    /// Events whose time lies outside of the run.
    pub misdated_events: u64,
}

/// Hands on all events in order. `sink` may end it early. An event with a time outside of the run gets that of the event
/// before it: one wrong record must not stretch every chart.
pub fn read_events(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    sink: &mut impl FnMut(&Event) -> ControlFlow<()>,
) -> Result<TraceBody, OpenError> {
    read_together(open, head, &mut |events| events.iter().try_for_each(&mut *sink))
}

/// As [`read_events`], a few at a time: who breaks has taken all of them.
pub(crate) fn read_together(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    sink: &mut impl FnMut(&[Event]) -> ControlFlow<()>,
) -> Result<TraceBody, OpenError> {
    let mut body = TraceBody::default();
    let (ring, times) = (head.ring.as_ref(), head.times());
    let is_known: [bool; 256] = std::array::from_fn(|kind| EventKind(kind as u8).name().is_some());
    let (mut unknown, mut misdated, mut last_ns) = (0, 0, *times.start());
    let (earliest_ns, longest_ns) = (*times.start(), times.end().checked_sub(*times.start()));
    let is_within = |time_ns: u64| longest_ns.is_some_and(|most| time_ns.wrapping_sub(earliest_ns) <= most);
    let sink = &mut |events: &[Event]| {
        let mut outside = false;
        for event in events {
            unknown += u64::from(!is_known[usize::from(event.kind.0)]);
            outside |= !is_within(event.time_ns);
        }
        if !outside {
            last_ns = events.last().map_or(last_ns, |event| event.time_ns);
            return sink(events);
        }
        let mut events = events.to_vec();
        for event in &mut events {
            if is_within(event.time_ns) {
                last_ns = event.time_ns;
            } else {
                misdated += 1;
                event.time_ns = last_ns;
            }
        }
        sink(&events)
    };
    let mut merger = Merger::new();
    let (give_back, spent) = sync_channel(BLOCKS_AHEAD);
    let reader = TraceReader::new(open()?)?.events_only();
    let unpacker = BlockUnpacker { reader, spent, has_memory: false };
    let stopped = for_each_found(unpacker, &mut |found| match found {
        BlockItem::Events(batch) => {
            let flow = merger.push_batch(batch, sink);
            // What there is no room for is let go.
            merger.spent().for_each(|events| drop(give_back.try_send(events)));
            flow
        }
        BlockItem::Damage(damage) => {
            body.damage.add(damage);
            ControlFlow::Continue(())
        }
    });
    let mut stopped = stopped.is_break();
    if let Some(ring) = ring.filter(|_| !stopped) {
        let events = ring.records.iter().filter_map(|record| match record {
            RingRecord::Event(event) => Some(*event),
            _ => None,
        });
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.seq);
        stopped = merger.push(events, sink).is_break();
    }
    if !stopped {
        body.order = merger.finish(sink);
    }
    (body.unknown_events, body.misdated_events) = (unknown, misdated);
    Ok(body)
}

/// What the second reading looks for.
enum BlockItem {
    Events(EventBatch),
    /// What lies between blocks was told by the first reading.
    Damage(CorruptRegion),
}

/// Unpacks blocks into what comes back.
struct BlockUnpacker {
    reader: TraceReader<Box<dyn Read + Send>>,
    spent: Receiver<Vec<Event>>,
    has_memory: bool,
}

impl BlockUnpacker {
    fn next(&mut self) -> Option<BlockItem> {
        loop {
            if !self.has_memory
                && let Ok(events) = self.spent.try_recv()
            {
                self.reader.reuse_events(events);
                self.has_memory = true;
            }
            match self.reader.next()? {
                Item::Events(events) => {
                    self.has_memory = false;
                    return Some(BlockItem::Events(EventBatch::of(events)));
                }
                Item::CorruptRegion(damage) if damage.is_in_block => return Some(BlockItem::Damage(damage)),
                // Passed over: not worth waking anybody.
                _ => {}
            }
        }
    }
}

/// Hands on what is found, unpacked on another thread.
fn for_each_found(
    unpacker: BlockUnpacker,
    take: &mut impl FnMut(BlockItem) -> ControlFlow<()>,
) -> ControlFlow<()> {
    // Shared with the thread, so that it is still here if there is none.
    let unpacker = std::sync::Mutex::new(unpacker);
    let next = || unpacker.lock().ok()?.next();
    std::thread::scope(|scope| {
        let (send, found) = sync_channel(BLOCKS_AHEAD);
        let unpack = move || {
            while let Some(found) = next() {
                if send.send(found).is_err() {
                    break;
                }
            }
        };
        match std::thread::Builder::new().name("unpack".to_owned()).spawn_scoped(scope, unpack) {
            Ok(_) => found.into_iter().try_for_each(&mut *take),
            Err(_) => std::iter::from_fn(next).try_for_each(&mut *take),
        }
    })
}
