//! Reads the counts of a trace from its index, for `info`.
//!
//! Each part ends with an INDEX block that holds the counts of the file. If every part has one,
//! only the last INDEX, the metadata and the blocks behind them are read. With a ring file, the
//! blocks right before the INDEX are read too, because the ring may hold the same events. The index
//! says what the recorder wrote; only `info --verify` finds damage in the blocks.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use gpumemtrace_format::block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES};
use gpumemtrace_format::index::{Index, IndexBuilder, IndexTotals};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::ring::{RingImage, RingRecord};
use gpumemtrace_format::{End, Event, Meta, NO_SEQ};
use gpumemtrace_replay::ingest::TruncatedEnd;

use crate::trace::parts::{PartFile, TraceParts, locate_file_index};

/// The counts, metadata and end of a trace.
#[derive(Debug, Default)]
pub(crate) struct IndexSummary {
    /// Sums over all files; of threads, the highest number of any part.
    pub(crate) totals: IndexTotals,
    /// The number of threads is a lower bound: each part, and the blocks behind each INDEX, count
    /// their own.
    pub(crate) may_have_more_threads: bool,
    pub(crate) meta: Meta,
    pub(crate) end: Option<End>,
    /// Set if the file ends inside a block.
    pub(crate) cut: Option<TruncatedEnd>,
    has_parts: bool,
    /// Sequence numbers of the events that the ring may hold as well.
    seqs: HashSet<u64>,
}

impl IndexSummary {
    /// `None` if the index does not suffice and the events have to be read.
    pub(crate) fn read(parts: &TraceParts, ring: Option<&RingImage>) -> Option<Self> {
        let has_parts = parts.files.len() > 1;
        let mut summary = Self { has_parts, may_have_more_threads: has_parts, ..Self::default() };
        for part in &parts.files {
            summary.add_part(part, ring.is_some())?;
        }
        let of_this_trace = |ring: &&RingImage| {
            summary.meta.text("trace_id") == Some(&format!("{:032x}", u128::from_be_bytes(ring.trace_id)))
        };
        if let Some(ring) = ring.filter(of_this_trace) {
            summary.add_ring(ring);
        }
        Some(summary)
    }

    /// Adds the records of the ring that are in no block.
    fn add_ring(&mut self, ring: &RingImage) {
        let (mut events, mut more) = (Vec::new(), IndexTotals::default());
        for record in &ring.records {
            match record {
                RingRecord::Event(event) if event.seq != NO_SEQ && !self.seqs.contains(&event.seq) => {
                    events.push(*event);
                }
                RingRecord::Event(_) => {}
                RingRecord::Code(_) => more.definitions[0] += 1,
                RingRecord::PyNode(_) => more.definitions[1] += 1,
                RingRecord::NativeNode(_) => more.definitions[2] += 1,
            }
        }
        events.sort_by_key(|event| event.thread);
        self.add_totals(more);
        self.add_events(&events);
    }

    fn add_events(&mut self, events: &[Event]) {
        let mut builder = IndexBuilder::default();
        builder.add_event_block(0, events);
        let more = builder.totals();
        self.may_have_more_threads |= more.threads > 0;
        self.add_totals(more);
    }

    fn add_part(&mut self, part: &PartFile, has_ring: bool) -> Option<()> {
        let file = part.open().ok()?;
        // Files that are no trace, or of another version, get their error from the full reader.
        TraceReader::new(read_from(&file, 0, part.len_bytes)?).ok()?;
        let places = locate_file_index(&file, part.len_bytes)?;
        // A symbolized copy starts with NAMES blocks, which no index counts.
        if self.meta.entries().is_empty() && read_kind_at(&file, FILE_HEADER_BYTES as u64)? != BlockKind::META
        {
            return None;
        }
        let Some(at) = places.index else {
            if !self.has_parts {
                return None;
            }
            // A part that the recorder has just started.
            let at = FILE_HEADER_BYTES as u64;
            let mut items = TraceReader::resume(read_from(&file, at, part.len_bytes)?, at);
            return items.try_for_each(|item| self.add_item(item));
        };
        let Item::Index(index) = read_item_at(&file, at, part.len_bytes)? else { return None };
        self.add_metas(&file, part, at, &index)?;
        if has_ring {
            self.remember_seqs(&file, at, &index)?;
        }
        self.add_totals(index.totals);
        for item in TraceReader::resume(read_from(&file, at, part.len_bytes)?, at).skip(1) {
            self.add_item(item)?;
        }
        Some(())
    }

