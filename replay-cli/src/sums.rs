//! What a finished trace holds, by the sums at its end.
//!
//! Constraint: reading a billion events takes half a minute, and who asks `info` waits. Consequence: where every file of a
//! finished trace has its sums, only those, the metadata and the end are read. They say what the recorder wrote; whether it is
//! all still sound, only reading it tells.

use std::fs::File;
use std::os::unix::fs::FileExt;

use gpumemtrace_format::block::{BLOCK_HEADER_BYTES, BlockHeader, BlockKind, FILE_HEADER_BYTES};
use gpumemtrace_format::index::{Index, Totals};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_format::{End, Meta};

use crate::pieces::{Piece, Pieces, places};

/// A trace, summed up.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Over all files. The number of threads is that of the part that has the most.
    pub(crate) totals: Totals,
    /// Whether there are several parts, so that threads may be more.
    pub(crate) has_parts: bool,
    /// Who was traced.
    pub(crate) meta: Meta,
    /// How it ended.
    pub(crate) end: Option<End>,
}

impl Sums {
    /// `None` where something has to be read to know.
    pub(crate) fn of(pieces: &Pieces) -> Option<Self> {
        let mut sums = Self { has_parts: pieces.files.len() > 1, ..Self::default() };
        for piece in &pieces.files {
            sums.add(piece)?;
        }
        sums.end.is_some().then_some(sums)
    }

    fn add(&mut self, piece: &Piece) -> Option<()> {
        let file = File::open(&piece.path).ok()?;
        let places = places(&file, piece.len_bytes)?;
        // Names stand in front of everything else, where no sum counts them.
        if self.meta.entries().is_empty() && kind_at(&file, FILE_HEADER_BYTES as u64)? != BlockKind::META {
            return None;
        }
        let at = places.index?;
        let index = match item_at(&file, at, piece.len_bytes)? {
            Item::Index(index) => index,
            _ => return None,
        };
        self.add_metas(&file, piece, at, &index)?;
        for item in TraceReader::resume(tail(&file, at, piece.len_bytes)?, at).skip(1) {
            match item {
                Item::Meta(meta) => self.meta.merge(meta),
                Item::End(end) => self.end = Some(end),
                Item::Tail(_) => {}
                _ => return None,
            }
        }
        self.add_totals(index.totals);
        Some(())
    }

    fn add_metas(&mut self, file: &File, piece: &Piece, at: u64, index: &Index) -> Option<()> {
        for back in &index.metas_bytes {
            match item_at(file, at.checked_sub(*back)?, piece.len_bytes)? {
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

fn kind_at(file: &File, at: u64) -> Option<BlockKind> {
    let mut header = [0; BLOCK_HEADER_BYTES];
    file.read_exact_at(&mut header, at).ok()?;
    BlockHeader::decode(&header).map(|header| header.kind)
}

fn item_at(file: &File, at: u64, len_bytes: u64) -> Option<Item> {
    TraceReader::resume(tail(file, at, len_bytes)?, at).next()
}

/// The file from here on.
fn tail(file: &File, at: u64, len_bytes: u64) -> Option<impl std::io::Read> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = file;
    file.seek(SeekFrom::Start(at)).ok()?;
    Some(file.take(len_bytes.checked_sub(at)?))
}
