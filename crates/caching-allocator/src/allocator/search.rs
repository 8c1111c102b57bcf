//! Finds the free block for a request.

use super::CachingAllocator;
use super::order::FIRST_ORDER;
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
        if !self.did_address_decide && self.has_address_order(id) {
            self.did_address_decide = self.does_address_decide(id, request);
        }
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

    /// Whether the block's address is its order among free blocks of equal size, or stands for a
    /// number that is unknown.
    fn has_address_order(&self, id: BlockId) -> bool {
        self.blocks[id].order < FIRST_ORDER
    }

    /// Whether the addresses of segments, which the driver chooses, made this block the first of
    /// several of its size.
    fn does_address_decide(&self, id: BlockId, request: &ClassedRequest) -> bool {
        let &ClassedRequest { size_class, stream, pool, .. } = request;
        let bytes = self.blocks[id].bytes;
        let candidates = self.pools.get(pool).candidates(size_class, stream, bytes);
        let others = candidates.take_while(|other| self.blocks[*other].bytes == bytes);
        others
            .filter(|other| *other != id && self.has_address_order(*other))
            .any(|other| !self.are_alike(id, other) && !self.blocks.are_in_one_segment(id, other))
    }

    /// Two segments that are one free block each. It does not matter which serves a request, unless
    /// garbage collection sees different ages.
    fn are_alike(&self, one: BlockId, other: BlockId) -> bool {
        let (one, other) = (&self.blocks[one], &self.blocks[other]);
        let are_whole = [one, other].iter().all(|block| !block.is_split() && block.arena.is_none());
        are_whole && (one.free_since == other.free_since || !self.collects_garbage())
    }

    /// Bytes of a block together with the addresses behind it that have no memory.
    fn grown_bytes(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let behind = block.next.map(|next| &self.blocks[next]);
        let behind = behind.filter(|behind| behind.state == BlockState::Unmapped);
        block.bytes + behind.map_or(0, |behind| behind.bytes)
    }
}
