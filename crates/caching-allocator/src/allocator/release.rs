//! Gives memory back to the driver.

use super::CachingAllocator;
use super::search::ClassedRequest;
use crate::backend::{CacheBackend, TraceAction};
use crate::blocks::AllocatorBlock;
use crate::ids::{BlockId, PoolId, PoolIndex};
use crate::size_rules::BlockSizeClass;
use crate::stats::StatKind;

impl<B: CacheBackend> CachingAllocator<B> {
    /// Frees every segment without a live block, and every page without one. Does nothing while a
    /// graph is captured.
    pub fn release_cached(&mut self) {
        // A replay of the captured graph uses the blocks that it freed, and cuMemFree would
        // invalidate the capture.
        if !self.is_in_capture() {
            self.wait_for_all_events();
            for size_class in [BlockSizeClass::Large, BlockSizeClass::Small] {
                self.release_blocks(PoolIndex(0), size_class);
            }
        } else if !self.rules.empties_unused_pools || self.pools.has_capture() {
            return;
        }
        for pool in self.pools.without_users() {
            for size_class in [BlockSizeClass::Small, BlockSizeClass::Large] {
                self.release_blocks(pool, size_class);
            }
        }
        self.pools.remove_unused();
    }

    /// [`release_cached`](Self::release_cached) for one private pool without users. Waits only for
    /// events of its blocks.
    pub fn release_cached_of_pool(&mut self, id: PoolId) {
        let Some(pool) = self.pools.find(id).filter(|pool| !self.pools.has_users(*pool)) else { return };
        if self.is_in_capture() {
            return;
        }
        self.wait_for_events_of_pool(pool);
        for size_class in [BlockSizeClass::Small, BlockSizeClass::Large] {
            self.release_blocks(pool, size_class);
        }
        self.pools.remove_unused();
    }

    /// Whether [`release_cached`](Self::release_cached) would free segments or pages that belong to
    /// no private pool.
    pub fn has_unused_segments(&self) -> bool {
        let is_unused = |id: BlockId| {
            let block = &self.blocks[id];
            !block.is_split() || block.arena.is_some()
        };
        [BlockSizeClass::Large, BlockSizeClass::Small]
            .into_iter()
            .any(|size_class| self.pools.get(PoolIndex(0)).free_blocks(size_class).any(is_unused))
    }

    /// Frees the segments of a pool that are one free block, then the free pages.
    fn release_blocks(&mut self, pool: PoolIndex, size_class: BlockSizeClass) {
        let free: Vec<BlockId> = self.pools.get(pool).free_blocks(size_class).collect();
        let (expandable, segments): (Vec<_>, Vec<_>) =
            free.into_iter().partition(|id| self.blocks[*id].arena.is_some());
        for id in segments {
            if !self.blocks[id].is_split() {
                self.release_segment(id);
            }
        }
        for id in expandable {
            self.unmap_block(id);
        }
    }

    /// Frees oversize blocks for a request, if splits are limited: one that is large enough, or
    /// else the largest ones. True if these are as large as the request together.
    pub(super) fn release_oversize_blocks(&mut self, request: &ClassedRequest) -> bool {
        let &ClassedRequest { size_class, stream, pool, .. } = request;
        let max_split_bytes = self.settings.max_split_bytes;
        if max_split_bytes == u64::MAX {
            return false;
        }
        let wanted_bytes = request.bytes.max(max_split_bytes);
        let is_releasable = |id: &BlockId| self.blocks[*id].arena.is_none() && !self.blocks[*id].is_split();
        let pool = self.pools.get(pool);
        let large_enough = pool.candidates(size_class, stream, wanted_bytes).next();
        if let Some(id) = large_enough.filter(is_releasable) {
            self.release_segment(id);
            return true;
        }
        let mut released_bytes = 0;
        let mut chosen = Vec::new();
        for id in pool.smaller_blocks(size_class, stream, wanted_bytes) {
            let bytes = self.blocks[id].bytes;
            if released_bytes >= wanted_bytes || bytes < max_split_bytes {
                break;
            }
            if is_releasable(&id) {
                released_bytes += bytes;
                chosen.push(id);
            }
        }
        for id in chosen {
            self.release_segment(id);
        }
        released_bytes >= wanted_bytes
    }

    /// Whether unused segments are freed before the memory limit is reached.
    pub(super) fn collects_garbage(&self) -> bool {
        self.limit_bytes.is_some() && self.settings.gc_threshold > 0.0
    }

    /// Frees unused large segments of the default pool, the oldest first, until reserved bytes are
    /// below the threshold. Events are not waited for.
    pub(super) fn collect_garbage(&mut self) {
        let Some(limit_bytes) = self.limit_bytes.filter(|_| self.collects_garbage()) else { return };
        let threshold_bytes = (self.settings.gc_threshold * limit_bytes as f64) as u64;
        let reserved_bytes = self.stats.current(StatKind::ReservedBytes);
        if reserved_bytes <= threshold_bytes {
            return;
        }
        let wanted_bytes = reserved_bytes - threshold_bytes;
        let pool = self.pools.get(PoolIndex(0));
        let now = pool.lookups[BlockSizeClass::Large as usize];
        let mut ages: Vec<(BlockId, u64)> = pool
            .free_blocks(BlockSizeClass::Large)
            .filter(|id| !self.blocks[*id].is_split() && self.blocks[*id].arena.is_none())
            .map(|id| (id, now - self.blocks[id].free_since))
            .collect();
        let mut released_bytes = 0;
        while released_bytes < wanted_bytes && !ages.is_empty() {
            // Each round frees the blocks of at least the mean age, also beyond the wanted bytes.
            let mean = ages.iter().map(|(_, age)| age).sum::<u64>() as f64 / ages.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = ages.into_iter().partition(|(_, age)| *age as f64 >= mean);
            for (id, _) in old {
                released_bytes += self.blocks[id].bytes;
                self.release_segment(id);
            }
            ages = young;
        }
    }

    fn release_segment(&mut self, id: BlockId) {
        let bytes = self.take_from_pool(id);
        let AllocatorBlock { addr, size_class, pool, .. } = self.blocks[id];
        self.stats.add(StatKind::Segment, size_class, -1);
        self.stats.add(StatKind::ReservedBytes, size_class, -bytes);
        self.stats.num_device_free += 1;
        if bytes as u64 >= self.settings.max_split_bytes {
            self.stats.oversize_segments.add(-1);
        }
        self.trace(TraceAction::SegmentFree, id);
        self.backend.free(addr);
        self.pools.get_mut(pool).segments -= 1;
        self.blocks.remove(id);
    }
}
