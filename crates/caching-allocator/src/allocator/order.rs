//! Which of several free blocks of equal size is taken first, by release.
//!
//! Each block has one number for its order. Where the address decides, it is the address. Where the
//! number of the segment decides, and the address within it, segments lie one behind the other in a
//! range of their own. Then the parts of a split block have ascending numbers in both cases, and
//! merging keeps the first one. Only the numbers of blocks follow other rules.

use super::CachingAllocator;
use crate::backend::CacheBackend;
use crate::ids::BlockId;
use crate::rules::EqualSizeOrder;

/// The first number of a segment or block. Expandable segments, and those that existed before, have
/// their addresses instead, which are smaller.
pub(super) const FIRST_ORDER: u64 = 1 << 62;

/// Which part of a split block is a new block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NewPart {
    Before,
    Behind,
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// The order of a new segment.
    pub(super) fn order_of_segment(&mut self, addr: u64, bytes: u64) -> u64 {
        match self.rules.equal_size_order {
            EqualSizeOrder::ByAddress => addr,
            EqualSizeOrder::ByBlockNumber => self.take_orders(1),
            EqualSizeOrder::BySegmentNumber => self.take_orders(bytes),
        }
    }

    /// The order of a new expandable segment. These have no segment number.
    pub(super) fn order_of_arena(&mut self, addr: u64) -> u64 {
        match self.rules.equal_size_order {
            EqualSizeOrder::ByBlockNumber => self.take_orders(1),
            EqualSizeOrder::ByAddress | EqualSizeOrder::BySegmentNumber => addr,
        }
    }

    /// Shortens a block to `bytes` and returns a block for the rest behind it.
    pub(super) fn split_block(&mut self, id: BlockId, bytes: u64, new_part: NewPart) -> BlockId {
        let rest = self.blocks.split(id, bytes);
        if self.rules.equal_size_order == EqualSizeOrder::ByBlockNumber {
            let new_block = if new_part == NewPart::Before { id } else { rest };
            self.blocks[new_block].order = self.take_orders(1);
        } else {
            self.blocks[rest].order += bytes;
        }
        rest
    }

    fn take_orders(&mut self, count: u64) -> u64 {
        self.next_order += count;
        self.next_order - count
    }
}
