//! The allocator: serves requests from the free blocks of its pools and from new segments.
//!
//! A request takes a free block (`search.rs`), or gets memory from the driver (`grow.rs`), which
//! may first need some back (`release.rs`). Expandable segments are in `expandable.rs`. Freed
//! blocks that other streams may still use wait for their events (`events.rs`). A replay may begin
//! with segments that exist already (`adopt.rs`).

mod adopt;
mod events;
mod expandable;
mod fork;
mod grow;
mod order;
mod release;
mod search;
mod state_print;
mod unused;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::address_hasher::AddressHasher;
use crate::arenas::ArenaTable;
use crate::backend::{AllocatorTraceEntry, CacheBackend, DriverError, OUT_OF_MEMORY, TraceAction};
use crate::blocks::{AllocatorBlock, BlockState, BlockTable};
use crate::ids::{BlockId, PoolId, ProgramBlock};
use crate::pending_frees::PendingFrees;
use crate::pools::{CaptureFilter, PoolTable};
use crate::rules::{EqualSizeOrder, Rules};
use crate::settings::Settings;
use crate::size_rules::{GRAIN_BYTES, block_bytes, should_split, size_class_of};
use crate::stats::{DeviceStats, StatKind};
pub use adopt::{ExistingPart, ExistingSegment, PartUse};
pub use fork::SettingsBeside;
use order::{FIRST_ORDER, NewPart};
use search::ClassedRequest;
pub use unused::UnusedBytes;

/// The allocator of one device.
#[derive(Debug)]
pub struct CachingAllocator<B> {
    /// The device, and the receiver of the trace.
    pub backend: B,
    settings: Settings,
    rules: Rules,
    blocks: BlockTable,
    /// Blocks of live tensors, by address.
    allocated: HashMap<u64, BlockId, BuildHasherDefault<AddressHasher>>,
    arenas: ArenaTable,
    pools: PoolTable,
    pending: PendingFrees,
    /// What the program requested for the blocks that it freed and that streams still use.
    pending_requested_bytes: u64,
    /// The statistics of `torch.cuda.memory_stats()`.
    pub stats: DeviceStats,
    /// Upper bound of reserved bytes, from `set_per_process_memory_fraction()`.
    limit_bytes: Option<u64>,
    /// The next number of a block or segment; see `order.rs`.
    next_order: u64,
    did_address_decide: bool,
    /// The largest segment so far, without expandable ones that were made here.
    largest_segment_bytes: u64,
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// An allocator without segments.
    pub fn new(backend: B, settings: Settings, rules: Rules) -> Self {
        let mut allocator = Self {
            backend,
            settings: Settings::default(),
            rules,
            blocks: BlockTable::default(),
            allocated: HashMap::default(),
            arenas: ArenaTable::default(),
            pools: PoolTable::default(),
            pending: PendingFrees::default(),
            pending_requested_bytes: 0,
            stats: DeviceStats::default(),
            limit_bytes: None,
            next_order: FIRST_ORDER,
            did_address_decide: false,
            largest_segment_bytes: 0,
        };
        if let Some(fraction) = settings.memory_fraction {
            allocator.set_memory_fraction(fraction);
        }
        allocator.settings = settings;
        allocator
    }

    /// Whether the addresses of segments decided between free blocks of equal size. With other
    /// addresses the program could then have got other blocks, and other segments.
    pub fn did_address_decide(&self) -> bool {
        self.did_address_decide
    }

    /// The settings in use.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the settings; existing segments stay. Like PyTorch, this changes no memory limit.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Allocates a block for a request on a stream and returns its address.
    pub fn alloc(&mut self, requested_bytes: u64, stream: u64) -> Result<u64, DriverError> {
        let ProgramBlock(id) = self.alloc_live(requested_bytes, stream)?;
        let addr = self.blocks[id].addr;
        self.allocated.insert(addr, id);
        Ok(addr)
    }

    /// [`alloc`](Self::alloc) without noting the address. Such a block is freed by
    /// [`free_live`](Self::free_live) or [`begin_free_live`](Self::begin_free_live).
    pub fn alloc_live(&mut self, requested_bytes: u64, stream: u64) -> Result<ProgramBlock, DriverError> {
        if !self.pending.is_empty() && !self.is_in_capture() {
            self.process_events();
        }
        let Some(bytes) = self.block_bytes(requested_bytes) else {
            return Err(self.count_failure(OUT_OF_MEMORY));
        };
        let pool = self.pools.pool_for_stream(stream, self.rules.routing);
        let can_expand = self.settings.expandable_segments && !self.pools.get(pool).has_own_allocator;
        let mut request = ClassedRequest {
            requested_bytes,
            bytes,
            size_class: size_class_of(bytes),
            stream,
            pool,
            can_expand,
        };
        let found = match self.take_free_block(&request) {
            Some(id) => id,
            None => self.obtain_block(&mut request)?,
        };
        self.allocate_from_block(found, &request);
        Ok(ProgramBlock(found))
    }

    /// Bytes of the block for a request; `None` if no device could serve it.
    pub fn block_bytes(&self, requested_bytes: u64) -> Option<u64> {
        self.block_bytes_with(&self.settings, requested_bytes)
    }

