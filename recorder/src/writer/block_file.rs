//! The trace on disk: blocks, and sums of them.
//!
//! Constraint: a process may be killed between any two writes, and a disk may fill up in the middle of one. Consequence: a file
//! is only appended to, at our own offset, whole blocks at a time; what did not get whole into it is cut off again.
//! Every few blocks a sum goes with them, so that nobody has to read it all to know what it holds.
//!
//! Where the trace is written in parts, what events refer to stands in a file of its own: parts may be dropped, it may not.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::{BlockKind, Packer, encode_block, file_header};
use gpumemtrace_format::index::{IndexBuilder, Tail};
use gpumemtrace_format::rows::Encoder;
use gpumemtrace_format::{End, Event, Meta};

use crate::platform;
use crate::platform::guarded_file::GuardedFile;
use crate::writer::rotation::Rotation;

const ZSTD_LEVEL: i32 = 3;
/// Times are told in units of 2^10 ns, as PyTorch's own history tells them in microseconds: an event of PyTorch takes about as
/// long, what is below is the clock's noise, and noise is what cannot be packed. The order of events is no matter of time.
const TIME_SHIFT: u8 = 10;
/// Blocks from one sum to the next: what a reader in a hurry must unpack at most, and a thousandth of the file.
const BLOCKS_PER_INDEX: usize = 16;

/// One file.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: GuardedFile,
    path: PathBuf,
    /// The first bytes, without which it is no trace.
    head: Vec<u8>,
    /// Somebody has cut it: no last block may lead a reader past the gap, to sums over what it held before.
    is_cut: bool,
    /// Length up to the last whole block.
    written: u64,
    /// Blocks that are not in the file yet.
    pending: Vec<u8>,
    index: IndexBuilder,
    events: u64,
    encoder: Encoder,
    packer: Packer,
}

impl BlockFile {
    /// Takes over an empty file, which is `path` from now on, and says in it what it is.
    pub(crate) fn begin(file: File, path: &Path, meta: &Meta) -> io::Result<Self> {
        let file = GuardedFile::adopt(file, path)?;
        let mut this = Self {
            file,
            path: path.to_owned(),
            head: Vec::new(),
            is_cut: false,
            written: 0,
            pending: file_header().to_vec(),
            index: IndexBuilder::default(),
            events: 0,
            encoder: Encoder::new(TIME_SHIFT),
            packer: Packer::new(ZSTD_LEVEL),
        };
        this.add_meta(meta);
        this.head.clone_from(&this.pending);
        this.flush()?;
        Ok(this)
    }

    fn add(&mut self, kind: BlockKind, payload: &[u8], rows: usize) {
        let block = encode_block(kind, payload, ZSTD_LEVEL);
        self.index.note(kind, self.end(), block.len(), rows);
        self.pending.extend(block);
    }

    pub(crate) fn add_meta(&mut self, meta: &Meta) {
        self.add(BlockKind::META, &meta.encode(), 0);
    }

    fn push_events(&mut self, events: &[Event]) {
        self.encoder.push(events);
        self.index.note_rows(events);
        self.events += events.len() as u64;
    }

    fn end_block(&mut self) {
        let count = self.encoder.rows();
        if count == 0 {
            return;
        }
        let rows = self.encoder.finish();
        let block = self.packer.encode_block(BlockKind::ROWS, &rows.payload, &rows.cuts);
        self.index.note_block_of_rows(BlockKind::ROWS, block.len(), count);
        self.pending.extend(block);
    }

    /// Where the next block will begin.
    fn end(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    fn add_index(&mut self) {
        let payload = self.index.encode(self.end());
        self.pending.extend(encode_block(BlockKind::INDEX, &payload, ZSTD_LEVEL));
    }

    /// Writes what is pending, with one system call, at our own offset: whoever else holds this file open cannot move it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.index.pending() >= BLOCKS_PER_INDEX {
            self.add_index();
        }
        if !platform::may_be_long(self.end()) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.file.with(|file| file.write_all_at(&self.pending, self.written))?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// The last blocks: sums, the end if there is one, and where they are.
    pub(crate) fn finish(&mut self, end: Option<&End>) -> io::Result<()> {
        let index_at = self.end();
        self.add_index();
        let end_at = self.end();
        if let Some(end) = end {
            self.pending.extend(encode_block(BlockKind::END, &end.encode(), ZSTD_LEVEL));
        }
        if !self.is_cut {
            let at = self.end();
            let tail = Tail { index_bytes: at - index_at, end_bytes: end.map_or(0, |_| at - end_at) };
            self.pending.extend(tail.encode_block());
        }
        self.flush()
    }