    /// Remembers the events of the blocks that the INDEX at `at` covers, which lie right before it.
    fn remember_seqs(&mut self, file: &File, at: u64, index: &Index) -> Option<()> {
        let begin = at.checked_sub(index.blocks.iter().map(|block| block.len_bytes).sum())?;
        for item in TraceReader::resume(read_from(file, begin, at)?, begin).events_only() {
            match item {
                Item::Events(events) => self.seqs.extend(events.iter().map(|event| event.seq)),
                Item::Skipped(_) => {}
                _ => return None,
            }
        }
        Some(())
    }

    /// Adds a block behind the last INDEX.
    fn add_item(&mut self, item: Item) -> Option<()> {
        let mut more = IndexTotals::default();
        match item {
            Item::Meta(meta) => self.meta.merge(meta),
            Item::End(end) => self.end = Some(end),
            Item::Events(events) => {
                self.seqs.extend(events.iter().map(|event| event.seq));
                self.add_events(&events);
            }
            Item::Codes(codes) => more.definitions[0] = codes.len() as u64,
            Item::PyNodes(nodes) => more.definitions[1] = nodes.len() as u64,
            Item::NativeNodes(nodes) => more.definitions[2] = nodes.len() as u64,
            Item::Modules(modules) => more.modules = modules.len() as u64,
            Item::TruncatedBlock { offset, kind } => self.cut = Some(TruncatedEnd { offset, kind }),
            Item::Tail(_) | Item::FrameLinks(_) => {}
            _ => return None,
        }
        self.add_totals(more);
        Some(())
    }

    fn add_metas(&mut self, file: &File, part: &PartFile, at: u64, index: &Index) -> Option<()> {
        for back in &index.metas_bytes {
            match read_item_at(file, at.checked_sub(*back)?, part.len_bytes)? {
                Item::Meta(meta) => self.meta.merge(meta),
                _ => return None,
            }
        }
        Some(())
    }

    fn add_totals(&mut self, more: IndexTotals) {
        let totals = &mut self.totals;
        totals.placed += more.placed;
        totals.unplaced += more.unplaced;
        totals.seqs.end = totals.seqs.end.max(more.seqs.end);
        totals.threads = totals.threads.max(more.threads);
        for (number, more) in totals.definitions.iter_mut().zip(more.definitions) {
            *number += more;
        }
        totals.modules = totals.modules.max(more.modules);
        for (kind, count) in more.kinds {
            match totals.kinds.binary_search_by_key(&kind, |(kind, _)| *kind) {
                Ok(at) => totals.kinds[at].1 += count,
                Err(at) => totals.kinds.insert(at, (kind, count)),
            }
        }
    }
}

fn read_kind_at(file: &File, at: u64) -> Option<BlockKind> {
    let mut header = [0; BLOCK_HEADER_BYTES];
    file.read_exact_at(&mut header, at).ok()?;
    BlockHeader::decode(&header).map(|header| header.kind)
}

fn read_item_at(file: &File, at: u64, len_bytes: u64) -> Option<Item> {
    TraceReader::resume(read_from(file, at, len_bytes)?, at).next()
}

/// A reader of the file from `at` to `len_bytes`.
fn read_from(file: &File, at: u64, len_bytes: u64) -> Option<impl std::io::Read> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::Start(at)).ok()?;
    Some(file.take(len_bytes.checked_sub(at)?))
}