    fn block_bytes_with(&self, settings: &Settings, requested_bytes: u64) -> Option<u64> {
        let divisions = settings.roundup.divisions_for(requested_bytes);
        if divisions == 1 && self.rules.one_division_keeps_size && requested_bytes > GRAIN_BYTES {
            return block_bytes(requested_bytes, 1).map(|_| requested_bytes);
        }
        block_bytes(requested_bytes, divisions)
    }

    /// Frees a block. False if no live block has this address.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(id) = self.allocated.remove(&addr) else { return false };
        let is_immediate = self.blocks[id].stream_uses.is_empty();
        self.request_free(id, is_immediate);
        if is_immediate {
            self.free_block(id);
        } else if self.is_in_capture() {
            self.pending.defer(id);
        } else {
            self.record_stream_events(id);
        }
        true
    }

    /// Frees a block that no other stream uses.
    pub fn free_live(&mut self, block: ProgramBlock) {
        self.request_free(block.0, true);
        self.free_block(block.0);
    }

    /// Address and bytes of the segment of the live block at `addr`.
    pub fn segment_of(&self, addr: u64) -> Option<(u64, u64)> {
        self.allocated.get(&addr).map(|id| self.blocks.segment_of_block(*id))
    }

    /// Adds a user to this pool, which is created if needed: a `torch.cuda.MemPool` was made.
    /// With `has_own_allocator`, the pool never has expandable segments.
    pub fn add_pool_user(&mut self, id: PoolId, has_own_allocator: bool) {
        let pool = self.pools.add_user(id);
        self.pools.get_mut(pool).has_own_allocator |= has_own_allocator;
    }

    /// Hands out the blocks of this pool whole. No effect on an unknown pool.
    pub fn forbid_splits(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.find_mut(id) {
            pool.forbids_splits = true;
        }
    }

    /// Lets this pool serve requests that the driver refused, or stops that.
    pub fn set_fallback_pool(&mut self, id: PoolId, is_fallback: bool) {
        self.pools.set_fallback(id, is_fallback);
    }

    /// Sends allocations on streams that `filter` accepts to this pool. A graph may be being
    /// captured.
    pub fn begin_pool(&mut self, id: PoolId, filter: CaptureFilter) {
        self.pools.begin_capture(id, filter);
    }

    /// [`begin_pool`](Self::begin_pool) of `torch.cuda.use_mem_pool`, which captures no graph.
    pub fn begin_mem_pool(&mut self, id: PoolId, filter: CaptureFilter) {
        self.pools.begin_mem_pool(id, filter);
    }

    /// The capture of a graph begins or ends. Since torch 2.13 the program says so, apart from the
    /// pools.
    pub fn mark_capture(&mut self, begins: bool) {
        self.pools.mark_capture(begins);
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
    pub fn set_limit(&mut self, bytes: Option<u64>) {
        self.limit_bytes = bytes;
    }

    /// `set_per_process_memory_fraction()`: limits reserved bytes to a part of the device's memory.
    pub fn set_memory_fraction(&mut self, fraction: f64) {
        let is_limit = fraction < 1.0 || !self.rules.full_fraction_is_no_limit;
        let limit_bytes = (fraction.clamp(0.0, 1.0) * self.backend.device_bytes() as f64) as u64;
        self.limit_bytes = is_limit.then_some(limit_bytes);
    }

    /// Allocated and reserved bytes.
    pub fn held_bytes(&self) -> (u64, u64) {
        (self.stats.current(StatKind::AllocatedBytes), self.stats.current(StatKind::ReservedBytes))
    }

    /// Whether a capture forbids querying events and freeing segments.
    fn is_in_capture(&self) -> bool {
        if self.rules.pools_allow_release { self.pools.has_capture() } else { self.pools.has_routes() }
    }

    fn count_failure(&mut self, error: DriverError) -> DriverError {
        self.stats.num_ooms += u64::from(error == OUT_OF_MEMORY);
        error
    }

    /// Serves a request from a block that is in no pool; a large enough rest goes to the pool.
    fn allocate_from_block(&mut self, id: BlockId, request: &ClassedRequest) {
        let &ClassedRequest { requested_bytes, bytes, size_class, .. } = request;
        let (whole, was_split, is_expandable) = {
            let block = &self.blocks[id];
            (block.bytes, block.is_split(), block.arena.is_some())
        };
        let max_split_bytes = self.settings.max_split_bytes;
        let splits = !self.pools.get(request.pool).forbids_splits
            && should_split(size_class, bytes, whole - bytes, max_split_bytes, request.can_expand);
        if splits {
            let rest = self.split_block(id, bytes, NewPart::Before);
            self.insert_free(rest);
        }
        if !is_expandable {
            self.count_taken_part(request, whole, was_split, splits);
        }
        let block = &mut self.blocks[id];
        block.state = BlockState::Allocated;
        block.requested_bytes = requested_bytes;
        let bytes = block.bytes as i64;
        self.stats.add(StatKind::Allocation, size_class, 1);
        self.stats.add(StatKind::AllocatedBytes, size_class, bytes);
        self.stats.add(StatKind::Active, size_class, 1);
        self.stats.add(StatKind::ActiveBytes, size_class, bytes);
        self.stats.add(StatKind::RequestedBytes, size_class, requested_bytes as i64);
        if bytes as u64 >= self.settings.max_split_bytes {
            self.stats.oversize_allocations.add(1);
        }
        self.trace(TraceAction::Alloc, id);
    }

    /// Counts the inactive parts of a segment after a block of `whole` bytes was taken.
    fn count_taken_part(&mut self, request: &ClassedRequest, whole: u64, was_split: bool, splits: bool) {
        let &ClassedRequest { bytes, size_class, .. } = request;
        if splits && was_split {
            self.stats.add(StatKind::InactiveSplitBytes, size_class, -(bytes as i64));
        } else if splits {
            self.stats.add(StatKind::InactiveSplitBytes, size_class, (whole - bytes) as i64);
            self.stats.add(StatKind::InactiveSplit, size_class, 1);
        } else if was_split {
            self.stats.add(StatKind::InactiveSplitBytes, size_class, -(whole as i64));
            self.stats.add(StatKind::InactiveSplit, size_class, -1);
        }
    }

    /// Counts and traces the free of a live block, which is pending afterwards.
    fn request_free(&mut self, id: BlockId, is_immediate: bool) {
        let block = &mut self.blocks[id];
        let (size_class, bytes) = (block.size_class, block.bytes);
        block.state = BlockState::PendingFree;
        self.pending_requested_bytes += block.requested_bytes;
        self.stats.add(StatKind::Allocation, size_class, -1);
        self.stats.add(StatKind::AllocatedBytes, size_class, -(bytes as i64));
        if bytes >= self.settings.max_split_bytes {
            self.stats.oversize_allocations.add(-1);
        }
        self.trace(TraceAction::FreeRequested { is_immediate }, id);
    }

    /// Merges a block with its free neighbours and puts it into its pool.
    fn free_block(&mut self, id: BlockId) {
        let AllocatorBlock { size_class, bytes, requested_bytes, arena, .. } = self.blocks[id];
        self.pending_requested_bytes -= requested_bytes;
        let (first, mut merged_blocks, mut merged_bytes) = self.merge_with_neighbours(id, BlockState::Free);
        let block = &mut self.blocks[first];
        block.requested_bytes = 0;
        if block.is_split() {
            merged_blocks -= 1;
            merged_bytes -= block.bytes as i64;
        }
        self.insert_free(first);
        if arena.is_none() {
            self.stats.add(StatKind::InactiveSplit, size_class, -merged_blocks);
            self.stats.add(StatKind::InactiveSplitBytes, size_class, -merged_bytes);
        }
        self.stats.add(StatKind::Active, size_class, -1);
        self.stats.add(StatKind::ActiveBytes, size_class, -(bytes as i64));
        self.stats.add(StatKind::RequestedBytes, size_class, -(requested_bytes as i64));
    }

    /// Gives a block, which is in no pool, a new state and merges it with its neighbours of that
    /// state. Returns the block, and the count and bytes of these neighbours.
    fn merge_with_neighbours(&mut self, id: BlockId, state: BlockState) -> (BlockId, i64, i64) {
        let AllocatorBlock { previous, next, order, .. } = self.blocks[id];
        let (mut first, mut blocks, mut bytes) = (id, 0, 0);
        if let Some(next) = next.filter(|next| self.blocks[*next].state == state) {
            bytes += self.take_from_pool(next);
            blocks += 1;
            self.blocks.merge(id, next);
        }
        if let Some(previous) = previous.filter(|previous| self.blocks[*previous].state == state) {
            bytes += self.take_from_pool(previous);
            blocks += 1;
            self.blocks.merge(previous, id);
            first = previous;
        }
        self.blocks[first].state = state;
        if self.rules.equal_size_order == EqualSizeOrder::ByBlockNumber {
            self.blocks[first].order = order;
        }
        (first, blocks, bytes)
    }

    /// Puts a block into its pool as a free block.
    fn insert_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        let pool = self.pools.get_mut(block.pool);
        block.state = BlockState::Free;
        block.free_since = pool.lookups[block.size_class as usize];
        pool.insert(id, block);
    }

    /// Removes a free or unmapped block from its pool and returns its bytes.
    fn take_from_pool(&mut self, id: BlockId) -> i64 {
        let block = &self.blocks[id];
        let pool = self.pools.get_mut(block.pool);
        if block.state == BlockState::Unmapped {
            pool.remove_unmapped(id, block);
        } else {
            pool.remove(block);
        }
        block.bytes as i64
    }

    fn trace(&mut self, action: TraceAction, id: BlockId) {
        let block = &self.blocks[id];
        self.trace_range(action, id, block.addr, block.bytes, block.requested_bytes);
    }

    /// Traces an action on a range of the segment of a block.
    fn trace_range(&mut self, action: TraceAction, id: BlockId, addr: u64, bytes: u64, requested_bytes: u64) {
        let block = &self.blocks[id];
        let (allocated_bytes, reserved_bytes) = self.held_bytes();
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
