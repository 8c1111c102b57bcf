//! The state of an allocator at the moment of the highest reserved bytes.
//!
//! Constraint: that moment is known only at the end, and copying all blocks at each new maximum costs maxima x blocks.
//! Consequence: blocks and ranges know when they were born, and [`ReservedPeakState`] keeps those that were there at the last maximum
//! and have gone since; with what is still there they are the state then. Nothing is copied, and what is kept is at most
//! what was there.

use std::collections::BTreeMap;

use super::{AllocatorSnapshot, PendingFree, PoolKey};
use crate::state::driver::{MemoryPlace, MemoryRange};
use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::state::segments::{Segment, Segments};
use crate::util::seeded_map::SeededMap;

/// The moment of the highest reserved bytes, and what had been born by then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservedPeak {
    /// Held by PyTorch.
    pub reserved: u64,
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// What the allocator took more memory for.
    pub request: Option<PoolKey>,
    /// The last block.
    pub newest_block: u64,
    /// The last driver range.
    pub newest_range: u64,
    /// The last segment.
    pub newest_segment: u64,
}

/// The state at the moment of the highest reserved bytes.
#[derive(Debug, Default)]
pub(crate) struct ReservedPeakState {
    moment: ReservedPeak,
    gone_blocks: Vec<(u64, LiveBlock)>,
    gone_pending: Vec<(u64, LiveBlock)>,
    gone_segments: Vec<Segment>,
    gone_ranges: Vec<MemoryRange>,
}

impl ReservedPeakState {
    /// The highest reserved bytes so far.
    pub(crate) fn reserved(&self) -> u64 {
        self.moment.reserved
    }

    /// Steps begun then.
    pub(crate) fn step(&self) -> u32 {
        self.moment.step
    }

    /// This moment is the highest so far.
    pub(crate) fn mark(&mut self, moment: ReservedPeak) {
        self.moment = moment;
        self.gone_blocks.clear();
        self.gone_pending.clear();
        self.gone_segments.clear();
        self.gone_ranges.clear();
    }

    /// A block is gone.
    #[inline]
    pub(crate) fn block_removed(&mut self, addr: u64, block: LiveBlock) {
        if block.born <= self.moment.newest_block {
            self.gone_blocks.push((addr, block));
        }
    }

    /// A block that had been requested back is free.
    pub(crate) fn pending_removed(&mut self, addr: u64, pending: PendingFree) {
        if pending.since <= self.moment.newest_block {
            self.gone_pending.push((addr, pending.block));
        }
    }

    /// A segment, or a piece of it, is gone.
    pub(crate) fn segment_removed(&mut self, segment: Segment) {
        if segment.born <= self.moment.newest_segment {
            self.gone_segments.push(segment);
        }
    }

    /// A driver range is gone.
    pub(crate) fn range_removed(&mut self, range: MemoryRange) {
        if range.born <= self.moment.newest_range {
            self.gone_ranges.push(range);
        }
    }

    /// The state then, given how things are now.
    #[allow(clippy::implicit_hasher)] // The maps are ours.
    pub(crate) fn snapshot(
        &self,
        live: &BlockMap,
        pending: &SeededMap<u64, PendingFree>,
        segments: &Segments,
        ranges: &BTreeMap<u64, MemoryRange>,
        device: u8,
    ) -> AllocatorSnapshot {
        let moment = &self.moment;
        let blocks = live.iter().filter(|(_, block)| block.born <= moment.newest_block);
        let blocks = blocks.map(|(addr, block)| (addr, *block)).chain(self.gone_blocks.iter().copied());
        let pending = pending.iter().filter(|(_, pending)| pending.since <= moment.newest_block);
        let pending =
            pending.map(|(addr, pending)| (*addr, pending.block)).chain(self.gone_pending.iter().copied());
        let segments = segments.iter().filter(|segment| segment.born <= moment.newest_segment).copied();
        let mut segments: Vec<Segment> = segments.chain(self.gone_segments.iter().copied()).collect();
        segments.sort_unstable_by_key(|segment| segment.addr);
        let still = ranges.values().filter(|range| range.born <= moment.newest_range).copied();
        let all = still.chain(self.gone_ranges.iter().copied());
        let mut ranges: Vec<MemoryRange> =
            all.filter(|range| range.place == MemoryPlace::Device(device)).collect();
        ranges.sort_unstable_by_key(|range| range.addr);
        AllocatorSnapshot {
            time_ns: moment.time_ns,
            reserved: moment.reserved,
            request: moment.request,
            blocks: blocks.collect(),
            pending: pending.collect(),
            segments,
            ranges,
        }
    }
}
