//! The driver's allocations on devices with PyTorch, which may turn out to be segments.

use std::collections::BTreeMap;

use gpumemtrace_replay::report::{WalkedBlock, WalkedEvent, WalkedSegment};

/// The driver's allocations and mappings on devices with PyTorch, by device and address.
#[derive(Default)]
pub(super) struct DriverRanges {
    ranges: BTreeMap<(u8, u64), DriverRange>,
}

#[derive(Clone, Copy)]
struct DriverRange {
    bytes: u64,
    is_mapping: bool,
    stack: u32,
    time_ns: u64,
    /// It became a segment.
    is_segment: bool,
}

impl DriverRanges {
    /// Adds an allocation. Handles are no addresses, and lie above all of them.
    pub(super) fn alloc(&mut self, block: &WalkedBlock) {
        let range = DriverRange {
            bytes: block.size_bytes,
            is_mapping: false,
            stack: block.stack,
            time_ns: block.time_ns,
            is_segment: false,
        };
        self.ranges.insert((block.device, block.addr), range);
    }

    /// Adds a mapping of physical memory.
    pub(super) fn map(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if event.result == 0 && !event.in_flight {
            let range = DriverRange {
                bytes: event.size,
                is_mapping: true,
                stack: walked.stack,
                time_ns: walked.time_ns,
                is_segment: false,
            };
            self.ranges.insert((event.device, event.addr), range);
        }
    }

    /// True if the range at an address became a segment.
    pub(super) fn is_segment(&self, device: u8, addr: u64) -> bool {
        self.ranges.get(&(device, addr)).is_some_and(|range| range.is_segment)
    }

    /// Removes the ranges that begin at addresses from `begin` to `end`; returns those that were
    /// segments.
    pub(super) fn remove(&mut self, device: u8, (begin, end): (u64, u64)) -> Vec<WalkedSegment> {
        let inside = self.ranges.range((device, begin)..(device, end.max(begin)));
        let addrs: Vec<u64> = inside.map(|((_, addr), _)| *addr).collect();
        let removed = addrs.into_iter().filter_map(|addr| {
            let range = self.ranges.remove(&(device, addr))?;
            range.is_segment.then(|| range.segment(device, addr))
        });
        removed.collect()
    }

    /// Makes segments of the adjacent ranges that contain these addresses. Empty if there are none.
    pub(super) fn claim(&mut self, device: u8, begin: u64, end: u64) -> Vec<WalkedSegment> {
        let (mut at, mut addrs) = (begin, Vec::new());
        while at < end {
            let first = self.ranges.range((device, 0)..=(device, at)).next_back();
            match first {
                Some(((_, addr), range)) if addr.saturating_add(range.bytes) > at => {
                    addrs.push(*addr);
                    at = addr.saturating_add(range.bytes);
                }
                _ => return Vec::new(),
            }
        }
        let claimed = addrs.into_iter().filter_map(|addr| {
            let range = self.ranges.get_mut(&(device, addr))?;
            let is_new = !std::mem::replace(&mut range.is_segment, true);
            is_new.then(|| range.segment(device, addr))
        });
        claimed.collect()
    }
}

impl DriverRange {
    fn segment(self, device: u8, addr: u64) -> WalkedSegment {
        WalkedSegment {
            device,
            addr,
            bytes: self.bytes,
            stream: None,
            pool: None,
            is_expandable: self.is_mapping,
            stack: self.stack,
            time_ns: self.time_ns,
        }
    }
}
