//! One simulated device: its capacity, and the blocks in its address window.
//!
//! Charged bytes limit allocations, not the host's memory, and only [`Device::charge`] takes
//! capacity. `cuMemFree` frees direct, pool and graph blocks, so each block stores its origin.

mod graph_memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::location::{Location, MemoryKind};
use super::pages::Pages;
use super::pool::{CHUNK, Pool};
use super::space::{AddressSpace, round_up};
use crate::result_code::{ApiResult, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use graph_memory::GraphSpan;

/// Size units of device memory.
const LARGE_STEP: u64 = 2 << 20;
const SMALL_STEP: u64 = 64 << 10;
const LARGE_FROM: u64 = 1 << 20;

/// The origin of a block's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockOrigin {
    /// Allocated directly from the device.
    Direct,
    /// Managed memory: it stays on the host until a kernel touches it, so it is not charged.
    Managed,
    /// A CUDA array: its handle is its address, and `cuMemFree` refuses it.
    Array,
    /// A mipmapped array, treated like an array.
    Mipmapped,
    /// A pool, by handle.
    Pool(u64),
    /// An allocation node of a launched graph.
    Graph,
    /// Memory of another process, opened by an IPC handle; it has its own close call.
    Ipc,
    /// Memory of another process or API, mapped here; freed like the program's own.
    Imported,
}

/// A live block, known to the program by its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceBlock {
    /// Bytes that the program requested.
    pub(crate) size: u64,
    /// Bytes of address space.
    pub(crate) span: u64,
    /// Device bytes charged for the block alone; pools and graphs are charged themselves.
    pub(crate) charge: u64,
    pub(crate) home: BlockOrigin,
    pub(crate) memory: MemoryKind,
    /// The context that frees the block when it ends.
    pub(crate) context: u64,
    /// Unique per process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
}

/// Returns a new, unique block id.
pub(crate) fn new_block_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    /// Bytes of `used` that no live allocation requested: rounding, pool reserves, contexts.
    pub(crate) slack: u64,
    /// Bytes of live managed memory, which is not charged.
    pub(crate) managed: u64,
    space: AddressSpace,
    pub(crate) blocks: BTreeMap<u64, DeviceBlock>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) default_pool: u64,
    pub(crate) current_pool: u64,
    graph_spans: BTreeMap<u64, GraphSpan>,
    /// Live bytes of graph nodes: current and high-water mark.
    pub(crate) graph_used: [u64; 2],
    pub(crate) graph_reserved: [u64; 2],
}

fn direct_span(size: u64) -> Option<u64> {
    round_up(size, if size >= LARGE_FROM { LARGE_STEP } else { SMALL_STEP })
}

impl Device {
    /// Creates device `ordinal` with its blocks in `base..base + len`.
    pub(crate) fn new(ordinal: u32, capacity: u64, base: u64, len: u64, default_pool: u64) -> Self {
        let mut device = Self::without_pools(capacity, base, len);
        device.pools.insert(default_pool, Pool::new(Location::of_device(ordinal)));
        (device.default_pool, device.current_pool) = (default_pool, default_pool);
        device
    }

    /// Creates a window of memory in `base..base + len`.
    pub(crate) fn without_pools(capacity: u64, base: u64, len: u64) -> Self {
        Self {
            capacity,
            used: 0,
            slack: 0,
            managed: 0,
            space: AddressSpace::new(base, len),
            blocks: BTreeMap::new(),
            pools: BTreeMap::new(),
            default_pool: 0,
            current_pool: 0,
            graph_spans: BTreeMap::new(),
            graph_used: [0; 2],
            graph_reserved: [0; 2],
        }
    }

    /// Returns whether an address lies in this device's window.
    pub(crate) fn owns(&self, addr: u64) -> bool {
        self.space.contains(addr)
    }

    /// Returns the live block that contains an address.
    pub(crate) fn block_at(&self, addr: u64) -> Option<(u64, &DeviceBlock)> {
        let (&start, block) = self.blocks.range(..=addr).next_back()?;
        (addr - start < block.size.max(1)).then_some((start, block))
    }

