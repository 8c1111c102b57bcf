//! An allocator's memory by what it serves: one row for each stream, pool, size of blocks and way to get segments.

use std::collections::BTreeMap;

use super::PoolKey;

/// Segments that serve the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolTotals {
    /// Which.
    pub pool: PoolKey,
    /// They grow and shrink by pages, as PyTorch's `expandable_segments`.
    pub is_expandable: bool,
    /// How many; of expandable ones, pieces without a hole.
    pub segments: u64,
    /// All of it.
    pub reserved: u64,
    /// In live blocks.
    pub allocated: u64,
    /// Requested back and still used by another stream.
    pub pending: u64,
    /// In no block: the rest.
    pub free: u64,
    /// Of it in whole segments, or whole pages of expandable ones.
    pub releasable: u64,
    /// The largest free piece.
    pub largest_free: u64,
}

/// By what they serve, on their way to a list.
#[derive(Default)]
pub(super) struct TotalsByPool(BTreeMap<(PoolKey, bool), PoolTotals>);

impl TotalsByPool {
    /// The row of a segment, which is counted.
    pub(super) fn segment(&mut self, pool: PoolKey, is_expandable: bool) -> &mut PoolTotals {
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
        let group = self.0.entry((pool, is_expandable)).or_insert(empty);
        group.segments += 1;
        group
    }

    pub(super) fn list(self) -> Vec<PoolTotals> {
        let mut groups: Vec<PoolTotals> = self.0.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.reserved), group.pool, group.is_expandable));
        groups
    }
}
