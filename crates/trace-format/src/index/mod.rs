//! What a trace holds, without reading it.
//!
//! A trace may have a billion events, is only ever appended to, and its program may be killed at
//! any moment. So the writer puts an INDEX block, a summary of everything before it, after every
//! few blocks. The last block of a finished trace is a TAIL of fixed length with the distance to
//! the last INDEX.

use std::ops::Range;

use crate::block::BlockKind;
use crate::wire::{Cursor, WireError, put_varint};

mod builder;
mod tail;

pub use builder::IndexBuilder;
pub use tail::{IndexLocation, TAIL_BYTES, TraceTail, locate_index};

/// Summary of everything before an offset in a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IndexTotals {
    /// Events that have a `seq`.
    pub placed: u64,
    /// Events without a `seq`: calls that were in flight.
    pub unplaced: u64,
    /// Range of `seq`, from the lowest to one past the highest; empty without placed events.
    pub seqs: Range<u64>,
    /// Number of threads that have events.
    pub threads: u64,
    /// Number of code objects, Python nodes and native nodes.
    pub definitions: [u64; 3],
    /// Number of modules in the last MODULES block.
    pub modules: u64,
    /// Number of placed events by kind, ascending by kind.
    pub kinds: Vec<(u8, u64)>,
}

/// One block in the list of an INDEX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexedBlock {
    /// What the block holds.
    pub kind: BlockKind,
    /// Length of header and payload.
    pub len_bytes: u64,
    /// Events or definitions in it.
    pub rows: u64,
}

/// The payload of an INDEX block. Distances count backwards, so blocks may be put in front of a
/// trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// Bytes from the start of the previous INDEX to the start of this one; 0 if this is the first.
    pub previous_bytes: u64,
    /// Summary of everything before this block.
    pub totals: IndexTotals,
    /// Bytes from the start of each META block to the start of this one, first to last.
    pub metas_bytes: Vec<u64>,
    /// All blocks since the previous INDEX (or the file header), without it. The last one ends
    /// where this INDEX begins.
    pub blocks: Vec<IndexedBlock>,
}

impl Index {
    /// Encodes an INDEX payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let IndexTotals { placed, unplaced, seqs, threads, definitions, modules, kinds } = &self.totals;
        for number in [self.previous_bytes, *placed, *unplaced, seqs.start, seqs.end, *threads] {
            put_varint(&mut out, number);
        }
        for number in definitions.iter().chain([modules]) {
            put_varint(&mut out, *number);
        }
        put_varint(&mut out, kinds.len() as u64);
        for (kind, count) in kinds {
            out.push(*kind);
            put_varint(&mut out, *count);
        }
        put_varint(&mut out, self.metas_bytes.len() as u64);
        for meta in &self.metas_bytes {
            put_varint(&mut out, *meta);
        }
        put_varint(&mut out, self.blocks.len() as u64);
        for block in &self.blocks {
            out.push(block.kind.0);
            put_varint(&mut out, block.len_bytes);
            put_varint(&mut out, block.rows);
        }
        out
    }

    /// Decodes an INDEX payload.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(payload);
        let mut index = Self { previous_bytes: cursor.varint()?, ..Self::default() };
        let totals = &mut index.totals;
        totals.placed = cursor.varint()?;
        totals.unplaced = cursor.varint()?;
        totals.seqs = cursor.varint()?..cursor.varint()?;
        totals.threads = cursor.varint()?;
        for number in &mut totals.definitions {
            *number = cursor.varint()?;
        }
        totals.modules = cursor.varint()?;
        for _ in 0..cursor.count(2)? {
            totals.kinds.push((cursor.byte()?, cursor.varint()?));
        }
        for _ in 0..cursor.count(1)? {
            index.metas_bytes.push(cursor.varint()?);
        }
        for _ in 0..cursor.count(3)? {
            let kind = BlockKind(cursor.byte()?);
            index.blocks.push(IndexedBlock { kind, len_bytes: cursor.varint()?, rows: cursor.varint()? });
        }
        if cursor.remaining() > 0 { Err(WireError::Limit) } else { Ok(index) }
    }
}

#[cfg(test)]
mod tests;
