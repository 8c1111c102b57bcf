//! What a trace holds, without reading it.
//!
//! Constraint: a trace may have a billion events, and whoever asks what is in it wants to know now; but it is only ever appended
//! to, and its program may be killed at any moment. Consequence: every few blocks the writer sums up all that came before in a
//! block of its own, and the last block of a finished trace, of fixed length, says where the last sum is. Distances count
//! backwards, so what is put in front of a trace, or behind it, does not make them wrong.

use std::collections::HashSet;
use std::ops::Range;

use crate::block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES, encode_raw_block};
use crate::event::{Event, NO_SEQ, ThreadId};
use crate::wire::{Cursor, WireError, put_varint};

/// Bytes of a TAIL block.
pub const TAIL_BYTES: usize = BLOCK_HEADER_BYTES + 16;

/// Sums over everything before a place in a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Events that have a place in the order.
    pub placed: u64,
    /// Calls that had not returned.
    pub unplaced: u64,
    /// Places in the order, from the lowest to beyond the highest; empty if there is no placed event.
    pub seqs: Range<u64>,
    /// Threads that have events.
    pub threads: u64,
    /// Definitions of code objects, Python frames and native frames.
    pub definitions: [u64; 3],
    /// Modules, as they were told last.
    pub modules: u64,
    /// Number of placed events by kind, ascending.
    pub kinds: Vec<(u8, u64)>,
}

/// A block, as an INDEX tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexedBlock {
    /// What.
    pub kind: BlockKind,
    /// Header and payload.
    pub len_bytes: u64,
    /// Events or definitions.
    pub rows: u64,
}

/// The payload of an INDEX block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// From the start of the INDEX before to the start of this one; 0 if this is the first.
    pub previous_bytes: u64,
    /// Everything before this block.
    pub totals: Totals,
    /// From the start of each META block to the start of this one, first to last.
    pub metas_bytes: Vec<u64>,
    /// All blocks since the INDEX before (or the file header), that one not included; the last ends where this one begins.
    pub blocks: Vec<IndexedBlock>,
}

/// Keeps the sums while blocks are written.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    totals: Totals,
    threads: HashSet<ThreadId>,
    counts: Vec<u64>,
    metas: Vec<u64>,
    blocks: Vec<IndexedBlock>,
    previous: Option<u64>,
}

impl IndexBuilder {
    /// A block of anything but events; its offset in the file, header and payload, definitions in it.
    pub fn note(&mut self, kind: BlockKind, offset: u64, len_bytes: usize, rows: usize) {
        let rows = rows as u64;
        match kind {
            BlockKind::META => self.metas.push(offset),
            BlockKind::CODES => self.totals.definitions[0] += rows,
            BlockKind::PY_NODES => self.totals.definitions[1] += rows,
            BlockKind::NATIVE_NODES => self.totals.definitions[2] += rows,
            BlockKind::MODULES => self.totals.modules = rows,
            _ => {}
        }
        self.blocks.push(IndexedBlock { kind, len_bytes: len_bytes as u64, rows });
    }

    /// Events of the next block that is noted.
    pub fn note_rows(&mut self, events: &[Event]) {
        self.counts.resize(256, 0);
        for event in events {
            if event.seq == NO_SEQ {
                self.totals.unplaced += 1;
                continue;
            }
            self.counts[usize::from(event.kind.0)] += 1;
            let seqs = &mut self.totals.seqs;
            let is_first = seqs.is_empty();
            seqs.start = if is_first { event.seq } else { seqs.start.min(event.seq) };
            seqs.end = seqs.end.max(event.seq + 1);
            self.totals.placed += 1;
        }
        // Rows are grouped by thread.
        for group in events.chunk_by(|one, other| one.thread == other.thread) {
            self.threads.insert(group[0].thread);
        }
    }

    /// A block of events.
    pub fn note_events(&mut self, kind: BlockKind, len_bytes: usize, events: &[Event]) {
        self.note_rows(events);
        self.note_block_of_rows(kind, len_bytes, events.len());
    }

    /// A block of events that were noted already.
    pub fn note_block_of_rows(&mut self, kind: BlockKind, len_bytes: usize, rows: usize) {
        self.blocks.push(IndexedBlock { kind, len_bytes: len_bytes as u64, rows: rows as u64 });
    }

    /// The sums so far.
    pub fn totals(&self) -> Totals {
        let kinds = (0..=u8::MAX).zip(&self.counts).filter(|(_, count)| **count > 0);
        Totals {
            threads: self.threads.len() as u64,
            kinds: kinds.map(|(kind, count)| (kind, *count)).collect(),
            ..self.totals.clone()
        }
    }

