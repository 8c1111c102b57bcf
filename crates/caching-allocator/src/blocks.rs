//! The blocks of one device, and the order in which they lie in their segments.
//!
//! Every tensor creates and frees a block, so blocks live in one table that reuses its entries.
//! Blocks refer to each other by index; a segment is the doubly linked list of its blocks.

use std::ops::{Index, IndexMut};

use super::ids::{ArenaId, BlockId, PoolIndex};
use super::size_rules::BlockSizeClass;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockState {
    /// In its pool, available for a request.
    Free,
    /// Backs a live tensor.
    Allocated,
    /// Freed by the program, but another stream may still use it.
    PendingFree,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

/// A part of a segment.
#[derive(Clone, Debug)]
pub(crate) struct AllocatorBlock {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// Requested size; 0 while the block is free.
    pub(crate) requested_bytes: u64,
    /// The stream it was allocated for. Only requests on this stream reuse it.
    pub(crate) stream: u64,
    pub(crate) pool: PoolIndex,
    pub(crate) size_class: BlockSizeClass,
    pub(crate) state: BlockState,
    /// Order among free blocks of equal size; see `allocator/order.rs`.
    pub(crate) order: u64,
    /// Look-ups in the pool when the block became free, for its age.
    pub(crate) free_since: u64,
    /// The expandable segment that it belongs to, if any.
    pub(crate) arena: Option<ArenaId>,
    /// The number of its segment, expandable or not; set by [`BlockTable::add_segment`].
    pub(crate) segment: u64,
    /// Other streams that use it and have no event recorded yet.
    pub(crate) stream_uses: Vec<u64>,
    /// Recorded events that have not completed.
    pub(crate) pending_events: u32,
    /// The block before it in the segment.
    pub(crate) previous: Option<BlockId>,
    /// The block behind it in the segment.
    pub(crate) next: Option<BlockId>,
}

impl AllocatorBlock {
    /// True if it shares its segment with another block.
    pub(crate) fn is_split(&self) -> bool {
        self.previous.is_some() || self.next.is_some()
    }
}

/// All blocks of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockTable {
    table: Vec<AllocatorBlock>,
    unused: Vec<BlockId>,
    segments_added: u64,
}

impl BlockTable {
    /// Adds a segment, as one block.
    pub(crate) fn add_segment(&mut self, block: AllocatorBlock) -> BlockId {
        self.segments_added += 1;
        self.add(AllocatorBlock { segment: self.segments_added, ..block })
    }

    fn add(&mut self, block: AllocatorBlock) -> BlockId {
        if let Some(id) = self.unused.pop() {
            self[id] = block;
            return id;
        }
        // u32 suffices: 4 billion blocks of 512 bytes are 2 TiB, more than a device has.
        self.table.push(block);
        BlockId(self.table.len() as u32 - 1)
    }

    /// Shortens a block to `bytes` and returns a new block for the rest behind it.
    pub(crate) fn split(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let first = &mut self[id];
        let mut rest = AllocatorBlock { stream_uses: Vec::new(), ..first.clone() };
        rest.addr += bytes;
        rest.bytes -= bytes;
        rest.previous = Some(id);
        first.bytes = bytes;
        let behind = rest.next;
        let rest = self.add(rest);
        self[id].next = Some(rest);
        if let Some(behind) = behind {
            self[behind].previous = Some(rest);
        }
        rest
    }

    /// Extends `first` over its neighbour `second`, and removes `second`.
    pub(crate) fn merge(&mut self, first: BlockId, second: BlockId) {
        let (bytes, next) = (self[second].bytes, self[second].next);
        self[first].bytes += bytes;
        self[first].next = next;
        if let Some(next) = next {
            self[next].previous = Some(first);
        }
        self.remove(second);
    }

    /// All blocks, in arbitrary order. O(entries of the table).
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &AllocatorBlock> {
        let mut is_used = vec![true; self.table.len()];
        for id in &self.unused {
            is_used[id.0 as usize] = false;
        }
        self.table.iter().zip(is_used).filter(|(_, is_used)| *is_used).map(|(block, _)| block)
    }

    /// Releases the table entry of a block.
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.unused.push(id);
    }

    /// Whether two blocks belong to one segment.
    pub(crate) fn are_in_one_segment(&self, one: BlockId, other: BlockId) -> bool {
        self[one].segment == self[other].segment
    }

    /// Address and bytes of the segment that contains a block. O(blocks of the segment).
    pub(crate) fn segment_of_block(&self, id: BlockId) -> (u64, u64) {
        let mut first = id;
        while let Some(previous) = self[first].previous {
            first = previous;
        }
        let (addr, mut bytes, mut at) = (self[first].addr, self[first].bytes, self[first].next);
        while let Some(id) = at {
            bytes += self[id].bytes;
            at = self[id].next;
        }
        (addr, bytes)
    }
}

impl Index<BlockId> for BlockTable {
    type Output = AllocatorBlock;

    fn index(&self, id: BlockId) -> &AllocatorBlock {
        &self.table[id.0 as usize]
    }
}

impl IndexMut<BlockId> for BlockTable {
    fn index_mut(&mut self, id: BlockId) -> &mut AllocatorBlock {
        &mut self.table[id.0 as usize]
    }
}
