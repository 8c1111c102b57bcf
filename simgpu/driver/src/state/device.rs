//! One simulated device: its capacity and the blocks in its address window.
//!
//! What a program may hold is decided by bytes charged, not by the host's memory -> every charge goes through [`Device::charge`], and
//! a block knows where its bytes came from (directly, from a pool, from a graph), because one `cuMemFree` ends all three.

mod graph_memory;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pages::Pages;
use super::pool::{CHUNK, Pool};
use super::space::{AddressSpace, round_up};
use crate::rc::{Answer, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};
use graph_memory::GraphSpan;

/// Steps in which the device gives out memory.
const LARGE_STEP: u64 = 2 << 20;
const SMALL_STEP: u64 = 64 << 10;
const LARGE_FROM: u64 = 1 << 20;

/// Where a block's bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// Straight from the device.
    Direct,
    /// Managed memory: lies on the host until a kernel touches it, which never happens here -> not charged.
    Managed,
    /// A CUDA array; its handle is its address, and `cuMemFree` refuses it.
    Array,
    /// A mipmapped array, likewise.
    Mipmapped,
    /// A pool, by its handle.
    Pool(u64),
    /// An allocation node of a launched graph.
    Graph,
    /// Memory of another process, opened by its handle: closed by its own call.
    Ipc,
    /// Memory of another process or API, mapped here: freed like the program's own.
    Imported,
}

/// A live block that the program knows by its address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Bytes the program asked for.
    pub(crate) size: u64,
    /// Addresses it takes.
    pub(crate) span: u64,
    /// Bytes of the device that it takes by itself (a pool's and a graph's are charged to those).
    pub(crate) charge: u64,
    pub(crate) home: Home,
    /// The context that dies with the block's memory.
    pub(crate) context: u64,
    /// Never the same for two blocks of a process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
}

/// A new block's.
pub(crate) fn new_block_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    /// The part of `used` that no live allocation asked for: rounding, what pools hold, contexts.
    pub(crate) slack: u64,
    space: AddressSpace,
    pub(crate) blocks: BTreeMap<u64, Block>,
    pub(crate) pools: BTreeMap<u64, Pool>,
    pub(crate) default_pool: u64,
    pub(crate) current_pool: u64,
    graph_spans: BTreeMap<u64, GraphSpan>,
    /// Live and charged bytes of graph nodes, each with its high-water mark.
    pub(crate) graph_used: [u64; 2],
    pub(crate) graph_reserved: [u64; 2],
}

fn direct_span(size: u64) -> Option<u64> {
    round_up(size, if size >= LARGE_FROM { LARGE_STEP } else { SMALL_STEP })
}

impl Device {
    /// A device whose blocks lie in `base..base + len`.
    pub(crate) fn new(capacity: u64, base: u64, len: u64, default_pool: u64) -> Self {
        Self {
            capacity,
            used: 0,
            slack: 0,
            space: AddressSpace::new(base, len),
            blocks: BTreeMap::new(),
            pools: BTreeMap::from([(default_pool, Pool::default())]),
            default_pool,
            current_pool: default_pool,
            graph_spans: BTreeMap::new(),
            graph_used: [0; 2],
            graph_reserved: [0; 2],
        }
    }

    /// Whether an address lies in this device's window.
    pub(crate) fn owns(&self, addr: u64) -> bool {
        self.space.contains(addr)
    }

    /// The live block that contains an address.
    pub(crate) fn block_at(&self, addr: u64) -> Option<(u64, &Block)> {
        let (&start, block) = self.blocks.range(..=addr).next_back()?;
        (addr - start < block.size.max(1)).then_some((start, block))
    }

    /// Takes bytes from the capacity; pools give up what they hold unused before it fails.
    pub(crate) fn charge(&mut self, pages: &mut dyn Pages, bytes: u64) -> Answer {
        if bytes > self.capacity - self.used {
            self.shed_pools(pages, |_| 0);
        }
        if bytes > self.capacity - self.used {
            return Err(OUT_OF_MEMORY);
        }
        self.used += bytes;
        Ok(())
    }

