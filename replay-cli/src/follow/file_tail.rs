//! A growing file of a trace, read block by block.
//!
//! The tail remembers the position behind the last sound block and continues there, because the
//! last block of the file may be incomplete. Between two polls the file may be replaced by the
//! trace of another run, truncated or removed. So each poll first checks its inode and length.

use std::cmp::Ordering;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::FILE_HEADER_BYTES;
use gpumemtrace_format::reader::{Item, OpenError, TraceReader};

use super::recorder_presence::RecorderLock;
use crate::trace::bytes::FileBytes;
use crate::trace::parts::first_block;

/// How a file changed since the previous poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TailChange {
    Nothing,
    /// The file has more bytes than have been read.
    More,
    /// The name refers to another file.
    Replaced,
    /// The file is shorter than what has been read.
    Truncated,
    /// There is no file of this name.
    Gone,
}

/// A file that is read as it grows.
pub(crate) struct FileTail {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    /// The position behind the last sound block.
    read_bytes: u64,
    /// The length at the last measurement.
    length_bytes: u64,
}

impl FileTail {
    /// Opens a file; `None` while it does not exist or is empty.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, OpenError> {
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let facts = file.metadata()?;
        match TraceReader::new(&file) {
            Err(OpenError::Empty) => return Ok(None),
            reader => drop(reader?),
        }
        let identity = (facts.dev(), facts.ino());
        let begin = FILE_HEADER_BYTES as u64;
        Ok(Some(Self { path: path.to_owned(), file, identity, read_bytes: begin, length_bytes: begin }))
    }

    /// True if `identity` is the device and inode of the file.
    pub(super) fn is_file(&self, identity: (u64, u64)) -> bool {
        self.identity == identity
    }

    /// Notes a new path of the file.
    pub(super) fn follow_rename(&mut self, path: &Path) {
        path.clone_into(&mut self.path);
    }

    /// The metadata in its first block.
    pub(crate) fn first_meta(&self) -> Option<Meta> {
        match TraceReader::new(first_block(self.file.try_clone().ok()?)).ok()?.next()? {
            Item::Meta(meta) => Some(meta),
            _ => None,
        }
    }

    /// Measures the length and checks the name; `Nothing` or `More` if it is still the same file.
    pub(crate) fn measure(&mut self) -> Result<TailChange, OpenError> {
        match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(TailChange::Gone),
            Err(error) => return Err(error.into()),
            Ok(facts) if (facts.dev(), facts.ino()) != self.identity => return Ok(TailChange::Replaced),
            Ok(_) => {}
        }
        self.measure_renamed()
    }

    /// Measures the length without checking the name.
    pub(crate) fn measure_renamed(&mut self) -> Result<TailChange, OpenError> {
        self.length_bytes = self.file.metadata()?.len();
        Ok(match self.length_bytes.cmp(&self.read_bytes) {
            Ordering::Less => TailChange::Truncated,
            Ordering::Equal => TailChange::Nothing,
            Ordering::Greater => TailChange::More,
        })
    }

    /// Passes the new blocks up to the measured length to `take`; true if there were any.
    pub(crate) fn read(&mut self, take: &mut impl FnMut(Item)) -> Result<bool, OpenError> {
        let begin = self.read_bytes;
        let more = FileBytes::new(self.file.try_clone()?, begin, self.length_bytes);
        let mut reader = TraceReader::resume(more, begin).passing_holes();
        while let Some(item) = reader.next() {
            let is_sound = !matches!(item, Item::CorruptRegion(_) | Item::TruncatedBlock { .. });
            if is_sound {
                self.read_bytes = reader.offset();
                take(item);
            }
        }
        Ok(self.read_bytes > begin)
    }

    /// Looks whether the recorder has locked the file under the name.
    pub(super) fn recorder_lock(&self) -> RecorderLock {
        // A lock belongs to an open file description, so a separate one is opened and closed here.
        let Ok(file) = File::open(&self.path) else { return RecorderLock::Unknown };
        match file.try_lock_shared() {
            Ok(()) => RecorderLock::Free,
            Err(TryLockError::WouldBlock) => RecorderLock::Held,
            Err(TryLockError::Error(_)) => RecorderLock::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::block::{BlockKind, encode_block, file_header};
    use std::io::Write;

    fn block(number: u64) -> Vec<u8> {
        let mut meta = Meta::default();
        meta.set_number("n", number);
        encode_block(BlockKind::META, &meta.encode(), 3)
    }

    fn numbers(tail: &mut FileTail) -> (TailChange, Vec<u64>) {
        let mut numbers = Vec::new();
        let found = tail.measure().unwrap();
        if !matches!(found, TailChange::Nothing | TailChange::More) {
            return (found, numbers);
        }
        let has_more = tail.read(&mut |item| {
            if let Item::Meta(meta) = item {
                numbers.extend(meta.number("n"));
            }
        });
        (if has_more.unwrap() { TailChange::More } else { TailChange::Nothing }, numbers)
    }

    #[test]
    fn blocks_are_read_once_and_only_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        assert!(FileTail::open(&path).unwrap().is_none());
        let mut file = File::create(&path).unwrap();
        assert!(FileTail::open(&path).unwrap().is_none(), "the file is still empty");
        file.write_all(&[&file_header()[..], &block(1)].concat()).unwrap();
        let mut tail = FileTail::open(&path).unwrap().unwrap();
        assert_eq!(numbers(&mut tail), (TailChange::More, vec![1]));
        let next = [block(2), block(3)].concat();
        for (from, to) in [(0, 2), (2, 10), (10, next.len() - 5)] {
            file.write_all(&next[from..to]).unwrap();
            let expected = if to > 50 { (TailChange::More, vec![2]) } else { (TailChange::Nothing, vec![]) };
            assert_eq!(numbers(&mut tail), expected);
        }
        file.write_all(&next[next.len() - 5..]).unwrap();
        assert_eq!(numbers(&mut tail), (TailChange::More, vec![3]));
        assert_eq!(numbers(&mut tail), (TailChange::Nothing, vec![]));
        file.set_len(20).unwrap();
        assert_eq!(numbers(&mut tail).0, TailChange::Truncated);
    }

    #[test]
    fn replaced_and_removed_files_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        std::fs::write(&path, [&file_header()[..], &block(1)].concat()).unwrap();
        let mut tail = FileTail::open(&path).unwrap().unwrap();
        std::fs::rename(&path, folder.path().join("run.1.trace")).unwrap();
        assert_eq!(numbers(&mut tail).0, TailChange::Gone);
        std::fs::write(&path, [&file_header()[..], &block(2)].concat()).unwrap();
        assert_eq!(numbers(&mut tail).0, TailChange::Replaced);
    }
}
