//! A caching allocator for one device: the rules of PyTorch's native one, over any [`Host`].
//!
//! Constraint: `cuMemAlloc` and `cuMemFree` wait for the whole device, and a program makes thousands of tensors a second.
//! Consequence: memory comes from the driver in segments, which are kept. A free block serves the stream it was made for
//! again at once (a stream does things in order), another stream never; [`sizes`] says how large things are, [`pools`] which
//! block serves, [`waiting`] when a block that other streams used is free.
//!
//! When the driver has no more: segments without tensors go back, and the driver is asked once more.

mod blocks;
mod host;
mod pending_frees;
mod pools;
mod size_rules;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use blocks::{Block, BlockId, Blocks, State};
pub(crate) use host::{Entry, EventId, Failure, Host, Step};
use pending_frees::Waiting;
pub(crate) use pools::{Filter, PoolId};
use pools::{PoolIndex, Pools};
use size_rules::{Half, block_bytes, half_of, is_worth_splitting, segment_bytes};
use stats::{Figure, Stats};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Failure = Failure(2);

/// The allocator of a device.
#[derive(Debug)]
pub(crate) struct Cache<H> {
    pub(crate) host: H,
    blocks: Blocks,
    /// Blocks of tensors.
    allocated: HashMap<u64, BlockId, BuildHasherDefault<AddressHasher>>,
    pools: Pools,
    waiting: Waiting,
    pub(crate) stats: Stats,
    /// More than this is not taken from the driver.
    limit_bytes: Option<u64>,
}

impl<H: Host> Cache<H> {
    pub(crate) fn new(host: H) -> Self {
        Self {
            host,
            blocks: Blocks::default(),
            allocated: HashMap::default(),
            pools: Pools::default(),
            waiting: Waiting::default(),
            stats: Stats::default(),
            limit_bytes: None,
        }
    }

    /// A block for a request on a stream: its address.
    pub(crate) fn alloc(&mut self, requested_bytes: u64, stream: u64) -> Result<u64, Failure> {
        if !self.waiting.is_empty() && !self.pools.is_capturing() {
            self.collect_done();
        }
        let Some(bytes) = block_bytes(requested_bytes) else { return Err(self.refuse(OUT_OF_MEMORY)) };
        let (half, pool) = (half_of(bytes), self.pools.route(stream));
        let found = match self.pools.get(pool).best_fit(half, stream, bytes) {
            Some(id) => {
                self.pools.get_mut(pool).take(id, &self.blocks[id]);
                id
            }
            None => self.add_segment(pool, half, stream, bytes)?,
        };
        Ok(self.hand_out(found, bytes, requested_bytes))
    }

    /// Takes a block back. False if it is none of ours.
    pub(crate) fn free(&mut self, addr: u64) -> bool {
        let Some(id) = self.allocated.remove(&addr) else { return false };
        let block = &mut self.blocks[id];
        let (half, bytes) = (block.half, block.bytes as i64);
        let at_once = block.used_by.is_empty();
        block.state = State::Waiting;
        self.stats.add(Figure::Allocation, half, -1);
        self.stats.add(Figure::AllocatedBytes, half, -bytes);
        self.tell(Step::Free { at_once }, id);
        if at_once {
            self.put_back(id);
        } else if self.pools.is_capturing() {
            self.waiting.put_apart(id);
        } else {
            self.wait_for_streams(id);
        }
        true
    }

    /// Another stream uses a block too: it is not free before that one is done.
    pub(crate) fn record_stream(&mut self, addr: u64, stream: u64) {
        if let Some(id) = self.allocated.get(&addr) {
            let block = &mut self.blocks[*id];
            if stream != block.stream && !block.used_by.contains(&stream) {
                block.used_by.push(stream);
            }
        }
    }

    /// The segment that a tensor's block lies in: its address and bytes.
    pub(crate) fn segment_of(&self, addr: u64) -> Option<(u64, u64)> {
        self.allocated.get(&addr).map(|id| self.blocks.segment(*id))
    }

    /// Gives every segment without tensors back to the driver.
    pub(crate) fn release_cached(&mut self) {
        // What a graph that is being captured has freed is in use when it is replayed, and the driver must not be asked.
        if self.pools.is_capturing() {
            return;
        }
        self.wait_for_all();
        for pool in self.pools.releasable() {
            let whole: Vec<BlockId> =
                self.pools.get(pool).free_blocks().filter(|id| !self.blocks[*id].is_split()).collect();
            for id in whole {
                self.release_segment(id);
            }
        }
        self.pools.forget_empty();
    }

