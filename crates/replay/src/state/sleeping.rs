//! Segments of PyTorch's allocator without memory.
//!
//! The sleep mode of vLLM and SGLang keeps weights in a `MemPool` with an allocator of its own. To
//! sleep, it unmaps their memory and keeps the addresses. PyTorch still counts the blocks as
//! allocated; the driver has the memory back until the program wakes them. PyTorch's own expandable
//! segments do not sleep: it reports each range that it unmaps.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

/// The segments of one device, and the ranges of them that have no memory.
#[derive(Clone, Debug, Default)]
pub struct SleepingSegments {
    /// End of each segment by its first address.
    segments: BTreeMap<u64, u64>,
    /// End of each range without memory by its first address. Ranges lie in one segment.
    asleep: BTreeMap<u64, u64>,
    bytes: u64,
}

impl SleepingSegments {
    /// Applies a segment event of the device, or a driver call of any. Returns whether other
    /// addresses are asleep.
    pub fn on_event(&mut self, event: &Event) -> bool {
        let (begin, end) = (event.addr, event.addr.saturating_add(event.size));
        match event.kind {
            EventKind::SEGMENT_ALLOC => {
                self.segments.insert(begin, end);
                self.wake(begin, end)
            }
            EventKind::SEGMENT_FREE => {
                self.segments.remove(&begin);
                self.wake(begin, end)
            }
            EventKind::UNMAP if event.result == 0 && !event.in_flight => self.sleep(begin, end),
            EventKind::MAP if event.result == 0 && !event.in_flight => self.wake(begin, end),
            _ => false,
        }
    }

    /// Bytes of segments without memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a range is part of a segment.
    pub fn is_segment(&self, event: &Event) -> bool {
        overlaps(&self.segments, event.addr, event.addr.saturating_add(event.size)).next().is_some()
    }

    /// Whether an address is asleep.
    pub(crate) fn contains(&self, addr: u64) -> bool {
        self.asleep.range(..=addr).next_back().is_some_and(|(_, end)| addr < *end)
    }

    fn sleep(&mut self, begin: u64, end: u64) -> bool {
        let parts = overlaps(&self.segments, begin, end);
        // Segments of a damaged trace may lie in each other.
        let parts: Vec<(u64, u64)> =
            parts.map(|(from, to)| (from.max(begin), to.min(end))).filter(|(from, to)| from < to).collect();
        let parts: Vec<(u64, u64)> = parts.into_iter().filter(|part| !self.has(*part)).collect();
        for (from, to) in &parts {
            self.wake(*from, *to);
            self.asleep.insert(*from, *to);
            self.bytes += to - from;
        }
        !parts.is_empty()
    }

    /// Whether a range is asleep as a whole, as one.
    fn has(&self, (begin, end): (u64, u64)) -> bool {
        self.asleep.range(..=begin).next_back().is_some_and(|(_, to)| *to >= end)
    }

    fn wake(&mut self, begin: u64, end: u64) -> bool {
        let parts: Vec<(u64, u64)> = overlaps(&self.asleep, begin, end).collect();
        for (from, to) in &parts {
            self.asleep.remove(from);
            self.bytes -= to - from;
            for (rest_from, rest_to) in [(*from, begin), (end, *to)] {
                if rest_from < rest_to {
                    self.asleep.insert(rest_from, rest_to);
                    self.bytes += rest_to - rest_from;
                }
            }
        }
        !parts.is_empty()
    }
}

/// The ranges that overlap one, which do not overlap each other.
fn overlaps(ranges: &BTreeMap<u64, u64>, begin: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let before = ranges.range(..begin).next_back().filter(|(_, to)| **to > begin);
    let inside = ranges.range(begin..end.max(begin));
    before.into_iter().chain(inside).map(|(from, to)| (*from, *to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(segments: &mut SleepingSegments, kind: EventKind, addr: u64, size: u64) -> u64 {
        segments.on_event(&Event { addr, size, ..Event::new(kind) });
        segments.bytes()
    }

    #[test]
    fn unmapped_parts_of_segments_are_asleep_until_mapped() {
        use EventKind as Kind;
        let mut segments = SleepingSegments::default();
        let mut pass = |kind, addr, size| pass(&mut segments, kind, addr, size);
        assert_eq!(pass(Kind::UNMAP, 100, 50), 0, "memory of a library");
        pass(Kind::SEGMENT_ALLOC, 100, 50);
        pass(Kind::SEGMENT_ALLOC, 150, 50);
        assert_eq!(pass(Kind::UNMAP, 100, 50), 50);
        assert_eq!(pass(Kind::UNMAP, 100, 50), 50, "once");
        assert_eq!(pass(Kind::UNMAP, 120, 100), 100, "up to the end of the second segment");
        assert_eq!(pass(Kind::MAP, 110, 60), 40);
        assert_eq!(pass(Kind::SEGMENT_FREE, 150, 50), 10);
        let failed = Event { addr: 100, size: 50, result: 1, ..Event::new(Kind::MAP) };
        assert!(!segments.on_event(&failed) && segments.contains(109) && !segments.contains(110));
    }
}