    /// Blocks since the last INDEX.
    pub fn pending(&self) -> usize {
        self.blocks.len()
    }

    /// The payload of an INDEX block that is written at `offset`, right behind all that was noted.
    pub fn encode(&mut self, offset: u64) -> Vec<u8> {
        let index = Index {
            previous_bytes: self.previous.map_or(0, |previous| offset - previous),
            totals: self.totals(),
            metas_bytes: self.metas.iter().map(|meta| offset - meta).collect(),
            blocks: std::mem::take(&mut self.blocks),
        };
        self.previous = Some(offset);
        index.encode()
    }
}

impl Index {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let Totals { placed, unplaced, seqs, threads, definitions, modules, kinds } = &self.totals;
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

    /// Reads a payload.
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

/// Where the last block of a finished trace says that others are: bytes from their start to its own start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// The last INDEX.
    pub index_bytes: u64,
    /// END; 0 if there is none (in all parts of a trace but the last).
    pub end_bytes: u64,
}

impl Tail {
    /// The whole block.
    pub fn encode_block(self) -> Vec<u8> {
        let payload = [self.index_bytes.to_le_bytes(), self.end_bytes.to_le_bytes()].concat();
        encode_raw_block(BlockKind::TAIL, &payload)
    }

    /// The same for a TAIL that stands so many bytes further on.
    #[must_use]
    pub fn moved_by(self, bytes: u64) -> Self {
        let moved = |distance: u64| if distance == 0 { 0 } else { distance.saturating_add(bytes) };
        Self { index_bytes: moved(self.index_bytes), end_bytes: moved(self.end_bytes) }
    }

    /// Reads a payload.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let Ok([index, end]) = <[[u8; 8]; 2]>::try_from(payload.as_chunks::<8>().0) else {
            return Err(WireError::Limit);
        };
        if payload.len() > 16 {
            return Err(WireError::Limit);
        }
        Ok(Self { index_bytes: u64::from_le_bytes(index), end_bytes: u64::from_le_bytes(end) })
    }

    /// The one of a file that ends with these bytes.
    pub fn of_last_bytes(bytes: &[u8; TAIL_BYTES]) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
        let header = BlockHeader::decode(header)?;
        let is_tail = header.kind == BlockKind::TAIL && header.stored_len == payload.len();
        Self::decode(&header.unpack(payload).ok().filter(|_| is_tail)?).ok()
    }
}

/// Where the last INDEX of a file is, where its END, and where its last whole block ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Places {
    /// Length of the file without a block at its end that is not whole.
    pub whole_bytes: u64,
    /// Start of the last INDEX block.
    pub index: Option<u64>,
    /// Start of the END block.
    pub end: Option<u64>,
}

/// Finds the last INDEX of a file of `len_bytes`: by its TAIL, else from header to header. `read(offset, buffer)` fills the buffer and
/// says whether it could. `None` where the headers do not lead from one to the next up to the end: the file is damaged, and has to
/// be read whole.
pub fn locate(len_bytes: u64, mut read: impl FnMut(u64, &mut [u8]) -> bool) -> Option<Places> {
    let mut last = [0; TAIL_BYTES];
    if let Some(at) = len_bytes.checked_sub(TAIL_BYTES as u64)
        && read(at, &mut last)
        && let Some(tail) = Tail::of_last_bytes(&last)
    {
        let back = |bytes: u64| at.checked_sub(bytes).filter(|_| bytes > 0);
        let index = Some(back(tail.index_bytes)?);
        return Some(Places { whole_bytes: len_bytes, index, end: back(tail.end_bytes) });
    }
    let (mut at, mut places) = (FILE_HEADER_BYTES as u64, Places::default());
    while at < len_bytes {
        let mut header = [0; BLOCK_HEADER_BYTES];
        let rest = len_bytes - at;
        if rest < BLOCK_HEADER_BYTES as u64 {
            // Cut inside a header, as a killed program leaves it.
            break;
        }
        if !read(at, &mut header) {
            return None;
        }
        let header = BlockHeader::decode(&header)?;
        let total = (BLOCK_HEADER_BYTES + header.stored_len) as u64;
        if total > rest {
            break;
        }
        match header.kind {
            BlockKind::INDEX => places.index = Some(at),
            BlockKind::END => places.end = Some(at),
            _ => {}
        }
        at += total;
    }
    Some(Places { whole_bytes: at.min(len_bytes), ..places })
}

#[cfg(test)]
mod tests;
