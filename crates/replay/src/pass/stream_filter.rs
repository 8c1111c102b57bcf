//! Selects the events of one stream (`--stream`).
//!
//! Definitions. A block belongs to the stream that PyTorch's tracker reported at its allocation,
//! and a segment to the stream that it serves. The allocated bytes of a stream are the sum of its
//! live blocks, and its reserved bytes the sum of its segments. The reserved bytes are known only
//! if the segments of all streams sum to PyTorch's reserved bytes at each block event.
//!
//! The analyses rely on the running totals in events, which cover all streams. [`StreamFilter`]
//! replaces them with the stream's own, so the analyses work as for a whole device. Events without
//! a stream (driver calls, samples of memory in use, out of memory) are dropped, and their values
//! are unknown in the report. `crates/replay/tests/parts.rs` checks the totals.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use gpumemtrace_format::{Event, EventKind};

use crate::state::segments::Segments;
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// Limit of the streams that are listed.
const MAX_LISTED_STREAMS: usize = 64;

/// The handle of a stream; 0 is the default stream.
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
            "not a stream: use `default`, a handle such as 0x5581c0d2, or a number, as in reports".to_owned()
        })
    }
}

/// Findings about the streams of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTotals {
    /// The stream that the user selected.
    pub stream: StreamId,
    /// Streams with blocks: the first 64, and the selected one.
    pub streams: BTreeSet<StreamId>,
    /// Blocks with an unknown stream, which are in the report of no stream.
    pub unknown_blocks: u64,
    /// Bytes of these blocks.
    pub unknown_bytes: u64,
    /// Block events at which the segments do not sum to PyTorch's reserved bytes.
    pub segment_mismatches: u64,
}

/// Whether an event counts for the selected stream.
pub(crate) enum StreamMatch {
    /// The event belongs to the stream, or to no stream in particular.
    Included,
    /// The event belongs to another stream or cannot be attributed.
    Excluded,
}

#[derive(Debug, Default)]
struct StreamOnDevice {
    /// Sizes of the stream's live blocks by address.
    live: SeededMap<u64, u64>,
    bytes: u64,
    /// Segments of the stream.
    segments: Segments,
    all_segments: Segments,
}

/// Selects the events of a stream.
#[derive(Debug)]
pub(crate) struct StreamFilter {
    pub(crate) totals: StreamTotals,
    devices: SeededMap<u8, StreamOnDevice>,
}

impl StreamFilter {
    pub(crate) fn new(stream: StreamId) -> Self {
        let totals = StreamTotals {
            stream,
            streams: BTreeSet::new(),
            unknown_blocks: 0,
            unknown_bytes: 0,
            segment_mismatches: 0,
        };
        Self { totals, devices: SeededMap::default() }
    }

    /// Appends to `included` the events that the analyses must see for `event`: itself with the
    /// stream's totals, or a free or unmapping that it implies.
    pub(crate) fn filter_event(&mut self, event: &Event, included: &mut Vec<Event>) -> StreamMatch {
        match event.kind {
            EventKind::BLOCK_ALLOC => self.filter_alloc(event, included),
            EventKind::BLOCK_FREE => self.filter_free(event, included),
            EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => self.filter_segment(event, included),
            EventKind::BLOCK_OOM | EventKind::MEMORY_SAMPLE => StreamMatch::Excluded,
            kind if kind.is_driver_call() => StreamMatch::Excluded,
            _ => {
                included.push(*event);
                StreamMatch::Included
            }
        }
    }

    fn filter_alloc(&mut self, event: &Event, included: &mut Vec<Event>) -> StreamMatch {
        let device = self.devices.entry(event.device).or_default();
        self.totals.segment_mismatches += u64::from(device.all_segments.bytes() != event.aux[1]);
        let lost = device.live.remove(&event.addr);
        device.bytes = device.bytes.saturating_sub(lost.unwrap_or(0));
        let Some(detail) = event.detail else {
            self.totals.unknown_blocks += 1;
            self.totals.unknown_bytes = self.totals.unknown_bytes.saturating_add(event.size);
            return Self::exclude_alloc(event, lost, device, included);
        };
        let stream = StreamId(detail.stream);
        if self.totals.streams.len() < MAX_LISTED_STREAMS || stream == self.totals.stream {
            self.totals.streams.insert(stream);
        }
        if stream != self.totals.stream {
            return Self::exclude_alloc(event, lost, device, included);
        }
        device.live.insert(event.addr, event.size);
        device.bytes = device.bytes.saturating_add(event.size);
        included.push(device.with_totals(*event));
        StreamMatch::Included
    }

