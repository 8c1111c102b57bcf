//! The events of one stream, and what must be true for them to tell something.
//!
//! Definitions. A block is of the stream that PyTorch's tracker told when it was handed out; a segment of the stream that it
//! serves. The stream's total is the sum of its live blocks, its reserved bytes the sum of its segments: known where the segments
//! of all streams sum to what PyTorch had reserved, at each of its events.
//!
//! Constraint: the books believe the running totals in the events, which are of all streams. Consequence: what is passed on has
//! the stream's own totals, and so every analysis is as it is for a whole device. What is no stream's (driver memory, samples of
//! what is in use, being out of memory) is not passed on, and unknown in the report.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use gpumemtrace_format::{Event, EventKind};

use crate::callsite::symbols::StackId;
use crate::state::segments::Segments;
use crate::util::seeded_map::SeededMap;

/// Most streams that are kept to be named.
const MAX_NAMED: usize = 64;

/// A stream, as the driver numbers it: 0 is the default stream, others are handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0 (the default stream)") } else { write!(f, "{:#x}", self.0) }
    }
}

impl FromStr for StreamId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            _ if text == "default" => Ok(0),
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        number.map(Self).map_err(|_| {
            "give a stream as reports show it: default, a handle such as 0x5581c0d2, or a number".to_owned()
        })
    }
}

/// What was learned of the streams of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTotals {
    /// The one that was asked for.
    pub stream: StreamId,
    /// Those of which blocks were told: the first of them, and the one that was asked for.
    pub told: BTreeSet<StreamId>,
    /// Blocks of which no stream is known: they are in no stream's report.
    pub unknown_blocks: u64,
    /// Their bytes.
    pub unknown_bytes: u64,
    /// Events at which the segments were not all that PyTorch had reserved.
    pub segment_mismatches: u64,
}

/// Whose an event is.
pub(crate) enum StreamMatch {
    /// The stream's, or everybody's.
    It,
    /// Not this stream's.
    Others,
}

#[derive(Debug, Default)]
struct StreamOnDevice {
    /// Blocks of the stream.
    live: SeededMap<u64, u64>,
    bytes: u64,
    segments: Segments,
    all_segments: Segments,
}

/// Picks the events of a stream.
#[derive(Debug)]
pub(crate) struct StreamFilter {
    pub(crate) facts: StreamTotals,
    devices: SeededMap<u8, StreamOnDevice>,
}

impl StreamFilter {
    pub(crate) fn new(stream: StreamId) -> Self {
        let facts = StreamTotals {
            stream,
            told: BTreeSet::new(),
            unknown_blocks: 0,
            unknown_bytes: 0,
            segment_mismatches: 0,
        };
        Self { facts, devices: SeededMap::default() }
    }

    /// Adds to `own` what the stream's books must see of an event.
    pub(crate) fn take(&mut self, event: &Event, own: &mut Vec<Event>) -> StreamMatch {
        match event.kind {
            EventKind::BLOCK_ALLOC => self.alloc(event, own),
            EventKind::BLOCK_FREE => self.free(event, own),
            EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => self.segment(event, own),
            EventKind::BLOCK_OOM | EventKind::MEMORY_SAMPLE => StreamMatch::Others,
            kind if kind.is_driver_call() => StreamMatch::Others,
            _ => {
                own.push(*event);
                StreamMatch::It
            }
        }
    }

    fn alloc(&mut self, event: &Event, own: &mut Vec<Event>) -> StreamMatch {
        let on = self.devices.entry(event.device).or_default();
        self.facts.segment_mismatches += u64::from(on.all_segments.bytes() != event.aux[1]);
        let lost = on.live.remove(&event.addr);
        on.bytes = on.bytes.saturating_sub(lost.unwrap_or(0));
        let Some(detail) = event.detail else {
            self.facts.unknown_blocks += 1;
            self.facts.unknown_bytes = self.facts.unknown_bytes.saturating_add(event.size);
            return Self::gone(event, lost, on, own);
        };
        let stream = StreamId(detail.stream);
        if self.facts.told.len() < MAX_NAMED || stream == self.facts.stream {
            self.facts.told.insert(stream);
        }
        if stream != self.facts.stream {
            return Self::gone(event, lost, on, own);
        }
        on.live.insert(event.addr, event.size);
        on.bytes = on.bytes.saturating_add(event.size);
        own.push(on.with_totals(*event));
        StreamMatch::It
    }