    /// Takes bytes of the capacity; pools release unused chunks before this fails.
    pub(crate) fn charge(&mut self, pages: &mut dyn Pages, bytes: u64) -> ApiResult {
        if bytes > self.capacity - self.used {
            self.release_pool_chunks(pages, |_| 0);
        }
        if bytes > self.capacity - self.used {
            return Err(OUT_OF_MEMORY);
        }
        self.used += bytes;
        Ok(())
    }

    /// Returns bytes to the capacity.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    fn take_span(&mut self, pages: &mut dyn Pages, span: u64, charge: u64) -> ApiResult<u64> {
        self.charge(pages, charge)?;
        let align = if span >= LARGE_STEP { LARGE_STEP } else { SMALL_STEP };
        if let Some(addr) = self.space.take(span, align) {
            if pages.commit(addr, span) {
                return Ok(addr);
            }
            self.space.give_back(addr, span);
        }
        self.refund(charge);
        Err(OUT_OF_MEMORY)
    }

    fn drop_span(&mut self, pages: &mut dyn Pages, addr: u64, span: u64, charge: u64) {
        pages.decommit(addr, span);
        self.space.give_back(addr, span);
        self.refund(charge);
    }

    /// Allocates a block outside any pool.
    pub(crate) fn alloc(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        home: BlockOrigin,
        context: u64,
    ) -> ApiResult<u64> {
        let charged = !matches!(home, BlockOrigin::Managed | BlockOrigin::Ipc | BlockOrigin::Imported);
        self.alloc_charged(pages, size, home, context, charged)
    }

    /// Allocates a block; `charge` may be 0 for memory that is not on this device.
    pub(crate) fn alloc_charged(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        home: BlockOrigin,
        context: u64,
        charged: bool,
    ) -> ApiResult<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let span = direct_span(size).ok_or(OUT_OF_MEMORY)?;
        let charge = if charged { span } else { 0 };
        let addr = self.take_span(pages, span, charge)?;
        self.slack += charge.saturating_sub(size);
        let memory = if home == BlockOrigin::Managed {
            self.managed += size;
            MemoryKind::Managed
        } else {
            MemoryKind::Device
        };
        self.blocks
            .insert(addr, DeviceBlock { size, span, charge, home, memory, context, id: new_block_id() });
        Ok(addr)
    }

    /// Allocates a block from a pool of this device.
    pub(crate) fn alloc_from_pool(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        pool: u64,
        context: u64,
    ) -> ApiResult<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let span = Pool::span(size).ok_or(OUT_OF_MEMORY)?;
        let open = self.pools.get_mut(&pool).filter(|pool| !pool.closed && !pool.imported);
        let open = open.ok_or(INVALID_HANDLE)?;
        let memory = open.location.memory();
        let cut = open.cut(span);
        let addr = if let Some(found) = cut {
            found
        } else {
            let exact = round_up(span, LARGE_STEP).ok_or(OUT_OF_MEMORY)?;
            let (len, base) = match self.take_span(pages, exact.max(CHUNK), exact.max(CHUNK)) {
                Ok(base) => (exact.max(CHUNK), base),
                Err(_) => (exact, self.take_span(pages, exact, exact)?),
            };
            self.slack += len;
            let pool = self.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?;
            pool.add_chunk(base, len);
            pool.cut(span).ok_or(OUT_OF_MEMORY)?
        };
        self.slack -= size;
        self.blocks.insert(
            addr,
            DeviceBlock {
                size,
                span,
                charge: 0,
                home: BlockOrigin::Pool(pool),
                memory,
                context,
                id: new_block_id(),
            },
        );
        Ok(addr)
    }

    /// Frees the block that starts at `addr`; fails for arrays, which have their own calls.
    pub(crate) fn free(&mut self, pages: &mut dyn Pages, addr: u64) -> ApiResult<DeviceBlock> {
        let block = *self.blocks.get(&addr).ok_or(INVALID_VALUE)?;
        if matches!(block.home, BlockOrigin::Array | BlockOrigin::Mipmapped | BlockOrigin::Ipc) {
            return Err(INVALID_VALUE);
        }
        self.release(pages, addr, block);
        Ok(block)
    }

    /// Frees a block of the given origin: arrays, and memory of other processes.
    pub(crate) fn free_kind(
        &mut self,
        pages: &mut dyn Pages,
        handle: u64,
        kind: BlockOrigin,
    ) -> ApiResult<DeviceBlock> {
        let block = *self.blocks.get(&handle).filter(|block| block.home == kind).ok_or(INVALID_HANDLE)?;
        self.release(pages, handle, block);
        Ok(block)
    }

    fn release(&mut self, pages: &mut dyn Pages, addr: u64, block: DeviceBlock) {
        self.blocks.remove(&addr);
        match block.home {
            BlockOrigin::Direct
            | BlockOrigin::Array
            | BlockOrigin::Mipmapped
            | BlockOrigin::Managed
            | BlockOrigin::Ipc
            | BlockOrigin::Imported => {
                self.drop_span(pages, addr, block.span, block.charge);
                self.slack -= block.charge.saturating_sub(block.size);
                if block.home == BlockOrigin::Managed {
                    self.managed -= block.size;
                }
            }
            BlockOrigin::Pool(handle) => {
                let Some(pool) = self.pools.get_mut(&handle) else { return };
                pool.put(addr, block.span);
                self.slack += block.size;
                if pool.closed {
                    self.drop_pool_if_empty(pages, handle);
                }
            }
            BlockOrigin::Graph => {
                self.graph_used[0] -= block.span;
                self.drop_graph_span_if_orphaned(pages, addr);
            }
        }
    }

    /// Frees and returns the blocks of a destroyed context; blocks of pools and graphs stay.
    pub(crate) fn free_context(&mut self, pages: &mut dyn Pages, context: u64) -> Vec<u64> {
        let dying: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| {
                block.context == context && !matches!(block.home, BlockOrigin::Pool(_) | BlockOrigin::Graph)
            })
            .map(|(&addr, &block)| (addr, block))
            .collect();
        for &(addr, block) in &dying {
            self.release(pages, addr, block);
        }
        dying.into_iter().map(|(addr, _)| addr).collect()
    }

    /// Releases empty chunks of all pools down to `keep`; returns the bytes released.
    pub(crate) fn release_pool_chunks(&mut self, pages: &mut dyn Pages, keep: impl Fn(&Pool) -> u64) -> u64 {
        let chunks: Vec<_> =
            self.pools.values_mut().flat_map(|pool| pool.release_empty_chunks(keep(pool))).collect();
        chunks
            .into_iter()
            .map(|(base, len)| {
                self.drop_span(pages, base, len, len);
                self.slack -= len;
                len
            })
            .sum()
    }

    /// Releases empty chunks of one pool (`cuMemPoolTrimTo`).
    pub(crate) fn trim_pool(&mut self, pages: &mut dyn Pages, pool: u64, keep: u64) -> ApiResult<u64> {
        let chunks = self.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?.release_empty_chunks(keep);
        Ok(chunks
            .into_iter()
            .map(|(base, len)| {
                self.drop_span(pages, base, len, len);
                self.slack -= len;
                len
            })
            .sum())
    }

    /// Destroys a pool; its live blocks keep their memory until they are freed.
    pub(crate) fn destroy_pool(&mut self, pages: &mut dyn Pages, pool: u64) -> ApiResult<u64> {
        if pool == self.default_pool {
            return Err(INVALID_VALUE);
        }
        self.pools.get_mut(&pool).filter(|pool| !pool.closed).ok_or(INVALID_HANDLE)?.closed = true;
        if self.current_pool == pool {
            self.current_pool = self.default_pool;
        }
        Ok(self.drop_pool_if_empty(pages, pool))
    }

    /// Releases chunks of a destroyed pool; its last block removes the pool.
    fn drop_pool_if_empty(&mut self, pages: &mut dyn Pages, pool: u64) -> u64 {
        let given = self.trim_pool(pages, pool, 0).unwrap_or(0);
        if self.pools.get(&pool).is_some_and(|pool| pool.reserved == 0) {
            self.pools.remove(&pool);
        }
        given
    }
}

#[cfg(test)]
mod tests;
