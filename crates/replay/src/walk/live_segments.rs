//! The segments of PyTorch's allocator on all devices, while events are walked.

use std::collections::BTreeMap;

use crate::report::{SegmentChange, WalkedEvent, WalkedSegment};
use crate::state::segments::{Segment, Segments};
use crate::util::ids::StackId;
use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{Event, EventKind};

/// The present segments, from the events of PyTorch's tracker. They do not overlap.
///
/// A piece that was mapped into an expandable segment is a segment of its own. If the trace lacks
/// the removal of a segment, it is removed when its addresses are used again.
#[derive(Debug, Default)]
pub struct LiveSegments {
    devices: BTreeMap<u8, Segments>,
    changes: Vec<SegmentChange>,
}

impl LiveSegments {
    /// Applies an event; returns the segments that it removed and added. A part of a segment may be
    /// removed; the rest stays.
    pub fn on_event(&mut self, walked: &WalkedEvent<'_>) -> &[SegmentChange] {
        self.changes.clear();
        let is_segment_event = matches!(
            walked.event.kind,
            EventKind::SEGMENT_ALLOC
                | EventKind::SEGMENT_FREE
                | EventKind::SEGMENT_MAP
                | EventKind::SEGMENT_UNMAP
        );
        if is_segment_event {
            self.apply(&Event { time_ns: walked.time_ns, ..*walked.event }, walked.stack);
        }
        &self.changes
    }

    #[inline(never)] // Few events are about segments.
    fn apply(&mut self, event: &Event, stack: u32) {
        let segments = self.devices.entry(event.device).or_default();
        let before = segments.created();
        for removed in segments.on_event(event, StackId(stack)) {
            self.changes.push(SegmentChange::Removed(walked_segment(event.device, &removed)));
        }
        if segments.created() != before
            && let Some(added) = segments.at(event.addr)
        {
            self.changes.push(SegmentChange::Added(walked_segment(event.device, added)));
        }
    }

    /// Adds a segment that the tracker did not report. Returns what it replaced, and itself.
    pub fn insert(&mut self, segment: WalkedSegment) -> &[SegmentChange] {
        let kind = if segment.is_expandable { EventKind::SEGMENT_MAP } else { EventKind::SEGMENT_ALLOC };
        self.change(kind, segment)
    }

    /// Removes the addresses of a segment, whatever segments they belong to. Returns the removed
    /// parts.
    pub fn remove(&mut self, segment: WalkedSegment) -> &[SegmentChange] {
        self.change(EventKind::SEGMENT_FREE, segment)
    }

    fn change(&mut self, kind: EventKind, segment: WalkedSegment) -> &[SegmentChange] {
        self.changes.clear();
        let event = Event {
            device: segment.device,
            time_ns: segment.time_ns,
            addr: segment.addr,
            size: segment.bytes,
            aux: [segment.stream.unwrap_or(NO_STREAM), segment.pool.unwrap_or(NO_POOL)],
            ..Event::new(kind)
        };
        self.apply(&event, segment.stack);
        &self.changes
    }

    /// The segments of a device by ascending address.
    pub fn of_device(&self, device: u8) -> impl Iterator<Item = WalkedSegment> + '_ {
        let segments = self.devices.get(&device).into_iter().flat_map(Segments::iter);
        segments.map(move |segment| walked_segment(device, segment))
    }

    /// The first segment of a device that contains addresses in this range.
    pub fn first_in(&self, device: u8, addr: u64, bytes: u64) -> Option<WalkedSegment> {
        let segments = self.devices.get(&device)?;
        let end = addr.saturating_add(bytes);
        segments.first_in(addr, end).map(|segment| walked_segment(device, segment))
    }
}

/// Stream of a segment that the tracker did not report.
const NO_STREAM: u64 = u64::MAX;

fn walked_segment(device: u8, segment: &Segment) -> WalkedSegment {
    let (stream, pool) = segment.pool;
    WalkedSegment {
        device,
        addr: segment.addr,
        bytes: segment.bytes,
        stream: Some(stream).filter(|stream| *stream != NO_STREAM),
        pool: Some(pool).filter(|pool| *pool != NO_POOL),
        is_expandable: segment.is_expandable,
        stack: segment.stack.0,
        time_ns: segment.time_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(event: &Event, time_ns: u64) -> WalkedEvent<'_> {
        WalkedEvent { event, time_ns, step: 0, stack: 3, site: 0, name: None, is_inside: true, changes: &[] }
    }

    #[test]
    fn unmapping_a_part_returns_it_with_the_time_of_its_mapping() {
        let mut segments = LiveSegments::default();
        let map = Event {
            device: 1,
            addr: 100,
            size: 60,
            aux: [7, NO_POOL],
            time_ns: 1_000,
            ..Event::new(EventKind::SEGMENT_MAP)
        };
        let added = WalkedSegment {
            device: 1,
            addr: 100,
            bytes: 60,
            stream: Some(7),
            pool: None,
            is_expandable: true,
            stack: 3,
            time_ns: 5,
        };
        assert_eq!(segments.on_event(&walked(&map, 5)), [SegmentChange::Added(added)]);
        let unmap = Event { addr: 120, size: 20, ..Event { kind: EventKind::SEGMENT_UNMAP, ..map } };
        let removed = WalkedSegment { addr: 120, bytes: 20, ..added };
        assert_eq!(segments.on_event(&walked(&unmap, 9)), [SegmentChange::Removed(removed)]);
        let left: Vec<_> = segments.of_device(1).map(|segment| (segment.addr, segment.bytes)).collect();
        assert_eq!(left, [(100, 20), (140, 20)]);
        assert_eq!(segments.of_device(0).count(), 0);
    }

    #[test]
    fn an_inserted_segment_replaces_others_and_has_no_stream() {
        let mut segments = LiveSegments::default();
        let first = WalkedSegment {
            device: 0,
            addr: 0,
            bytes: 100,
            stream: None,
            pool: None,
            is_expandable: false,
            stack: 1,
            time_ns: 1,
        };
        segments.insert(first);
        let second = WalkedSegment { addr: 50, stack: 2, ..first };
        let replaced = WalkedSegment { addr: 50, bytes: 50, ..first };
        assert_eq!(segments.insert(second), [SegmentChange::Removed(replaced), SegmentChange::Added(second)]);
        assert_eq!(segments.first_in(0, 60, 1), Some(second));
        assert_eq!(segments.first_in(0, 150, 10), None);
        assert_eq!(segments.remove(second), [SegmentChange::Removed(second)]);
    }
}