    /// Excludes an allocation of another stream. If it replaces a block of this stream with a lost
    /// free (`lost` is its size), adds that free.
    fn exclude_alloc(
        event: &Event,
        lost: Option<u64>,
        device: &StreamOnDevice,
        included: &mut Vec<Event>,
    ) -> StreamMatch {
        if lost.is_some() {
            let mut free = device.with_totals(*event);
            free.kind = EventKind::BLOCK_FREE;
            free.detail = None;
            included.push(free);
        }
        StreamMatch::Excluded
    }

    fn filter_free(&mut self, event: &Event, included: &mut Vec<Event>) -> StreamMatch {
        let device = self.devices.entry(event.device).or_default();
        self.totals.segment_mismatches += u64::from(device.all_segments.bytes() != event.aux[1]);
        let Some(bytes) = device.live.remove(&event.addr) else { return StreamMatch::Excluded };
        device.bytes = device.bytes.saturating_sub(bytes);
        included.push(device.with_totals(*event));
        StreamMatch::Included
    }

    fn filter_segment(&mut self, event: &Event, included: &mut Vec<Event>) -> StreamMatch {
        let device = self.devices.entry(event.device).or_default();
        // The stack that requested a segment is not used here.
        device.all_segments.on_event(event, StackId::default());
        let is_alloc = matches!(event.kind, EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP);
        if !is_alloc || event.aux[0] == self.totals.stream.0 {
            if device.segments.on_event(event, StackId::default()).is_empty() && !is_alloc {
                return StreamMatch::Excluded;
            }
            included.push(*event);
            return StreamMatch::Included;
        }
        // A segment of another stream. If it overlaps segments of this stream, their removal was
        // lost; add it.
        let unmap = Event { kind: EventKind::SEGMENT_UNMAP, ..*event };
        if !device.segments.on_event(&unmap, StackId::default()).is_empty() {
            included.push(unmap);
        }
        StreamMatch::Excluded
    }
}

impl StreamOnDevice {
    /// The event with the stream's allocated and reserved bytes after it.
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
    fn stream_ids_parse_and_display() {
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
    fn only_events_of_the_stream_are_included_with_its_totals() {
        let (alloc, free) = (EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE);
        let segment = |addr, size, stream| Event {
            addr,
            size,
            aux: [stream, 0],
            device: 0,
            ..Event::new(EventKind::SEGMENT_ALLOC)
        };
        let mut filter = StreamFilter::new(StreamId(7));
        let mut included = Vec::new();
        for event in [
            segment(0x1000, 100, 7),
            segment(0x2000, 200, 8),
            block(alloc, 0x1000, 60, Some(7)),
            block(alloc, 0x2000, 50, Some(8)),
            block(alloc, 0x3000, 5, None),
            block(alloc, 0x1040, 20, Some(7)),
            block(free, 0x2000, 50, Some(8)),
            block(free, 0x1000, 60, Some(7)),
            // Another stream allocates at the address of a block of this stream: its free was lost.
            block(alloc, 0x1040, 10, Some(8)),
        ] {
            filter.filter_event(&event, &mut included);
        }
        let summary: Vec<_> = included[1..].iter().map(|e| (e.kind, e.addr, e.aux)).collect();
        assert_eq!(
            summary,
            [
                (alloc, 0x1000, [60, 100]),
                (alloc, 0x1040, [80, 100]),
                (free, 0x1000, [20, 100]),
                (free, 0x1040, [0, 100]),
            ]
        );
        let totals = filter.totals;
        assert_eq!((totals.unknown_blocks, totals.unknown_bytes, totals.segment_mismatches), (1, 5, 0));
        assert_eq!(totals.streams.into_iter().collect::<Vec<_>>(), [StreamId(7), StreamId(8)]);
    }
}
