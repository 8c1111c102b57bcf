//! What a trace holds, by the sums in it.
//!
//! Constraint: reading a billion events takes half a minute, and who asks `info` waits. Consequence: where every file of a
//! trace has sums, only the last of them, the metadata, and what comes behind are read; of a program that was killed or still
//! runs also the blocks right before, because what is in the ring may be in them too. Sums say what the recorder wrote; whether
//! it is all still sound, only reading it tells.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use gpumemtrace_format::block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES};
use gpumemtrace_format::index::{Index, IndexBuilder, Totals};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::ring::{Record, RingImage};
use gpumemtrace_format::{End, Event, Meta, NO_SEQ};
use gpumemtrace_replay::input::Cut;

use crate::trace::parts::{PartFile, TraceParts, locate_index};

/// A trace, summed up.
#[derive(Debug, Default)]
pub(crate) struct IndexSummary {
    /// Over all files. The number of threads is that of the part that has the most.
    pub(crate) totals: Totals,
    /// Whether there may be more threads: they are counted in each part, and behind its sums, apart.
    pub(crate) may_have_more_threads: bool,
    /// Who was traced.
    pub(crate) meta: Meta,
    /// How it ended.
    pub(crate) end: Option<End>,
    /// The file ends inside a block.
    pub(crate) cut: Option<Cut>,
    has_parts: bool,
    /// Places in the order that what the ring holds may have too.
    seqs: HashSet<u64>,
}

impl IndexSummary {
    /// `None` where something has to be read to know.
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

    /// What the ring holds and no block has.
    fn add_ring(&mut self, ring: &RingImage) {
        let (mut events, mut more) = (Vec::new(), Totals::default());
        for record in &ring.records {
            match record {
                Record::Event(event) if event.seq != NO_SEQ && !self.seqs.contains(&event.seq) => {
                    events.push(*event);
                }
                Record::Event(_) => {}
                Record::Code(_) => more.definitions[0] += 1,
                Record::PyNode(_) => more.definitions[1] += 1,
                Record::NativeNode(_) => more.definitions[2] += 1,
            }
        }
        events.sort_by_key(|event| event.thread);
        self.add_totals(more);
        self.add_events(&events);
    }

    fn add_events(&mut self, events: &[Event]) {
        let mut builder = IndexBuilder::default();
        builder.note_events(BlockKind::ROWS, 0, events);
        let more = builder.totals();
        self.may_have_more_threads |= more.threads > 0;
        self.add_totals(more);
    }

    fn add_part(&mut self, part: &PartFile, has_ring: bool) -> Option<()> {
        let file = File::open(&part.path).ok()?;
        // What does not begin like a trace of this version is the reader's to refuse.
        TraceReader::new(read_from(&file, 0, part.len_bytes)?).ok()?;
        let places = locate_index(&file, part.len_bytes)?;
        // Names stand in front of everything else, where no sum counts them.
        if self.meta.entries().is_empty() && read_kind_at(&file, FILE_HEADER_BYTES as u64)? != BlockKind::META
        {
            return None;
        }
        let Some(at) = places.index else {
            if !self.has_parts {
                return None;
            }
            // A part that has just been begun.
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

    /// The blocks of one INDEX, which are the last ones before it.
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

    /// What no sum counts yet.
    fn add_item(&mut self, item: Item) -> Option<()> {
        let mut more = Totals::default();
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
            Item::Cut { offset, kind } => self.cut = Some(Cut { offset, kind }),
            Item::Tail(_) | Item::Links(_) => {}
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

    fn add_totals(&mut self, more: Totals) {
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

/// The file from here on.
fn read_from(file: &File, at: u64, len_bytes: u64) -> Option<impl std::io::Read> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::Start(at)).ok()?;
    Some(file.take(len_bytes.checked_sub(at)?))
}
