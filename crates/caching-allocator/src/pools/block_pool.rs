//! One pool: its free blocks, and the captures and graphs that use it.

use std::collections::BTreeSet;

use super::free_blocks::FreeBlocks;
use crate::blocks::AllocatorBlock;
use crate::ids::{BlockId, PoolId};
use crate::size_rules::BlockSizeClass;

/// Search order of blocks without memory: stream, address.
type UnmappedKey = (u64, u64, BlockId);

/// The free blocks of one pool, and the captures and graphs that use it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockPool {
    pub(crate) id: PoolId,
    /// Captures, graphs and `MemPool` objects that hold the pool.
    pub(super) users: u32,
    /// Active captures into the pool.
    pub(super) routes: u32,
    /// Segments, without expandable ones.
    pub(crate) segments: u32,
    /// Bytes of the mapped pages of expandable segments.
    pub(crate) mapped_bytes: u64,
    /// Its blocks are handed out whole.
    pub(crate) forbids_splits: bool,
    /// Its segments come from an allocator of the program, so they never expand.
    pub(crate) has_own_allocator: bool,
    /// How often a free block was looked up, by size class, while garbage is collected.
    pub(crate) lookups: [u64; 2],
    free: [FreeBlocks; 2],
    unmapped: [BTreeSet<UnmappedKey>; 2],
}

impl BlockPool {
    pub(super) fn new(id: PoolId) -> Self {
        Self { id, ..Self::default() }
    }

    /// The smallest free block of `stream` with at least `bytes`.
    pub(crate) fn best_fit(&self, size_class: BlockSizeClass, stream: u64, bytes: u64) -> Option<BlockId> {
        self.free[size_class as usize].best_fit(stream, bytes)
    }

    /// Free blocks of `stream` with at least `bytes`, the smallest first.
    pub(crate) fn candidates(
        &self,
        size_class: BlockSizeClass,
        stream: u64,
        bytes: u64,
    ) -> impl Iterator<Item = BlockId> + '_ {
        self.free[size_class as usize].at_least(stream, bytes)
    }

    /// Free blocks of `stream` with fewer than `bytes`, the largest first.
    pub(crate) fn smaller_blocks(
        &self,
        size_class: BlockSizeClass,
        stream: u64,
        bytes: u64,
    ) -> impl Iterator<Item = BlockId> + '_ {
        self.free[size_class as usize].below(stream, bytes)
    }

    pub(crate) fn insert(&mut self, id: BlockId, block: &AllocatorBlock) {
        self.free[block.size_class as usize].insert(block.stream, block.bytes, block.order, id);
    }

    /// Removes a free block, which must be unchanged since it was inserted.
    pub(crate) fn remove(&mut self, block: &AllocatorBlock) {
        let was_there = self.free[block.size_class as usize].remove(block.stream, block.bytes, block.order);
        debug_assert!(was_there, "a free block is in its pool");
    }

    /// All free blocks of a size class, in search order.
    pub(crate) fn free_blocks(&self, size_class: BlockSizeClass) -> impl Iterator<Item = BlockId> + '_ {
        self.free[size_class as usize].all()
    }

    /// Blocks without memory of `stream`, the lowest address first.
    pub(crate) fn unmapped_blocks(
        &self,
        size_class: BlockSizeClass,
        stream: u64,
    ) -> impl Iterator<Item = BlockId> + '_ {
        let from = (stream, 0, BlockId::LEAST);
        self.unmapped[size_class as usize]
            .range(from..)
            .take_while(move |(its_stream, ..)| *its_stream == stream)
            .map(|key| key.2)
    }

    pub(crate) fn insert_unmapped(&mut self, id: BlockId, block: &AllocatorBlock) {
        self.unmapped[block.size_class as usize].insert((block.stream, block.addr, id));
    }

    /// Removes a block without memory, which must be unchanged since it was inserted.
    pub(crate) fn remove_unmapped(&mut self, id: BlockId, block: &AllocatorBlock) {
        let was_there = self.unmapped[block.size_class as usize].remove(&(block.stream, block.addr, id));
        debug_assert!(was_there, "an unmapped block is in its pool");
    }

    pub(super) fn is_unused(&self) -> bool {
        self.users == 0 && self.routes == 0 && self.segments == 0 && self.mapped_bytes == 0
    }
}
