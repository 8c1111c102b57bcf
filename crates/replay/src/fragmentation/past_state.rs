//! Reconstructs the state of an allocator at an earlier moment.
//!
//! Constraint: which moment matters (the peak, the largest gap, the last step end) is known only at
//! the end, and a copy of all blocks at each candidate would cost O(candidates x blocks).
//! Consequence: every block, segment and range has the number of the event that created it, and
//! [`PastState`] keeps those that existed at the last candidate and were removed later. Together
//! with those that still exist they are the state at that moment.
//!
//! Each removal is O(1), and memory is bounded by the state at the moment. `tests/exactness.rs`
//! checks for random runs that the reconstructed state adds up to the reserved bytes.

use std::collections::BTreeMap;

use super::{AllocatorSnapshot, PendingFree};
use crate::state::driver::{MemoryPlace, MemoryRange};
use crate::state::live_set::LiveBlock;
use crate::state::pool_key::PoolKey;
use crate::state::segments::{Segment, Segments};
use crate::util::seeded_map::SeededMap;

/// A moment of the run, and the numbers of the newest objects that existed then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PastMoment {
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

/// The present blocks, segments and driver ranges of a device.
#[derive(Clone, Copy)]
pub(crate) struct PresentState<'a> {
    /// The live blocks by ascending address.
    pub live: &'a [(u64, LiveBlock)],
    pub pending: &'a SeededMap<u64, PendingFree>,
    pub segments: &'a Segments,
    pub ranges: &'a BTreeMap<u64, MemoryRange>,
    /// Ordinal of the device.
    pub device: u8,
}

/// A moment, and the objects that existed then and were removed since.
#[derive(Debug, Default)]
pub(crate) struct PastState {
    moment: PastMoment,
    removed_blocks: Vec<(u64, LiveBlock)>,
    removed_pending: Vec<(u64, LiveBlock)>,
    removed_segments: Vec<Segment>,
    removed_ranges: Vec<MemoryRange>,
}

impl PastState {
    /// The moment that the removed objects belong to.
    pub(crate) fn moment(&self) -> &PastMoment {
        &self.moment
    }

    /// Moves to the present moment.
    #[inline]
    pub(crate) fn set_moment(&mut self, moment: PastMoment) {
        self.moment = moment;
        self.removed_blocks.clear();
        self.removed_pending.clear();
        self.removed_segments.clear();
        self.removed_ranges.clear();
    }

    /// Keeps a block that is being removed, if it existed at the moment.
    #[inline]
    pub(crate) fn keep_removed_block(&mut self, addr: u64, block: LiveBlock) {
        if block.serial <= self.moment.newest_block {
            self.removed_blocks.push((addr, block));
        }
    }

    /// Keeps a block with a pending free that becomes free, if the free was pending at the moment.
    pub(crate) fn keep_removed_pending(&mut self, addr: u64, pending: PendingFree) {
        if pending.since <= self.moment.newest_block {
            self.removed_pending.push((addr, pending.block));
        }
    }

    /// Keeps a segment, or a part of one, that is being released, if it existed at the moment.
    pub(crate) fn keep_removed_segment(&mut self, segment: Segment) {
        if segment.serial <= self.moment.newest_segment {
            self.removed_segments.push(segment);
        }
    }

    /// Keeps a driver range that is being removed, if it existed at the moment.
    pub(crate) fn keep_removed_range(&mut self, range: MemoryRange) {
        if range.serial <= self.moment.newest_range {
            self.removed_ranges.push(range);
        }
    }

    /// The state at the moment, given what exists now. Sorts segments and ranges by address. Of
    /// the blocks, those that still exist come first, also by address.
    pub(crate) fn snapshot(&self, now: PresentState<'_>) -> AllocatorSnapshot<'static> {
        let moment = &self.moment;
        let blocks = now.live.iter().filter(|(_, block)| block.serial <= moment.newest_block);
        let blocks = blocks.chain(&self.removed_blocks).copied();
        let pending = now.pending.iter().filter(|(_, pending)| pending.since <= moment.newest_block);
        let pending =
            pending.map(|(addr, pending)| (*addr, pending.block)).chain(self.removed_pending.iter().copied());
        let segments = now.segments.iter().filter(|segment| segment.serial <= moment.newest_segment).copied();
        let mut segments: Vec<Segment> = segments.chain(self.removed_segments.iter().copied()).collect();
        segments.sort_unstable_by_key(|segment| segment.addr);
        let remaining = now.ranges.values().filter(|range| range.serial <= moment.newest_range).copied();
        let at_moment = remaining.chain(self.removed_ranges.iter().copied());
        let mut ranges: Vec<MemoryRange> =
            at_moment.filter(|range| range.place == MemoryPlace::Device(now.device)).collect();
        ranges.sort_unstable_by_key(|range| range.addr);
        AllocatorSnapshot {
            time_ns: moment.time_ns,
            block_events: moment.newest_block,
            reserved: moment.reserved,
            has_failed: false,
            request: moment.request,
            blocks: blocks.collect::<Vec<_>>().into(),
            pending: pending.collect(),
            segments,
            ranges,
        }
    }
}
