//! The segments of PyTorch's allocator on one device, as its tracker tells them.
//!
//! An expandable segment grows and shrinks at any place, piece by piece; pieces that follow each other are one. Whether the
//! tracker told everything is seen from the sum, which PyTorch reports with every block. Each segment knows when it was born,
//! so that the state at an earlier moment can be told from what is there now and what has gone since (see `frag`).

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

use crate::callsite::symbols::StackId;

/// A segment, or a piece of an expandable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First address.
    pub addr: u64,
    /// Length.
    pub bytes: u64,
    /// The stream and the pool whose blocks it pool.
    pub pool: (u64, u64),
    /// More may be mapped behind it.
    pub is_expandable: bool,
    /// Which segment of the device it was, counted from 1.
    pub born: u64,
    /// Who asked for it.
    pub stack: StackId,
}

impl Segment {
    /// Past its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.addr.saturating_add(self.bytes)
    }
}

/// All of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    by_addr: BTreeMap<u64, Segment>,
    bytes: u64,
    born: u64,
}

impl Segments {
    /// Takes an event of a segment; what it took away.
    pub(crate) fn event(&mut self, event: &Event, stack: StackId) -> Vec<Segment> {
        match event.kind {
            EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP => {
                self.born += 1;
                let segment = Segment {
                    addr: event.addr,
                    bytes: event.size,
                    pool: (event.aux[0], event.aux[1]),
                    is_expandable: event.kind == EventKind::SEGMENT_MAP,
                    born: self.born,
                    stack,
                };
                // What was there has gone without a word.
                let gone = self.cut(segment.addr, segment.end());
                self.insert(segment);
                gone
            }
            EventKind::SEGMENT_FREE | EventKind::SEGMENT_UNMAP => {
                self.cut(event.addr, event.addr.saturating_add(event.size))
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

    /// Takes away everything from `begin` to `end`.
    fn cut(&mut self, begin: u64, end: u64) -> Vec<Segment> {
        let before = self.by_addr.range(..begin).next_back().map(|(_, segment)| *segment);
        let first = before.filter(|segment| segment.end() > begin);
        let inside = self.by_addr.range(begin..end.max(begin)).map(|(_, segment)| *segment);
        let touched: Vec<Segment> = first.into_iter().chain(inside).collect();
        let piece = |segment: &Segment, from: u64, to: u64| Segment {
            addr: from,
            bytes: to.saturating_sub(from),
            ..*segment
        };
        for segment in &touched {
            self.by_addr.remove(&segment.addr);
            self.bytes = self.bytes.saturating_sub(segment.bytes);
            self.insert(piece(segment, segment.addr, begin.min(segment.end())));
            self.insert(piece(segment, end.max(segment.addr), segment.end()));
        }
        touched.iter().map(|s| piece(s, s.addr.max(begin), s.end().min(end))).collect()
    }

    /// Their sum.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there ever were.
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// By address.
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
    fn a_piece_is_unmapped_from_the_middle() {
        let mut segments = Segments::default();
        assert_eq!(segments.event(&event(EventKind::SEGMENT_MAP, 100, 60), StackId(0)), []);
        let gone = segments.event(&event(EventKind::SEGMENT_UNMAP, 120, 20), StackId(0));
        let places = |segments: &[Segment]| segments.iter().map(|s| (s.addr, s.bytes)).collect::<Vec<_>>();
        assert_eq!(places(&gone), [(120, 20)]);
        assert_eq!(places(&segments.iter().copied().collect::<Vec<_>>()), [(100, 20), (140, 20)]);
        assert_eq!(segments.bytes(), 40);
    }

    proptest! {
        #[test]
        fn whatever_comes_the_sum_is_that_of_the_bytes_covered(
            events in proptest::collection::vec((0u8..4, 0u64..60, 0u64..30), 0..40),
        ) {
            let mut segments = Segments::default();
            let mut covered = [false; 100];
            for (kind, addr, size) in events {
                let gone = segments.event(&event(EventKind(EventKind::SEGMENT_ALLOC.0 + kind), addr, size), StackId(0));
                let is_added = matches!(kind, 0 | 2);
                let range = addr as usize..(addr + size) as usize;
                let had = covered[range.clone()].iter().filter(|is| **is).count() as u64;
                prop_assert_eq!(gone.iter().map(|segment| segment.bytes).sum::<u64>(), had);
                covered[range].fill(is_added);
                prop_assert_eq!(segments.bytes(), covered.iter().filter(|is| **is).count() as u64);
                prop_assert_eq!(segments.bytes(), segments.iter().map(|segment| segment.bytes).sum::<u64>());
            }
        }
    }
}
