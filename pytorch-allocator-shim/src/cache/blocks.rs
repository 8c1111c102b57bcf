//! The blocks of a device: what each is, and which lie beside it in its segment.
//!
//! Constraint: each tensor makes and unmakes one. Consequence: they are entries of one table that are used again, and name
//! each other by their place in it; a segment is the chain of its blocks.

use std::ops::{Index, IndexMut};

use super::pools::PoolIndex;
use super::size_rules::Half;

/// Place of a block in the table. Used again when the block has gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(u32);

impl BlockId {
    /// Before all others in any order.
    pub(crate) const LEAST: Self = Self(0);
}

/// What is being done with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// In its pool, to be handed out.
    Free,
    /// A tensor's.
    Allocated,
    /// Given back, while another stream may still use it.
    Waiting,
}

/// A piece of a segment.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// What was asked for; 0 while it is free.
    pub(crate) requested_bytes: u64,
    /// The stream it was made for: only that one gets it again.
    pub(crate) stream: u64,
    pub(crate) pool: PoolIndex,
    pub(crate) half: Half,
    pub(crate) state: State,
    /// Other streams that use it.
    pub(crate) used_by: Vec<u64>,
    /// Of those, how many are not known to be done with it.
    pub(crate) pending_events: u32,
    /// Neighbours in the segment.
    pub(crate) previous: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
}

impl Block {
    /// True if it is not a whole segment.
    pub(crate) fn is_split(&self) -> bool {
        self.previous.is_some() || self.next.is_some()
    }
}

/// All blocks of a device.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    table: Vec<Block>,
    spare: Vec<BlockId>,
}

impl Blocks {
    /// Puts a block into the table.
    pub(crate) fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.spare.pop() {
            self[id] = block;
            return id;
        }
        // 4 billion blocks of 512 bytes are more than any device has.
        self.table.push(block);
        BlockId(self.table.len() as u32 - 1)
    }

    /// Cuts a block in two; the second is new, and lies behind it.
    pub(crate) fn split(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let first = &mut self[id];
        let mut rest = Block { used_by: Vec::new(), ..first.clone() };
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

    /// Makes a block and the one behind it one; the second is no more.
    pub(crate) fn merge(&mut self, first: BlockId, second: BlockId) {
        let (bytes, next) = (self[second].bytes, self[second].next);
        self[first].bytes += bytes;
        self[first].next = next;
        if let Some(next) = next {
            self[next].previous = Some(first);
        }
        self.remove(second);
    }

    /// Forgets a block.
    pub(crate) fn remove(&mut self, id: BlockId) {
        self.spare.push(id);
    }

    /// The segment that a block lies in: its address and bytes.
    pub(crate) fn segment(&self, id: BlockId) -> (u64, u64) {
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

impl Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.table[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.table[id.0 as usize]
    }
}
