//! One number for the state of an allocator.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::CachingAllocator;
use crate::backend::CacheBackend;
use crate::blocks::BlockState;
use crate::ids::ProgramBlock;

impl<B: CacheBackend> CachingAllocator<B> {
    /// A hash of the blocks and of what decides between free ones. Two states with equal hashes
    /// give the same addresses to the same requests, if no segment was made or returned between
    /// them. `None` while garbage is collected, because ages then decide too. O(n log n) in blocks.
    pub fn state_print(&self) -> Option<u64> {
        if self.collects_garbage() {
            return None;
        }
        let mut blocks: Vec<_> = self.blocks.in_use().collect();
        // Numbers grow with each block; only their order matters.
        blocks.sort_unstable_by_key(|block| (block.order, block.addr));
        let mut hasher = DefaultHasher::new();
        for block in blocks {
            let state = match block.state {
                BlockState::Free => 0u8,
                BlockState::Allocated => 1,
                BlockState::PendingFree => 2,
                BlockState::Unmapped => 3,
            };
            (block.addr, block.bytes, block.requested_bytes, block.stream, state).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    /// The address of a block that the program holds.
    pub fn address_of(&self, block: ProgramBlock) -> u64 {
        self.blocks[block.0].addr
    }
}
