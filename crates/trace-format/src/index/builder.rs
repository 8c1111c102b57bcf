//! The writer's side of an INDEX: counting blocks and events.

use std::collections::HashSet;

use super::{Index, IndexTotals, IndexedBlock};
use crate::block::BlockKind;
use crate::event::{Event, NO_SEQ};
use crate::ids::ThreadId;

/// Builds INDEX payloads while blocks are written.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    totals: IndexTotals,
    threads: HashSet<ThreadId>,
    counts: Vec<u64>,
    metas: Vec<u64>,
    blocks: Vec<IndexedBlock>,
    previous: Option<u64>,
}

impl IndexBuilder {
    /// Counts a block that holds no events, of `len_bytes` with its header, at this offset in the
    /// file. `rows` is the number of definitions in it.
    pub fn add_block(&mut self, kind: BlockKind, offset: u64, len_bytes: usize, rows: usize) {
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

    /// Counts events of the next block. [`Self::add_counted_event_block`] then adds the block.
    pub fn add_events(&mut self, events: &[Event]) {
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
        // Events are grouped by thread: one lookup a group.
        for group in events.chunk_by(|one, other| one.thread == other.thread) {
            self.threads.insert(group[0].thread);
        }
    }

    /// Counts a block of events, of `len_bytes` with its header.
    pub fn add_event_block(&mut self, len_bytes: usize, events: &[Event]) {
        self.add_events(events);
        self.add_counted_event_block(len_bytes, events.len());
    }

    /// Adds a block of events that [`Self::add_events`] has counted.
    pub fn add_counted_event_block(&mut self, len_bytes: usize, rows: usize) {
        let kind = BlockKind::EVENTS;
        self.blocks.push(IndexedBlock { kind, len_bytes: len_bytes as u64, rows: rows as u64 });
    }

    /// Summary of everything so far.
    pub fn totals(&self) -> IndexTotals {
        let kinds = (0..=u8::MAX).zip(&self.counts).filter(|(_, count)| **count > 0);
        IndexTotals {
            threads: self.threads.len() as u64,
            kinds: kinds.map(|(kind, count)| (kind, *count)).collect(),
            ..self.totals.clone()
        }
    }

    /// Number of blocks since the last INDEX.
    pub fn pending(&self) -> usize {
        self.blocks.len()
    }

    /// The payload of an INDEX block that is written at `offset`, right after all counted blocks.
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