    /// The free of a block of the stream was lost, and its place is another's now.
    fn gone(event: &Event, lost: Option<u64>, on: &StreamOnDevice, own: &mut Vec<Event>) -> StreamMatch {
        if lost.is_some() {
            let mut free = on.with_totals(*event);
            free.kind = EventKind::BLOCK_FREE;
            free.detail = None;
            own.push(free);
        }
        StreamMatch::Others
    }

    fn free(&mut self, event: &Event, own: &mut Vec<Event>) -> StreamMatch {
        let on = self.devices.entry(event.device).or_default();
        self.facts.segment_mismatches += u64::from(on.all_segments.bytes() != event.aux[1]);
        let Some(bytes) = on.live.remove(&event.addr) else { return StreamMatch::Others };
        on.bytes = on.bytes.saturating_sub(bytes);
        own.push(on.with_totals(*event));
        StreamMatch::It
    }

    fn segment(&mut self, event: &Event, own: &mut Vec<Event>) -> StreamMatch {
        let on = self.devices.entry(event.device).or_default();
        // Who asked for them does not matter here.
        on.all_segments.event(event, StackId::default());
        let comes = matches!(event.kind, EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP);
        if !comes || event.aux[0] == self.facts.stream.0 {
            if on.segments.event(event, StackId::default()).is_empty() && !comes {
                return StreamMatch::Others;
            }
            own.push(*event);
            return StreamMatch::It;
        }
        // Where it comes to lie, what was the stream's has gone without a word.
        let gone = Event { kind: EventKind::SEGMENT_UNMAP, ..*event };
        if !on.segments.event(&gone, StackId::default()).is_empty() {
            own.push(gone);
        }
        StreamMatch::Others
    }
}

impl StreamOnDevice {
    /// With what the stream held and had reserved after the event.
    fn with_totals(&self, event: Event) -> Event {
        Event { aux: [self.bytes, self.segments.bytes()], ..event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::Detail;

    fn block(kind: EventKind, addr: u64, size: u64, stream: Option<u64>) -> Event {
        let detail = stream.map(|stream| Detail { requested_bytes: size, stream, pool: 0 });
        Event { addr, size, aux: [999, 300], detail, device: 0, ..Event::new(kind) }
    }

    #[test]
    fn streams_are_named_as_they_are_shown() {
        for (text, stream) in [
            ("default", Some(0)),
            ("0", Some(0)),
            ("0x1f", Some(31)),
            ("31", Some(31)),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), stream.map(StreamId), "{text}");
        }
        assert_eq!(StreamId(31).to_string(), "0x1f");
    }

    #[test]
    fn only_its_own_blocks_and_segments_are_passed_on_with_its_own_totals() {
        let (alloc, free) = (EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE);
        let segment = |addr, size, stream| Event {
            addr,
            size,
            aux: [stream, 0],
            device: 0,
            ..Event::new(EventKind::SEGMENT_ALLOC)
        };
        let mut one = StreamFilter::new(StreamId(7));
        let mut own = Vec::new();
        for event in [
            segment(0x1000, 100, 7),
            segment(0x2000, 200, 8),
            block(alloc, 0x1000, 60, Some(7)),
            block(alloc, 0x2000, 50, Some(8)),
            block(alloc, 0x3000, 5, None),
            block(alloc, 0x1040, 20, Some(7)),
            block(free, 0x2000, 50, Some(8)),
            block(free, 0x1000, 60, Some(7)),
            // Its free was lost: another stream has the place.
            block(alloc, 0x1040, 10, Some(8)),
        ] {
            one.take(&event, &mut own);
        }
        let seen: Vec<_> = own[1..].iter().map(|e| (e.kind, e.addr, e.aux)).collect();
        assert_eq!(
            seen,
            [
                (alloc, 0x1000, [60, 100]),
                (alloc, 0x1040, [80, 100]),
                (free, 0x1000, [20, 100]),
                (free, 0x1040, [0, 100]),
            ]
        );
        let facts = one.facts;
        assert_eq!((facts.unknown_blocks, facts.unknown_bytes, facts.segment_mismatches), (1, 5, 0));
        assert_eq!(facts.told.into_iter().collect::<Vec<_>>(), [StreamId(7), StreamId(8)]);
    }
}
