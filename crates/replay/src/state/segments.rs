//! The segments of PyTorch's allocator on one device, from the events of its tracker.
//!
//! An expandable segment grows and shrinks at any place, one mapped piece at a time. PyTorch
//! reports its reserved total with every block, so the sum of the segments shows whether the
//! tracker reported all of them. Each segment has a creation number. [`crate::fragmentation`] uses
//! it to reconstruct an earlier state from the present segments and those removed since. An event
//! costs a B-tree lookup per piece that it overlaps.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

use crate::util::ids::StackId;

/// A segment, or a mapped piece of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub addr: u64,
    pub bytes: u64,
    /// The stream and the pool that it serves, as in [`ReservedGroupKey`].
    ///
    /// [`ReservedGroupKey`]: crate::state::unused_reserved::ReservedGroupKey
    pub pool: (u64, u64),
    /// A piece of an expandable segment: the next piece may follow it directly.
    pub is_expandable: bool,
    /// Creation number among the segments of the device, from 1.
    pub serial: u64,
    /// The stack that requested it.
    pub stack: StackId,
    /// Time of the event that reported it.
    pub time_ns: u64,
}

impl Segment {
    /// The address after its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.bytes)
    }
}

/// The present segments of a device. They do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    by_addr: BTreeMap<u64, Segment>,
    bytes: u64,
    created: u64,
}

impl Segments {
    /// Applies a segment event; returns the segments, or parts of them, that it removed.
    pub(crate) fn on_event(&mut self, event: &Event, stack: StackId) -> Vec<Segment> {
        match event.kind {
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => {
                self.created += 1;
                let segment = Segment {
                    addr: event.addr,
                    bytes: event.size,
                    pool: (event.aux[0], event.aux[1]),
                    is_expandable: event.kind == EventKind::SEGMENT_MAP,
                    serial: self.created,
                    stack,
                    time_ns: event.time_ns,
                };
                // Remove segments at these addresses: the events of their removal were lost.
                let removed = self.remove_range(segment.addr, segment.end());
                self.insert(segment);
                removed
            }
            EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => {
                self.remove_range(event.addr, event.addr.saturating_add(event.size))
            }
            _ => Vec::new(),
        }
    }

    fn insert(&mut self, segment: Segment) {
        if segment.bytes > 0 {
            self.bytes = self.bytes.saturating_add(segment.bytes);
            self.by_addr.insert(segment.addr, segment);
        }
    }

    /// Removes the addresses from `begin` to `end`; segments across the borders are cut.
    fn remove_range(&mut self, begin: u64, end: u64) -> Vec<Segment> {
        let before = self.by_addr.range(..begin).next_back().map(|(_, segment)| *segment);
        let first = before.filter(|segment| segment.end() > begin);
        let inside = self.by_addr.range(begin..end.max(begin)).map(|(_, segment)| *segment);
        let overlapping: Vec<Segment> = first.into_iter().chain(inside).collect();
        let part = |segment: &Segment, from: u64, to: u64| Segment {
            addr: from,
            bytes: to.saturating_sub(from),
            ..*segment
        };
        for segment in &overlapping {
            self.by_addr.remove(&segment.addr);
            self.bytes = self.bytes.saturating_sub(segment.bytes);
            self.insert(part(segment, segment.addr, begin.min(segment.end())));
            self.insert(part(segment, end.max(segment.addr), segment.end()));
        }
        overlapping.iter().map(|s| part(s, s.addr.max(begin), s.end().min(end))).collect()
    }

    /// Total size of the segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of segments created so far, which is the latest creation number.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// The segment at an address.
    pub(crate) fn at(&self, addr: u64) -> Option<&Segment> {
        let (_, segment) = self.by_addr.range(..=addr).next_back()?;
        (addr < segment.end()).then_some(segment)
    }

    /// The first segment with addresses from `begin` to `end`.
    pub(crate) fn first_in(&self, begin: u64, end: u64) -> Option<&Segment> {
        let inside = || self.by_addr.range(begin..end.max(begin)).next().map(|(_, segment)| segment);
        self.at(begin).or_else(inside)
    }

    /// The segments by ascending address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.by_addr.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(kind: EventKind, addr: u64, size: u64) -> Event {
        Event { device: 0, addr, size, aux: [7, 0], ..Event::new(kind) }
    }

    #[test]
    fn unmapping_the_middle_leaves_two_parts() {
        let mut segments = Segments::default();
        assert_eq!(segments.on_event(&event(EventKind::SEGMENT_MAP, 100, 60), StackId(0)), []);
        let removed = segments.on_event(&event(EventKind::SEGMENT_UNMAP, 120, 20), StackId(0));
        let ranges = |segments: &[Segment]| segments.iter().map(|s| (s.addr, s.bytes)).collect::<Vec<_>>();
        assert_eq!(ranges(&removed), [(120, 20)]);
        assert_eq!(ranges(&segments.iter().copied().collect::<Vec<_>>()), [(100, 20), (140, 20)]);
        assert_eq!(segments.bytes(), 40);
    }

    proptest! {
        #[test]
        fn total_equals_the_covered_bytes_for_any_events(
            events in proptest::collection::vec((0u8..4, 0u64..60, 0u64..30), 0..40),
        ) {
            let mut segments = Segments::default();
            let mut covered = [false; 100];
            for (kind, addr, size) in events {
                let removed = segments.on_event(&event(EventKind(EventKind::SEGMENT_ALLOC.0 + kind), addr, size), StackId(0));
                let is_added = matches!(kind, 0 | 2);
                let range = addr as usize..(addr + size) as usize;
                let had = covered[range.clone()].iter().filter(|is| **is).count() as u64;
                prop_assert_eq!(removed.iter().map(|segment| segment.bytes).sum::<u64>(), had);
                covered[range].fill(is_added);
                prop_assert_eq!(segments.bytes(), covered.iter().filter(|is| **is).count() as u64);
                prop_assert_eq!(segments.bytes(), segments.iter().map(|segment| segment.bytes).sum::<u64>());
            }
        }
    }
}
