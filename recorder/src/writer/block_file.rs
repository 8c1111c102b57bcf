//! An append-only file of blocks, with an index every few blocks.
//!
//! The process may be killed between any two writes, and a disk may fill up in the middle of one.
//! So the file only grows, by complete blocks, at an offset that this process keeps itself. A
//! partial write is truncated again. Every [`BLOCKS_PER_INDEX`] blocks an index with totals is
//! written, so that a reader need not decompress the whole file to know what it contains.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::{BlockKind, BlockPacker, encode_block, file_header};
use gpumemtrace_format::event_block::EventEncoder;
use gpumemtrace_format::index::{IndexBuilder, TraceTail};
use gpumemtrace_format::{Event, Meta};

use crate::platform;
use crate::platform::guarded_file::GuardedFile;

const ZSTD_LEVEL: i32 = 3;
/// Times are stored in units of 2^10 ns. PyTorch's own history has microseconds, and one event
/// takes about as long; lower bits are clock noise, which does not compress. The order of events
/// does not depend on their times.
const TIME_SHIFT: u8 = 10;
/// Blocks between two index blocks: the most that a reader of totals must decompress. Indexes take
/// about a thousandth of the file.
const BLOCKS_PER_INDEX: usize = 16;

/// One append-only file of blocks.
#[derive(Debug)]
pub(crate) struct BlockFile {
    file: GuardedFile,
    path: PathBuf,
    /// The first bytes, without which readers do not accept the file.
    head: Vec<u8>,
    /// Another process has truncated the file. It then gets no tail block, which would lead readers
    /// to an index that covers lost blocks.
    is_truncated: bool,
    /// Length up to the last complete block.
    written_bytes: u64,
    /// Blocks that are not written yet.
    pending: Vec<u8>,
    index: IndexBuilder,
    events: u64,
    encoder: EventEncoder,
    packer: BlockPacker,
}

impl BlockFile {
    /// Takes over an empty file with the name `path`, and writes file header and metadata.
    pub(crate) fn begin(file: File, path: &Path, meta: &Meta) -> io::Result<Self> {
        let file = GuardedFile::adopt(file, path)?;
        let mut this = Self {
            file,
            path: path.to_owned(),
            head: Vec::new(),
            is_truncated: false,
            written_bytes: 0,
            pending: file_header().to_vec(),
            index: IndexBuilder::default(),
            events: 0,
            encoder: EventEncoder::new(TIME_SHIFT),
            packer: BlockPacker::new(ZSTD_LEVEL),
        };
        this.add_meta(meta);
        this.head.clone_from(&this.pending);
        this.flush()?;
        Ok(this)
    }

    /// Adds a block with `rows` rows.
    pub(super) fn add(&mut self, kind: BlockKind, payload: &[u8], rows: usize) {
        let block = encode_block(kind, payload, ZSTD_LEVEL);
        self.index.add_block(kind, self.end_offset(), block.len(), rows);
        self.pending.extend(block);
    }

    pub(crate) fn add_meta(&mut self, meta: &Meta) {
        self.add(BlockKind::META, &meta.encode(), 0);
    }

    pub(super) fn push_events(&mut self, events: &[Event]) {
        self.encoder.push(events);
        self.index.add_events(events);
        self.events += events.len() as u64;
    }

    pub(super) fn end_block(&mut self) {
        let count = self.encoder.rows();
        if count == 0 {
            return;
        }
        let rows = self.encoder.finish();
        let block = self.packer.encode_block(BlockKind::EVENTS, &rows.payload, &rows.split_offsets);
        self.index.add_counted_event_block(block.len(), count);
        self.pending.extend(block);
    }

    /// The offset of the next block.
    fn end_offset(&self) -> u64 {
        self.written_bytes + self.pending.len() as u64
    }

    fn add_index(&mut self) {
        let payload = self.index.encode(self.end_offset());
        self.pending.extend(encode_block(BlockKind::INDEX, &payload, ZSTD_LEVEL));
    }

