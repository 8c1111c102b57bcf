//! Reconstructs the state of an allocator at its peak of reserved bytes, or at the end of the
//! program.
//!
//! Constraint: the peak is known only at the end, and a copy of all blocks at each new maximum
//! would cost O(maxima x blocks). Consequence: every block, segment and range has the number of
//! the event that created it, and [`ReservedPeakState`] keeps those that existed at the last
//! maximum and were removed later. Together with those that still exist they are the state at the
//! peak.
//!
//! Each removal is O(1), and memory is bounded by the state at the peak. `tests/exactness.rs`
//! checks for random runs that the reconstructed state adds up to the reserved bytes.

use std::collections::BTreeMap;

use super::{AllocatorSnapshot, PendingFree};
use crate::state::driver::{MemoryPlace, MemoryRange};
use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::state::pool_key::PoolKey;
use crate::state::segments::{Segment, Segments};
use crate::util::seeded_map::SeededMap;

/// The peak of reserved bytes, and the numbers of the newest objects that existed then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedPeak {
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// The request for which the allocator reserved more memory.
    pub request: Option<PoolKey>,
    /// Serial number of the newest block.
    pub newest_block: u64,
    /// Serial number of the newest driver range.
    pub newest_range: u64,
    /// Serial number of the newest segment.
    pub newest_segment: u64,
}

/// The highest peak so far, and the objects that existed then and were removed since.
#[derive(Debug, Default)]
pub(crate) struct ReservedPeakState {
    peak: ReservedPeak,
    removed_blocks: Vec<(u64, LiveBlock)>,
    removed_pending: Vec<(u64, LiveBlock)>,
    removed_segments: Vec<Segment>,
    removed_ranges: Vec<MemoryRange>,
}

impl ReservedPeakState {
    /// Highest number of reserved bytes so far.
    pub(crate) fn reserved(&self) -> u64 {
        self.peak.reserved
    }

    /// Number of steps begun at the peak.
    pub(crate) fn step(&self) -> u32 {
        self.peak.step
    }

    /// Replaces the peak by a higher one, which is the current state.
    pub(crate) fn set_peak(&mut self, peak: ReservedPeak) {
        self.peak = peak;
        self.removed_blocks.clear();
        self.removed_pending.clear();
        self.removed_segments.clear();
        self.removed_ranges.clear();
    }

    /// Keeps a block that is being removed, if it existed at the peak.
    #[inline]
    pub(crate) fn keep_removed_block(&mut self, addr: u64, block: LiveBlock) {
        if block.serial <= self.peak.newest_block {
            self.removed_blocks.push((addr, block));
        }
    }

    /// Keeps a block with a pending free that becomes free, if the free was pending at the peak.
    pub(crate) fn keep_removed_pending(&mut self, addr: u64, pending: PendingFree) {
        if pending.since <= self.peak.newest_block {
            self.removed_pending.push((addr, pending.block));
        }
    }

    /// Keeps a segment, or a part of one, that is being released, if it existed at the peak.
    pub(crate) fn keep_removed_segment(&mut self, segment: Segment) {
        if segment.serial <= self.peak.newest_segment {
            self.removed_segments.push(segment);
        }
    }

    /// Keeps a driver range that is being removed, if it existed at the peak.
    pub(crate) fn keep_removed_range(&mut self, range: MemoryRange) {
        if range.serial <= self.peak.newest_range {
            self.removed_ranges.push(range);
        }
    }

    /// The state at the peak, given what exists now. Sorts segments and ranges by address.
    #[allow(clippy::implicit_hasher)] // `SeededMap` fixes the hasher.
    pub(crate) fn snapshot(
        &self,
        live: &BlockMap,
        pending: &SeededMap<u64, PendingFree>,
        segments: &Segments,
        ranges: &BTreeMap<u64, MemoryRange>,
        device: u8,
    ) -> AllocatorSnapshot {
        let peak = &self.peak;
        let blocks = live.iter().filter(|(_, block)| block.serial <= peak.newest_block);
        let blocks = blocks.map(|(addr, block)| (addr, *block)).chain(self.removed_blocks.iter().copied());
        let pending = pending.iter().filter(|(_, pending)| pending.since <= peak.newest_block);
        let pending =
            pending.map(|(addr, pending)| (*addr, pending.block)).chain(self.removed_pending.iter().copied());
        let segments = segments.iter().filter(|segment| segment.serial <= peak.newest_segment).copied();
        let mut segments: Vec<Segment> = segments.chain(self.removed_segments.iter().copied()).collect();
        segments.sort_unstable_by_key(|segment| segment.addr);
        let remaining = ranges.values().filter(|range| range.serial <= peak.newest_range).copied();
        let at_peak = remaining.chain(self.removed_ranges.iter().copied());
        let mut ranges: Vec<MemoryRange> =
            at_peak.filter(|range| range.place == MemoryPlace::Device(device)).collect();
        ranges.sort_unstable_by_key(|range| range.addr);
        AllocatorSnapshot {
            time_ns: peak.time_ns,
            reserved: peak.reserved,
            request: peak.request,
            blocks: blocks.collect(),
            pending: pending.collect(),
            segments,
            ranges,
        }
    }
}