    /// What the filter knows belongs to this pool from now on.
    pub(crate) fn begin_pool(&mut self, id: PoolId, filter: Filter) {
        self.pools.begin(id, filter);
    }

    /// No longer.
    pub(crate) fn end_pool(&mut self, id: PoolId) {
        self.pools.end(id);
    }

    /// What is made for a stream belongs to this pool from now on.
    pub(crate) fn begin_stream(&mut self, stream: u64, id: PoolId) {
        self.pools.begin_stream(stream, id);
    }

    /// No longer.
    pub(crate) fn end_stream(&mut self, stream: u64) {
        self.pools.end_stream(stream);
    }

    /// A graph lets go of its pool.
    pub(crate) fn release_pool(&mut self, id: PoolId) {
        self.pools.release(id);
    }

    /// More than so many bytes are not taken from the driver.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit_bytes = Some(bytes);
    }

    /// Bytes of tensors and of segments.
    pub(crate) fn held_bytes(&self) -> (u64, u64) {
        (self.stats.current(Figure::AllocatedBytes), self.stats.current(Figure::ReservedBytes))
    }

    fn refuse(&mut self, failure: Failure) -> Failure {
        self.stats.num_ooms += u64::from(failure == OUT_OF_MEMORY);
        failure
    }

    /// A new segment, as one block that is in no pool yet.
    fn add_segment(
        &mut self,
        pool: PoolIndex,
        half: Half,
        stream: u64,
        bytes: u64,
    ) -> Result<BlockId, Failure> {
        let segment = segment_bytes(bytes);
        let addr = match self.ask_driver(segment) {
            Err(OUT_OF_MEMORY) if !self.pools.is_capturing() => {
                self.release_cached();
                self.stats.num_alloc_retries += 1;
                self.ask_driver(segment)
            }
            answer => answer,
        };
        let addr = addr.map_err(|failure| self.refuse(failure))?;
        self.pools.get_mut(pool).segments += 1;
        self.stats.add(Figure::Segment, half, 1);
        self.stats.add(Figure::ReservedBytes, half, segment as i64);
        self.stats.num_device_alloc += 1;
        let id = self.blocks.add(Block {
            addr,
            bytes: segment,
            requested_bytes: 0,
            stream,
            pool,
            half,
            state: State::Free,
            used_by: Vec::new(),
            pending_events: 0,
            previous: None,
            next: None,
        });
        self.tell(Step::SegmentAlloc, id);
        Ok(id)
    }

    fn ask_driver(&mut self, bytes: u64) -> Result<u64, Failure> {
        let after = self.stats.current(Figure::ReservedBytes).saturating_add(bytes);
        if self.limit_bytes.is_some_and(|limit| after > limit) {
            return Err(OUT_OF_MEMORY);
        }
        self.host.alloc(bytes, self.pools.is_capturing())
    }

    /// Makes a block that is in no pool a tensor's; what it has too much stays free.
    fn hand_out(&mut self, id: BlockId, bytes: u64, requested_bytes: u64) -> u64 {
        let (half, whole, was_split) = {
            let block = &self.blocks[id];
            (block.half, block.bytes, block.is_split())
        };
        if is_worth_splitting(half, whole - bytes) {
            let rest = self.blocks.split(id, bytes);
            let rest_block = &self.blocks[rest];
            let rest_bytes = rest_block.bytes as i64;
            self.pools.get_mut(rest_block.pool).put(rest, rest_block);
            if was_split {
                self.stats.add(Figure::InactiveSplitBytes, half, -(bytes as i64));
            } else {
                self.stats.add(Figure::InactiveSplitBytes, half, rest_bytes);
                self.stats.add(Figure::InactiveSplit, half, 1);
            }
        } else if was_split {
            self.stats.add(Figure::InactiveSplitBytes, half, -(whole as i64));
            self.stats.add(Figure::InactiveSplit, half, -1);
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested_bytes = requested_bytes;
        let (addr, bytes) = (block.addr, block.bytes as i64);
        self.allocated.insert(addr, id);
        self.stats.add(Figure::Allocation, half, 1);
        self.stats.add(Figure::AllocatedBytes, half, bytes);
        self.stats.add(Figure::Active, half, 1);
        self.stats.add(Figure::ActiveBytes, half, bytes);
        self.stats.add(Figure::RequestedBytes, half, requested_bytes as i64);
        self.tell(Step::Alloc, id);
        addr
    }

    /// A block that nobody uses any more joins its free neighbours and its pool.
    fn put_back(&mut self, id: BlockId) {
        let Block { half, bytes, requested_bytes, previous, next, .. } = self.blocks[id];
        let (mut first, mut more_bytes, mut more_blocks) = (id, 0, 0);
        if let Some(next) = next.filter(|next| self.blocks[*next].state == State::Free) {
            (more_bytes, more_blocks) = (more_bytes - self.take_from_pool(next), more_blocks - 1);
            self.blocks.merge(id, next);
        }
        if let Some(previous) = previous.filter(|previous| self.blocks[*previous].state == State::Free) {
            (more_bytes, more_blocks) = (more_bytes - self.take_from_pool(previous), more_blocks - 1);
            self.blocks.merge(previous, id);
            first = previous;
        }
        let block = &mut self.blocks[first];
        block.state = State::Free;
        block.requested_bytes = 0;
        let block = &self.blocks[first];
        self.pools.get_mut(block.pool).put(first, block);
        if block.is_split() {
            (more_bytes, more_blocks) = (more_bytes + block.bytes as i64, more_blocks + 1);
        }
        self.stats.add(Figure::InactiveSplit, half, more_blocks);
        self.stats.add(Figure::InactiveSplitBytes, half, more_bytes);
        self.stats.add(Figure::Active, half, -1);
        self.stats.add(Figure::ActiveBytes, half, -(bytes as i64));
        self.stats.add(Figure::RequestedBytes, half, -(requested_bytes as i64));
    }

    fn take_from_pool(&mut self, id: BlockId) -> i64 {
        let block = &self.blocks[id];
        self.pools.get_mut(block.pool).take(id, block);
        block.bytes as i64
    }

    fn release_segment(&mut self, id: BlockId) {
        let bytes = self.take_from_pool(id);
        let Block { addr, half, pool, .. } = self.blocks[id];
        self.stats.add(Figure::Segment, half, -1);
        self.stats.add(Figure::ReservedBytes, half, -bytes);
        self.stats.num_device_free += 1;
        self.tell(Step::SegmentFree, id);
        self.host.free(addr);
        self.pools.get_mut(pool).segments -= 1;
        self.blocks.remove(id);
    }

    /// Records an event on each stream that used a block.
    fn wait_for_streams(&mut self, id: BlockId) {
        for stream in std::mem::take(&mut self.blocks[id].used_by) {
            match self.host.mark(stream) {
                Ok(event) => {
                    self.waiting.push(stream, event, id);
                    self.blocks[id].pending_events += 1;
                }
                // Tried again: a block that may be in use is never handed out.
                Err(_) => self.blocks[id].used_by.push(stream),
            }
        }
        if !self.blocks[id].used_by.is_empty() {
            self.waiting.put_apart(id);
        }
    }

    fn record_late_events(&mut self) {
        for id in self.waiting.take_apart() {
            self.wait_for_streams(id);
        }
    }

    fn collect_done(&mut self) {
        self.record_late_events();
        while let Some((event, id)) = self.waiting.next_done(|event| self.host.is_done(event)) {
            self.event_is_done(event, id);
        }
    }

    fn wait_for_all(&mut self) {
        self.stats.num_sync_all_streams += 1;
        self.record_late_events();
        while let Some((stream, event, id)) = self.waiting.next() {
            if !self.host.wait(event) {
                // A block that may be in use is never handed out.
                self.blocks[id].used_by.push(stream);
                self.waiting.put_apart(id);
            }
            self.event_is_done(event, id);
        }
    }

    fn event_is_done(&mut self, event: EventId, id: BlockId) {
        self.host.forget(event);
        let block = &mut self.blocks[id];
        block.pending_events -= 1;
        if block.pending_events == 0 && block.used_by.is_empty() {
            self.tell(Step::FreeCompleted, id);
            self.put_back(id);
        }
    }

    fn tell(&mut self, step: Step, id: BlockId) {
        let block = &self.blocks[id];
        let (allocated_bytes, reserved_bytes) = self.held_bytes();
        let (addr, bytes, requested_bytes) = (block.addr, block.bytes, block.requested_bytes);
        let (stream, pool) = (block.stream, self.pools.get(block.pool).id);
        self.host.tell(Entry {
            step,
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

/// Addresses are multiples of 512, and otherwise as good as random.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // Fibonacci hashing: the table takes its bits from both ends.
        self.0 = (self.0 ^ value >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}