    /// Gives bytes back to the capacity.
    pub(crate) fn refund(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    fn take_span(&mut self, pages: &mut dyn Pages, span: u64, charge: u64) -> Answer<u64> {
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

    /// Allocates a block that is not in a pool.
    pub(crate) fn alloc(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        home: Home,
        context: u64,
    ) -> Answer<u64> {
        let charged = !matches!(home, Home::Managed | Home::Ipc | Home::Imported);
        self.alloc_charged(pages, size, home, context, charged)
    }

    /// The same, for what may or may not have memory of this device behind it.
    pub(crate) fn alloc_charged(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        home: Home,
        context: u64,
        charged: bool,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let span = direct_span(size).ok_or(OUT_OF_MEMORY)?;
        let charge = if charged { span } else { 0 };
        let addr = self.take_span(pages, span, charge)?;
        self.slack += charge.saturating_sub(size);
        self.blocks.insert(addr, Block { size, span, charge, home, context, id: new_block_id() });
        Ok(addr)
    }

    /// Allocates a block from a pool of this device.
    pub(crate) fn alloc_from_pool(
        &mut self,
        pages: &mut dyn Pages,
        size: u64,
        pool: u64,
        context: u64,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let span = Pool::span(size).ok_or(OUT_OF_MEMORY)?;
        let open = self.pools.get_mut(&pool).filter(|pool| !pool.closed && !pool.imported);
        let cut = open.ok_or(INVALID_HANDLE)?.cut(span);
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
            Block { size, span, charge: 0, home: Home::Pool(pool), context, id: new_block_id() },
        );
        Ok(addr)
    }

    /// Frees the block that starts at `addr`; arrays are only freed by their own calls.
    pub(crate) fn free(&mut self, pages: &mut dyn Pages, addr: u64) -> Answer<Block> {
        let block = *self.blocks.get(&addr).ok_or(INVALID_VALUE)?;
        if matches!(block.home, Home::Array | Home::Mipmapped | Home::Ipc) {
            return Err(INVALID_VALUE);
        }
        self.release(pages, addr, block);
        Ok(block)
    }

    /// Frees a block of the given kind by the call that only that kind has: an array, or memory of another process.
    pub(crate) fn free_kind(&mut self, pages: &mut dyn Pages, handle: u64, kind: Home) -> Answer<Block> {
        let block = *self.blocks.get(&handle).filter(|block| block.home == kind).ok_or(INVALID_HANDLE)?;
        self.release(pages, handle, block);
        Ok(block)
    }

    fn release(&mut self, pages: &mut dyn Pages, addr: u64, block: Block) {
        self.blocks.remove(&addr);
        match block.home {
            Home::Direct | Home::Array | Home::Mipmapped | Home::Managed | Home::Ipc | Home::Imported => {
                self.drop_span(pages, addr, block.span, block.charge);
                self.slack -= block.charge.saturating_sub(block.size);
            }
            Home::Pool(handle) => {
                let Some(pool) = self.pools.get_mut(&handle) else { return };
                pool.put(addr, block.span);
                self.slack += block.size;
                if pool.closed {
                    self.bury_pool(pages, handle);
                }
            }
            Home::Graph => {
                self.graph_used[0] -= block.span;
                self.drop_graph_span_if_orphaned(pages, addr);
            }
        }
    }

    /// Frees every block of a context that dies, and says which; pools and graphs belong to the device and stay.
    pub(crate) fn free_context(&mut self, pages: &mut dyn Pages, context: u64) -> Vec<u64> {
        let dying: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| {
                block.context == context && !matches!(block.home, Home::Pool(_) | Home::Graph)
            })
            .map(|(&addr, &block)| (addr, block))
            .collect();
        for &(addr, block) in &dying {
            self.release(pages, addr, block);
        }
        dying.into_iter().map(|(addr, _)| addr).collect()
    }

    /// Gives unused chunks back, keeping in each pool what `keep` says; returns the bytes given back.
    pub(crate) fn shed_pools(&mut self, pages: &mut dyn Pages, keep: impl Fn(&Pool) -> u64) -> u64 {
        let chunks: Vec<_> = self.pools.values_mut().flat_map(|pool| pool.shed(keep(pool))).collect();
        chunks
            .into_iter()
            .map(|(base, len)| {
                self.drop_span(pages, base, len, len);
                self.slack -= len;
                len
            })
            .sum()
    }

    /// Trims one pool.
    pub(crate) fn trim_pool(&mut self, pages: &mut dyn Pages, pool: u64, keep: u64) -> Answer<u64> {
        let chunks = self.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?.shed(keep);
        Ok(chunks
            .into_iter()
            .map(|(base, len)| {
                self.drop_span(pages, base, len, len);
                self.slack -= len;
                len
            })
            .sum())
    }

    /// Removes a pool; blocks still in it keep their memory until they are freed, as they would on a device.
    pub(crate) fn destroy_pool(&mut self, pages: &mut dyn Pages, pool: u64) -> Answer<u64> {
        if pool == self.default_pool {
            return Err(INVALID_VALUE);
        }
        self.pools.get_mut(&pool).filter(|pool| !pool.closed).ok_or(INVALID_HANDLE)?.closed = true;
        if self.current_pool == pool {
            self.current_pool = self.default_pool;
        }
        Ok(self.bury_pool(pages, pool))
    }

    /// Takes what a closed pool no longer needs; the pool itself goes with its last block.
    fn bury_pool(&mut self, pages: &mut dyn Pages, pool: u64) -> u64 {
        let given = self.trim_pool(pages, pool, 0).unwrap_or(0);
        if self.pools.get(&pool).is_some_and(|pool| pool.reserved == 0) {
            self.pools.remove(&pool);
        }
        given
    }
}

#[cfg(test)]
mod tests;
