//! The allocator: serves requests from the free blocks of its pools and from new segments.
//!
//! [`size_rules`](crate::size_rules) has the sizes, [`pools`](crate::pools) finds the block for a
//! request, and [`pending_frees`](crate::pending_frees) keeps freed blocks that other streams may
//! still use.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::address_hasher::AddressHasher;
use crate::backend::{AllocatorTraceEntry, CacheBackend, DriverError, OUT_OF_MEMORY, TraceAction};
use crate::blocks::{AllocatorBlock, BlockState, BlockTable};
use crate::ids::{BlockId, EventId, PoolId, PoolIndex};
use crate::pending_frees::PendingFrees;
use crate::pools::{CaptureFilter, PoolTable};
use crate::size_rules::{BlockSizeClass, block_bytes, segment_bytes, should_split, size_class_of};
use crate::stats::{DeviceStats, StatKind};

/// The allocator of one device.
#[derive(Debug)]
pub struct CachingAllocator<B> {
    /// The device, and the receiver of the trace.
    pub backend: B,
    blocks: BlockTable,
    /// Blocks of live tensors, by address.
    allocated: HashMap<u64, BlockId, BuildHasherDefault<AddressHasher>>,
    pools: PoolTable,
    pending: PendingFrees,
    /// The statistics of `torch.cuda.memory_stats()`.
    pub stats: DeviceStats,
    /// Upper bound of reserved bytes, from `set_per_process_memory_fraction()`.
    limit_bytes: Option<u64>,
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// An allocator without segments, with PyTorch's default settings.
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            blocks: BlockTable::default(),
            allocated: HashMap::default(),
            pools: PoolTable::default(),
            pending: PendingFrees::default(),
            stats: DeviceStats::default(),
            limit_bytes: None,
        }
    }

    /// Allocates a block for a request on a stream and returns its address.
    pub fn alloc(&mut self, requested_bytes: u64, stream: u64) -> Result<u64, DriverError> {
        if !self.pending.is_empty() && !self.pools.is_capturing() {
            self.process_events();
        }
        let Some(bytes) = block_bytes(requested_bytes) else { return Err(self.count_failure(OUT_OF_MEMORY)) };
        let (size_class, pool) = (size_class_of(bytes), self.pools.pool_for_stream(stream));
        let found = match self.pools.get(pool).best_fit(size_class, stream, bytes) {
            Some(id) => {
                self.pools.get_mut(pool).remove(id, &self.blocks[id]);
                id
            }
            None => self.add_segment(pool, size_class, stream, bytes)?,
        };
        Ok(self.allocate_from_block(found, bytes, requested_bytes))
    }

    /// Frees a block. False if no live block has this address.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(id) = self.allocated.remove(&addr) else { return false };
        let block = &mut self.blocks[id];
        let (size_class, bytes) = (block.size_class, block.bytes as i64);
        let is_immediate = block.stream_uses.is_empty();
        block.state = BlockState::PendingFree;
        self.stats.add(StatKind::Allocation, size_class, -1);
        self.stats.add(StatKind::AllocatedBytes, size_class, -bytes);
        self.trace(TraceAction::FreeRequested { is_immediate }, id);
        if is_immediate {
            self.free_block(id);
        } else if self.pools.is_capturing() {
            self.pending.defer(id);
        } else {
            self.record_stream_events(id);
        }
        true
    }

    /// Notes that another stream uses a block: it must not be reused before that stream is done.
    pub fn record_stream(&mut self, addr: u64, stream: u64) {
        if let Some(id) = self.allocated.get(&addr) {
            let block = &mut self.blocks[*id];
            if stream != block.stream && !block.stream_uses.contains(&stream) {
                block.stream_uses.push(stream);
            }
        }
    }

    /// Address and bytes of the segment of the live block at `addr`.
    pub fn segment_of(&self, addr: u64) -> Option<(u64, u64)> {
        self.allocated.get(&addr).map(|id| self.blocks.segment_of_block(*id))
    }

    /// Frees every segment that has no live block. Does nothing during a capture.
    pub fn release_cached(&mut self) {
        // A replay of the captured graph uses the blocks that it freed, and cuMemFree would
        // invalidate the capture.
        if self.pools.is_capturing() {
            return;
        }
        self.wait_for_all_events();
        for pool in self.pools.releasable() {
            let whole: Vec<BlockId> =
                self.pools.get(pool).free_blocks().filter(|id| !self.blocks[*id].is_split()).collect();
            for id in whole {
                self.release_segment(id);
            }
        }
        self.pools.remove_unused();
    }

    /// Sends allocations on streams that `filter` accepts to this pool.
    pub fn begin_pool(&mut self, id: PoolId, filter: CaptureFilter) {
        self.pools.begin_capture(id, filter);
    }

    /// Ends the oldest active capture into this pool.
    pub fn end_pool(&mut self, id: PoolId) {
        self.pools.end_capture(id);
    }

    /// Sends allocations on one stream to this pool.
    pub fn begin_stream(&mut self, stream: u64, id: PoolId) {
        self.pools.begin_stream_capture(stream, id);
    }

    /// Ends the capture that was begun for one stream.
    pub fn end_stream(&mut self, stream: u64) {
        self.pools.end_stream_capture(stream);
    }

    /// Removes a user from this pool: a graph was destroyed.
    pub fn release_pool(&mut self, id: PoolId) {
        self.pools.release_user(id);
    }

    /// Limits reserved bytes. Segments above the limit are kept.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit_bytes = Some(bytes);
    }

    /// Allocated and reserved bytes.
    pub fn held_bytes(&self) -> (u64, u64) {
        (self.stats.current(StatKind::AllocatedBytes), self.stats.current(StatKind::ReservedBytes))
    }

    fn count_failure(&mut self, error: DriverError) -> DriverError {
        self.stats.num_ooms += u64::from(error == OUT_OF_MEMORY);
        error
    }

    /// Allocates a segment, as one block that is in no pool yet.
    fn add_segment(
        &mut self,
        pool: PoolIndex,
        size_class: BlockSizeClass,
        stream: u64,
        bytes: u64,
    ) -> Result<BlockId, DriverError> {
        let segment = segment_bytes(bytes);
        let addr = match self.alloc_from_driver(segment) {
            Err(OUT_OF_MEMORY) if !self.pools.is_capturing() => {
                self.release_cached();
                self.stats.num_alloc_retries += 1;
                self.alloc_from_driver(segment)
            }
            result => result,
        };
        let addr = addr.map_err(|error| self.count_failure(error))?;
        self.pools.get_mut(pool).segments += 1;
        self.stats.add(StatKind::Segment, size_class, 1);
        self.stats.add(StatKind::ReservedBytes, size_class, segment as i64);
        self.stats.num_device_alloc += 1;
        let id = self.blocks.add(AllocatorBlock {
            addr,
            bytes: segment,
            requested_bytes: 0,
            stream,
            pool,
            size_class,
            state: BlockState::Free,
            stream_uses: Vec::new(),
            pending_events: 0,
            previous: None,
            next: None,
        });
        self.trace(TraceAction::SegmentAlloc, id);
        Ok(id)
    }

    fn alloc_from_driver(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let after = self.stats.current(StatKind::ReservedBytes).saturating_add(bytes);
        if self.limit_bytes.is_some_and(|limit| after > limit) {
            return Err(OUT_OF_MEMORY);
        }
        self.backend.alloc(bytes, self.pools.is_capturing())
    }

    /// Serves a request from a block that is in no pool; a large enough rest goes to the pool.
    fn allocate_from_block(&mut self, id: BlockId, bytes: u64, requested_bytes: u64) -> u64 {
        let (size_class, whole, was_split) = {
            let block = &self.blocks[id];
            (block.size_class, block.bytes, block.is_split())
        };
        if should_split(size_class, whole - bytes) {
            let rest = self.blocks.split(id, bytes);
            let rest_block = &self.blocks[rest];
            let rest_bytes = rest_block.bytes as i64;
            self.pools.get_mut(rest_block.pool).insert(rest, rest_block);
            if was_split {
                self.stats.add(StatKind::InactiveSplitBytes, size_class, -(bytes as i64));
            } else {
                self.stats.add(StatKind::InactiveSplitBytes, size_class, rest_bytes);
                self.stats.add(StatKind::InactiveSplit, size_class, 1);
            }
        } else if was_split {
            self.stats.add(StatKind::InactiveSplitBytes, size_class, -(whole as i64));
            self.stats.add(StatKind::InactiveSplit, size_class, -1);
        }
        let block = &mut self.blocks[id];
        block.state = BlockState::Allocated;
        block.requested_bytes = requested_bytes;
        let (addr, bytes) = (block.addr, block.bytes as i64);
        self.allocated.insert(addr, id);
        self.stats.add(StatKind::Allocation, size_class, 1);
        self.stats.add(StatKind::AllocatedBytes, size_class, bytes);
        self.stats.add(StatKind::Active, size_class, 1);
        self.stats.add(StatKind::ActiveBytes, size_class, bytes);
        self.stats.add(StatKind::RequestedBytes, size_class, requested_bytes as i64);
        self.trace(TraceAction::Alloc, id);
        addr
    }

    /// Merges a block with its free neighbours and puts it into its pool.
    fn free_block(&mut self, id: BlockId) {
        let AllocatorBlock { size_class, bytes, requested_bytes, previous, next, .. } = self.blocks[id];
        let (mut first, mut more_bytes, mut more_blocks) = (id, 0, 0);
        if let Some(next) = next.filter(|next| self.blocks[*next].state == BlockState::Free) {
            (more_bytes, more_blocks) = (more_bytes - self.take_from_pool(next), more_blocks - 1);
            self.blocks.merge(id, next);
        }
        if let Some(previous) = previous.filter(|previous| self.blocks[*previous].state == BlockState::Free) {
            (more_bytes, more_blocks) = (more_bytes - self.take_from_pool(previous), more_blocks - 1);
            self.blocks.merge(previous, id);
            first = previous;
        }
        let block = &mut self.blocks[first];
        block.state = BlockState::Free;
        block.requested_bytes = 0;
        let block = &self.blocks[first];
        self.pools.get_mut(block.pool).insert(first, block);
        if block.is_split() {
            (more_bytes, more_blocks) = (more_bytes + block.bytes as i64, more_blocks + 1);
        }
        self.stats.add(StatKind::InactiveSplit, size_class, more_blocks);
        self.stats.add(StatKind::InactiveSplitBytes, size_class, more_bytes);
        self.stats.add(StatKind::Active, size_class, -1);
        self.stats.add(StatKind::ActiveBytes, size_class, -(bytes as i64));
        self.stats.add(StatKind::RequestedBytes, size_class, -(requested_bytes as i64));
    }

    fn take_from_pool(&mut self, id: BlockId) -> i64 {
        let block = &self.blocks[id];
        self.pools.get_mut(block.pool).remove(id, block);
        block.bytes as i64
    }

    fn release_segment(&mut self, id: BlockId) {
        let bytes = self.take_from_pool(id);
        let AllocatorBlock { addr, size_class, pool, .. } = self.blocks[id];
        self.stats.add(StatKind::Segment, size_class, -1);
        self.stats.add(StatKind::ReservedBytes, size_class, -bytes);
        self.stats.num_device_free += 1;
        self.trace(TraceAction::SegmentFree, id);
        self.backend.free(addr);
        self.pools.get_mut(pool).segments -= 1;
        self.blocks.remove(id);
    }

    /// Records an event on each stream that used a block. If one fails, the block is deferred.
    fn record_stream_events(&mut self, id: BlockId) {
        for stream in std::mem::take(&mut self.blocks[id].stream_uses) {
            match self.backend.record_event(stream) {
                Ok(event) => {
                    self.pending.push(stream, event, id);
                    self.blocks[id].pending_events += 1;
                }
                // Retried later: a block that may be in use is never reused.
                Err(_) => self.blocks[id].stream_uses.push(stream),
            }
        }
        if !self.blocks[id].stream_uses.is_empty() {
            self.pending.defer(id);
        }
    }

    fn record_deferred_events(&mut self) {
        for id in self.pending.take_deferred() {
            self.record_stream_events(id);
        }
    }

    fn process_events(&mut self) {
        self.record_deferred_events();
        while let Some((event, id)) = self.pending.pop_done(|event| self.backend.is_event_done(event)) {
            self.complete_event(event, id);
        }
    }

    fn wait_for_all_events(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.record_deferred_events();
        while let Some((stream, event, id)) = self.pending.pop_any() {
            if !self.backend.wait_for_event(event) {
                // A block that may be in use is never reused.
                self.blocks[id].stream_uses.push(stream);
                self.pending.defer(id);
            }
            self.complete_event(event, id);
        }
    }

    fn complete_event(&mut self, event: EventId, id: BlockId) {
        self.backend.recycle_event(event);
        let block = &mut self.blocks[id];
        block.pending_events -= 1;
        if block.pending_events == 0 && block.stream_uses.is_empty() {
            self.trace(TraceAction::FreeCompleted, id);
            self.free_block(id);
        }
    }

    fn trace(&mut self, action: TraceAction, id: BlockId) {
        let block = &self.blocks[id];
        let (allocated_bytes, reserved_bytes) = self.held_bytes();
        let (addr, bytes, requested_bytes) = (block.addr, block.bytes, block.requested_bytes);
        let (stream, pool) = (block.stream, self.pools.get(block.pool).id);
        self.backend.trace(AllocatorTraceEntry {
            action,
            addr,
            bytes,
            requested_bytes,
            stream,
            pool,
            allocated_bytes,
            reserved_bytes,
        });
    }
}
