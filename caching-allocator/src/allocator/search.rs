//! Finds the free block for a request.

use super::CachingAllocator;
use crate::backend::CacheBackend;
use crate::blocks::BlockState;
use crate::ids::{BlockId, PoolIndex};
use crate::size_rules::BlockSizeClass;

/// One request, with what follows from its size and stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassedRequest {
    /// Bytes that the program requested.
    pub(super) requested_bytes: u64,
    /// Bytes of the block.
    pub(super) bytes: u64,
    pub(super) size_class: BlockSizeClass,
    pub(super) stream: u64,
    pub(super) pool: PoolIndex,
    /// An expandable segment may serve it.
    pub(super) can_expand: bool,
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// Takes the best free block out of the pool; `None` if no block may serve the request.
    pub(super) fn take_free_block(&mut self, request: &ClassedRequest) -> Option<BlockId> {
        if self.collects_garbage() {
            self.pools.get_mut(request.pool).lookups[request.size_class as usize] += 1;
        }
        let id = self.find_free_block(request)?;
        let block = &self.blocks[id];
        self.pools.get_mut(request.pool).remove(block);
        Some(id)
    }

    fn find_free_block(&self, request: &ClassedRequest) -> Option<BlockId> {
        let &ClassedRequest { bytes, size_class, stream, pool, can_expand, .. } = request;
        let mut id = self.pools.get(pool).best_fit(size_class, stream, bytes)?;
        if self.blocks[id].arena.is_some() {
            id = self.find_beside_expandable(request, can_expand)?;
        }
        let found_bytes = self.blocks[id].bytes;
        let max_split_bytes = self.settings.max_split_bytes;
        let is_too_large = if bytes < max_split_bytes {
            found_bytes >= max_split_bytes
        } else {
            found_bytes - bytes >= self.settings.max_non_split_rounding_bytes
        };
        (!is_too_large).then_some(id)
    }

    /// The block for a request if the best fit is in an expandable segment.
    #[cold]
    fn find_beside_expandable(&self, request: &ClassedRequest, can_expand: bool) -> Option<BlockId> {
        let &ClassedRequest { bytes, size_class, stream, pool, .. } = request;
        let mut candidates = self.pools.get(pool).candidates(size_class, stream, bytes);
        if !can_expand {
            return candidates.find(|id| self.blocks[*id].arena.is_none());
        }
        // The part of a segment that can grow counts with the size it can grow to, so that smaller
        // gaps are filled first.
        let mut id = candidates.next()?;
        for next in candidates {
            if self.blocks[id].arena.is_none() || self.grown_bytes(next) >= self.grown_bytes(id) {
                break;
            }
            id = next;
        }
        Some(id)
    }

    /// Bytes of a block together with the addresses behind it that have no memory.
    fn grown_bytes(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let behind = block.next.map(|next| &self.blocks[next]);
        let behind = behind.filter(|behind| behind.state == BlockState::Unmapped);
        block.bytes + behind.map_or(0, |behind| behind.bytes)
    }
}