    /// Gives it its first bytes again if somebody has cut them off; true if anything is missing.
    fn mend(&mut self) -> io::Result<bool> {
        let len = self.file.with(|file| file.metadata().map(|data| data.len()))?;
        let is_cut = len < self.written;
        if len < self.head.len() as u64 {
            self.file.with(|file| file.write_all_at(&self.head, 0))?;
        }
        self.is_cut |= is_cut;
        Ok(is_cut)
    }

    /// After a write that failed: what is in the file of it must not look like damage.
    fn cut_off(&self) {
        let _ = self.file.with(|file| file.set_len(self.written));
    }

    /// Bytes written.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.written
    }

    /// Events written.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// True if this path names this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }
}

/// The trace of a session: a file, or parts and what they refer to.
#[derive(Debug)]
pub(crate) struct RotatingTrace {
    events: BlockFile,
    parts: Option<Rotation>,
}

impl RotatingTrace {
    /// A trace in `events`; in parts, if there are to be any.
    pub(crate) fn new(events: BlockFile, parts: Option<Rotation>) -> Self {
        Self { events, parts }
    }

    fn definitions(&mut self) -> &mut BlockFile {
        match &mut self.parts {
            Some(parts) => &mut parts.definitions,
            None => &mut self.events,
        }
    }

    /// Adds a block of definitions, so many of them.
    pub(crate) fn add(&mut self, kind: BlockKind, payload: &[u8], rows: usize) {
        self.definitions().add(kind, payload, rows);
    }

    /// Adds metadata.
    pub(crate) fn add_meta(&mut self, meta: &Meta) {
        self.definitions().add_meta(meta);
    }

    /// More events of the block that is being made.
    pub(crate) fn push_events(&mut self, events: &[Event]) {
        self.events.push_events(events);
    }

    /// Adds the block of the events that were pushed.
    pub(crate) fn end_block(&mut self) {
        self.events.end_block();
    }

    /// Writes what was added: definitions first.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(parts) = &mut self.parts {
            parts.definitions.flush()?;
        }
        self.events.flush()
    }

    /// True if the part that is written is full.
    pub(crate) fn is_another_part_due(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.is_full(&self.events))
    }

    /// Begins the next part.
    pub(crate) fn begin_another_part(&mut self) -> io::Result<()> {
        match &mut self.parts {
            Some(parts) => parts.begin_another(&mut self.events),
            None => Ok(()),
        }
    }

    /// Bytes written to the file of the trace's own name.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.events.len_bytes()
    }

    /// Writes the last blocks.
    pub(crate) fn finish(&mut self, end: &End) -> io::Result<()> {
        if let Some(parts) = &mut self.parts {
            parts.definitions.finish(None)?;
        }
        self.events.finish(Some(end))
    }

    fn files(&mut self) -> impl Iterator<Item = &mut BlockFile> {
        std::iter::once(&mut self.events).chain(self.parts.as_mut().map(|parts| &mut parts.definitions))
    }

    /// A file that is written and that no path names any more, by the name it had.
    pub(crate) fn removed(&mut self) -> Option<&Path> {
        self.files().find(|file| file.file.is_nameless()).map(|file| file.path.as_path())
    }

    /// Gives files that somebody has cut their first bytes again; returns the name of one.
    pub(crate) fn mend(&mut self) -> io::Result<Option<&Path>> {
        let mut cut = None;
        for file in self.files() {
            if file.mend()? {
                cut = Some(file.path.as_path());
            }
        }
        Ok(cut)
    }

    /// Replaces the notes: where they are read first, and in what later parts say of themselves.
    pub(crate) fn set_notes(&mut self, notes: &[String]) {
        let mut meta = Meta::default();
        meta.set_list("notes", notes.to_vec());
        self.add_meta(&meta);
        if let Some(parts) = &mut self.parts {
            self.events.add_meta(&meta);
            parts.merge_meta(meta);
        }
    }

    /// After a write that failed.
    pub(crate) fn cut_off(&self) {
        self.events.cut_off();
        if let Some(parts) = &self.parts {
            parts.definitions.cut_off();
        }
    }
}
