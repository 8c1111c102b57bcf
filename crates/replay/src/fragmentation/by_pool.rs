//! Sums an allocator's memory by stream, pool, block size and kind of segment.

use std::collections::BTreeMap;

use crate::state::pool_key::PoolKey;

/// Totals of the segments that serve the same requests. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolTotals {
    /// The requests that the segments serve.
    pub pool: PoolKey,
    /// The segments grow and shrink by pages (PyTorch's `expandable_segments`).
    pub is_expandable: bool,
    /// Number of segments. Of expandable ones, contiguous parts count.
    pub segments: u64,
    /// Sum of the segments.
    pub reserved: u64,
    /// Part of it in live blocks.
    pub allocated: u64,
    /// Part of it in blocks with a pending free.
    pub pending: u64,
    /// The rest, in no block.
    pub free: u64,
    /// Part of `free` in whole segments, or in whole pages of expandable ones.
    pub releasable: u64,
    /// The largest contiguous free piece.
    pub largest_free: u64,
}

/// Bytes of one segment.
#[derive(Clone, Copy)]
pub(super) struct SegmentBytes {
    pub(super) all: u64,
    /// Part of `all` in no block.
    pub(super) free: u64,
    /// Part of `all` in blocks with a pending free.
    pub(super) pending: u64,
    pub(super) releasable: u64,
    pub(super) largest_free: u64,
}

/// Collects totals by pool and kind of segment.
#[derive(Default)]
pub(super) struct TotalsByPool(BTreeMap<(PoolKey, bool), PoolTotals>);

impl TotalsByPool {
    /// Adds a segment to the totals of its pool.
    pub(super) fn add_segment(&mut self, pool: PoolKey, is_expandable: bool, segment: SegmentBytes) {
        let empty = PoolTotals {
            pool,
            is_expandable,
            segments: 0,
            reserved: 0,
            allocated: 0,
            pending: 0,
            free: 0,
            releasable: 0,
            largest_free: 0,
        };
        let totals = self.0.entry((pool, is_expandable)).or_insert(empty);
        totals.segments += 1;
        totals.reserved = totals.reserved.saturating_add(segment.all);
        totals.pending = totals.pending.saturating_add(segment.pending);
        totals.free = totals.free.saturating_add(segment.free);
        let allocated = segment.all.saturating_sub(segment.free).saturating_sub(segment.pending);
        totals.allocated = totals.allocated.saturating_add(allocated);
        totals.releasable = totals.releasable.saturating_add(segment.releasable);
        totals.largest_free = totals.largest_free.max(segment.largest_free);
    }

    /// All totals, most reserved bytes first.
    pub(super) fn into_sorted(self) -> Vec<PoolTotals> {
        let mut totals: Vec<PoolTotals> = self.0.into_values().collect();
        totals.sort_by_key(|total| (std::cmp::Reverse(total.reserved), total.pool, total.is_expandable));
        totals
    }
}
