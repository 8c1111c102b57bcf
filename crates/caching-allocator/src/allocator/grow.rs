//! Gets memory for a request that no free block can serve.

use super::CachingAllocator;
use super::search::ClassedRequest;
use crate::backend::{CacheBackend, DriverError, OUT_OF_MEMORY, TraceAction};
use crate::blocks::{AllocatorBlock, BlockState};
use crate::ids::{BlockId, PoolIndex};
use crate::rules::FallbackPools;
use crate::size_rules::segment_bytes;
use crate::stats::StatKind;

/// Ends a request at once, without a retry (`throw_on_cudamalloc_oom`).
const REJECTED: DriverError = DriverError(i32::MIN);

impl<B: CacheBackend> CachingAllocator<B> {
    /// A block for the request that is in no pool. It may come from another pool than asked for.
    #[cold]
    pub(super) fn obtain_block(&mut self, request: &mut ClassedRequest) -> Result<BlockId, DriverError> {
        let result = self.try_all_sources(request);
        if result == Err(REJECTED) {
            self.stats.num_oom_rejections += 1;
            return Err(OUT_OF_MEMORY);
        }
        result.map_err(|error| self.count_failure(error))
    }

    fn try_all_sources(&mut self, request: &mut ClassedRequest) -> Result<BlockId, DriverError> {
        self.collect_garbage();
        let result = self.add_memory(request);
        if result != Err(OUT_OF_MEMORY) {
            return result;
        }
        if self.rules.fallback_pools == FallbackPools::BeforeRelease
            && let Some(id) = self.take_from_fallback_pool(request)
        {
            return Ok(id);
        }
        if self.release_oversize_blocks(request) {
            let result = self.add_memory(request);
            if result != Err(OUT_OF_MEMORY) {
                return result;
            }
        }
        if !self.is_in_capture() {
            self.release_cached();
            self.stats.num_alloc_retries += 1;
            let result = self.add_memory(request);
            if result != Err(OUT_OF_MEMORY) {
                return result;
            }
        }
        if self.rules.fallback_pools == FallbackPools::AfterRetry
            && let Some(id) = self.take_from_fallback_pool(request)
        {
            return Ok(id);
        }
        Err(OUT_OF_MEMORY)
    }

    /// Adds a segment, or pages to an expandable one.
    fn add_memory(&mut self, request: &ClassedRequest) -> Result<BlockId, DriverError> {
        let segment = segment_bytes(request.bytes, self.settings.large_segment_bytes);
        // The limit is compared with a whole segment, also if pages suffice.
        let after = self.stats.current(StatKind::ReservedBytes).saturating_add(segment);
        if self.limit_bytes.is_some_and(|limit| after > limit) {
            return Err(OUT_OF_MEMORY);
        }
        if self.settings.throws_at_limit {
            let fraction = self.settings.memory_fraction.unwrap_or(1.0);
            if after > (fraction * self.backend.device_bytes() as f64) as u64 {
                return Err(REJECTED);
            }
        }
        let may_expand = request.pool == PoolIndex(0) || self.rules.private_pools_expand;
        if request.can_expand && may_expand {
            return self.add_pages(request);
        }
        let addr = self.backend.alloc(segment, self.pools.has_routes())?;
        let &ClassedRequest { size_class, stream, pool, .. } = request;
        self.pools.get_mut(pool).segments += 1;
        self.stats.add(StatKind::Segment, size_class, 1);
        self.stats.add(StatKind::ReservedBytes, size_class, segment as i64);
        self.stats.num_device_alloc += 1;
        if segment >= self.settings.max_split_bytes {
            self.stats.oversize_segments.add(1);
        }
        self.largest_segment_bytes = self.largest_segment_bytes.max(segment);
        let order = self.order_of_segment(addr, segment);
        let id = self.blocks.add_segment(AllocatorBlock {
            addr,
            bytes: segment,
            requested_bytes: 0,
            stream,
            pool,
            size_class,
            state: BlockState::Free,
            order,
            free_since: 0,
            arena: None,
            segment: 0,
            stream_uses: Vec::new(),
            pending_events: 0,
            previous: None,
            next: None,
        });
        self.trace(TraceAction::SegmentAlloc, id);
        Ok(id)
    }

    /// A free block of a pool that serves refused requests. Requests to a private pool get none.
    fn take_from_fallback_pool(&mut self, request: &mut ClassedRequest) -> Option<BlockId> {
        if request.pool != PoolIndex(0) {
            return None;
        }
        let can_expand = request.can_expand && self.rules.fallback_expands;
        for pool in self.pools.fallbacks() {
            let of_pool = ClassedRequest { pool, can_expand, ..*request };
            if let Some(id) = self.take_free_block(&of_pool) {
                *request = of_pool;
                return Some(id);
            }
        }
        None
    }
}