    /// Writes the pending blocks with one system call, at an explicit offset. So another process
    /// that has the file open cannot move the position.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.index.pending() >= BLOCKS_PER_INDEX {
            self.add_index();
        }
        if !platform::is_file_size_allowed(self.end_offset()) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        self.file.with(|file| file.write_all_at(&self.pending, self.written_bytes))?;
        self.written_bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the last blocks: the index, the end (if given), and the tail that points to both.
    /// Returns the offset of the end.
    ///
    /// The end lies in one page of the file. It may be rewritten while the process ends, and a kill
    /// cuts a write between two pages. Empty blocks of metadata, which say nothing, move it.
    pub(crate) fn finish(&mut self, end: Option<&[u8]>) -> io::Result<u64> {
        let index_at = self.end_offset();
        self.add_index();
        let end_bytes = end.map_or(0, |end| end.len() as u64);
        while crosses_pages(self.end_offset(), end_bytes) {
            self.pending.extend(encode_block(BlockKind::META, &Meta::default().encode(), ZSTD_LEVEL));
        }
        let end_at = self.end_offset();
        if let Some(end) = end {
            self.pending.extend(end);
        }
        if !self.is_truncated {
            let at = self.end_offset();
            let tail = TraceTail { index_bytes: at - index_at, end_bytes: end.map_or(0, |_| at - end_at) };
            self.pending.extend(tail.encode_block());
        }
        self.flush()?;
        Ok(end_at)
    }

    /// The file, after the last block was written.
    pub(super) fn into_file(self) -> GuardedFile {
        self.file
    }

    /// Restores the first bytes if another process has truncated the file. Returns true if it has.
    pub(super) fn repair(&mut self) -> io::Result<bool> {
        let len = self.file.with(|file| file.metadata().map(|data| data.len()))?;
        let is_truncated = len < self.written_bytes;
        if len < self.head.len() as u64 {
            self.file.with(|file| file.write_all_at(&self.head, 0))?;
        }
        self.is_truncated |= is_truncated;
        Ok(is_truncated)
    }

    /// After a failed write: removes what was written of it, so that it does not look like damage.
    pub(super) fn truncate_partial_write(&self) {
        let _ = self.file.with(|file| file.set_len(self.written_bytes));
    }

    /// Number of bytes written.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Number of events written.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// True if `path` names this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        self.file.is_at(path)
    }

    /// True if no path names this file any more.
    pub(super) fn is_unlinked(&self) -> bool {
        self.file.is_unlinked()
    }

    /// The name under which the file was created.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// True if a range of at most a page does not lie in one page.
fn crosses_pages(at: u64, bytes: u64) -> bool {
    const PAGE_BYTES: u64 = 4096;
    let end = at + bytes.saturating_sub(1);
    bytes <= PAGE_BYTES && at / PAGE_BYTES != end / PAGE_BYTES
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use gpumemtrace_format::index::{TAIL_BYTES, locate_index};

    #[test]
    fn end_lies_in_one_page_and_is_found_wherever_the_file_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        let end = encode_block(BlockKind::END, &[7; 411], 0);
        let mut moved = 0;
        for note_bytes in (0..8192).step_by(61) {
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            let mut meta = Meta::default();
            // Digits that zstd cannot pack, so that the end moves through two pages.
            let digits =
                (0..note_bytes as u64).map(|i| char::from(b'0' + ((i * i * 2_654_435_761) >> 13) as u8 % 75));
            meta.set_text("note", digits.collect::<String>());
            let mut trace = BlockFile::begin(file, &path, &meta).unwrap();
            let at = trace.finish(Some(&end)).unwrap();
            assert!(!crosses_pages(at, end.len() as u64), "{at}");
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(&bytes[at as usize..][..end.len()], end);
            let found = locate_index(bytes.len() as u64, |from, buffer| {
                bytes.get(from as usize..).and_then(|rest| rest.get(..buffer.len())).is_some_and(|part| {
                    buffer.copy_from_slice(part);
                    true
                })
            });
            assert_eq!(found.and_then(|found| found.end), Some(at));
            moved += u32::from(bytes.len() - at as usize == end.len() + TAIL_BYTES && at % 4096 < 25);
        }
        assert!(moved > 0, "an end that had to be moved");
    }
}
