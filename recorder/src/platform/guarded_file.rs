//! Files that survive a program that closes descriptors it did not open.
//!
//! Some programs close all descriptors (daemons do), and the number is then given to one of their
//! own files. A child made by `fork` holds a copy of each descriptor, with its lock. So our
//! descriptors are high, where programs do not expect any. Each use first checks that the
//! descriptor is still our file, and reopens the file by name if not. All descriptors are listed,
//! so that a child closes ours and no other.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Our descriptors are at least this high, if the limit on descriptors allows it.
const FIRST_DESCRIPTOR: i32 = 512;

/// How often an operation is tried.
const ATTEMPTS: u32 = 8;

/// Identifies a file independently of names and descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|data| Self { device: data.dev(), inode: data.ino() })
    }

    /// Returns `None` if the descriptor is not open. Async-signal-safe.
    fn of_descriptor(descriptor: i32) -> Option<Self> {
        // SAFETY: an all-zero stat is a valid buffer.
        let mut data: libc::stat = unsafe { std::mem::zeroed() };
        // A late event comes here after the destructor of a preload that may replace `fstat`.
        #[cfg(target_os = "linux")]
        // SAFETY: the buffer is ours, and the kernel's is the same structure; a wrong number gives
        // an error.
        let known = unsafe { libc::syscall(libc::SYS_fstat, descriptor, &raw mut data) } == 0;
        #[cfg(not(target_os = "linux"))]
        // SAFETY: the buffer is ours; a wrong number gives an error.
        let known = unsafe { libc::fstat(descriptor, &raw mut data) } == 0;
        known.then_some(Self { device: data.st_dev as u64, inode: data.st_ino })
    }
}

/// An open file. The program may close or reuse its descriptor at any time.
#[derive(Debug)]
pub(crate) struct GuardedFile {
    identity: FileIdentity,
    path: PathBuf,
    descriptor: AtomicI32,
    entry: Option<&'static DescriptorEntry>,
    /// The program closed the descriptor, and the file was opened again.
    was_reopened: AtomicBool,
}

impl GuardedFile {
    /// Takes over an open file with the name `path`.
    pub(crate) fn adopt(file: File, path: &Path) -> io::Result<Self> {
        let identity = FileIdentity::of(&file)?;
        let descriptor = move_up(file.into_raw_fd(), identity);
        let entry = DESCRIPTORS.iter().find(|entry| entry.register(descriptor, identity));
        let was_reopened = AtomicBool::new(false);
        Ok(Self { identity, path: path.to_owned(), descriptor: descriptor.into(), entry, was_reopened })
    }

    /// Runs `body` with the open file, and again if the program has taken the descriptor away
    /// meanwhile. So `body` must be repeatable.
    ///
    /// A program that closes a descriptor in use may get one of our writes into the file that then
    /// gets the number.
    pub(crate) fn with<R>(&self, body: impl Fn(&File) -> io::Result<R>) -> io::Result<R> {
        for _ in 0..ATTEMPTS {
            let descriptor = self.descriptor.load(Ordering::Acquire);
            if FileIdentity::of_descriptor(descriptor) != Some(self.identity) {
                self.reopen(descriptor)?;
                continue;
            }
            // SAFETY: the descriptor was just checked to be our file's; the wrapper does not close
            // it.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
            let result = body(&file);
            if FileIdentity::of_descriptor(descriptor) == Some(self.identity) {
                return result;
            }
        }
        Err(io::Error::other("the program keeps closing the file descriptor"))
    }

    #[cold]
    fn reopen(&self, lost: i32) -> io::Result<()> {
        let closed = |error: io::Error| {
            let why = match error.kind() {
                io::ErrorKind::NotFound => "the file no longer exists".to_owned(),
                _ => format!("the file cannot be opened again ({})", error.kind()),
            };
            io::Error::other(format!("the program closed the file descriptor, and {why}"))
        };
        let file = OpenOptions::new()
            .read(true)
            // For a moment the file has a low descriptor, which the program may confuse with one
            // that it closed. Append mode keeps such a write from overwriting ours.
            .append(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(closed)?;
        if FileIdentity::of(&file)? != self.identity {
            return Err(closed(io::Error::from_raw_os_error(libc::ENOENT)));
        }
        // The lock went with the old descriptor. Another process that holds it now only checks the
        // file.
        let _ = file.try_lock();
        let descriptor = move_up(file.into_raw_fd(), self.identity);
        if FileIdentity::of_descriptor(descriptor) != Some(self.identity) {
            return Ok(());
        }
        clear_append_mode(descriptor);
        match self.descriptor.compare_exchange(lost, descriptor, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                self.was_reopened.store(true, Ordering::Release);
                if let Some(entry) = self.entry {
                    entry.descriptor.store(descriptor, Ordering::Release);
                }
            }
            // Another thread was first.
            Err(_) => close_if(descriptor, self.identity),
        }
        Ok(())
    }

    /// True if no path names this file any more.
    pub(crate) fn is_unlinked(&self) -> bool {
        self.with(File::metadata).is_ok_and(|data| data.nlink() == 0)
    }

    /// True if the program has closed the descriptor, and the file was opened again.
    pub(crate) fn was_reopened(&self) -> bool {
        self.was_reopened.load(Ordering::Acquire)
    }

    /// The length of the file, asked by name and without opening it. `None` if its name is now
    /// another file's.
    pub(crate) fn len_at_path(&self) -> Option<u64> {
        let found = std::fs::symlink_metadata(&self.path).ok()?;
        let identity = FileIdentity { device: found.dev(), inode: found.ino() };
        (identity == self.identity).then_some(found.len())
    }

    /// True if `path` names this file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path)
            .is_ok_and(|found| FileIdentity { device: found.dev(), inode: found.ino() } == self.identity)
    }
}

impl Drop for GuardedFile {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            entry.descriptor.store(FREE, Ordering::Release);
        }
        close_if(self.descriptor.load(Ordering::Acquire), self.identity);
    }
}

/// Moves a file to a high descriptor: from [`FIRST_DESCRIPTOR`] on, or below the process's limit on
/// descriptors. If none is free there, or the program has given the low descriptor to a file of its
/// own meanwhile, that one stays as it is.
fn move_up(low: i32, identity: FileIdentity) -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    let below_limit = if known { limit.rlim_cur.saturating_sub(DESCRIPTORS.len() as u64) } else { u64::MAX };
    let least = i32::try_from(below_limit).unwrap_or(i32::MAX).min(FIRST_DESCRIPTOR);
    // SAFETY: copies a descriptor, which has no effect on the file.
    let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, least) };
    if high < 0 { low } else { keep_one(low, high, identity) }
}

/// Closes one of two descriptors and returns the other. `high` was made as a copy of `low`, but the
/// program may have given either number to a file of its own before or since.
fn keep_one(low: i32, high: i32, identity: FileIdentity) -> i32 {
    let [found_low, found_high] = [low, high].map(FileIdentity::of_descriptor);
    if found_high == Some(identity) {
        close_if(low, identity);
        return high;
    }
    // If both are the same file of the program, `low` was taken before the copy was made.
    if let Some(found) = found_high
        && found_low == found_high
    {
        close_if(high, found);
    }
    low
}

/// Makes positioned writes go to their position again, not to the end of the file.
fn clear_append_mode(descriptor: i32) {
    // SAFETY: our own descriptor.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        libc::fcntl(descriptor, libc::F_SETFL, flags & !libc::O_APPEND);
    }
}

fn close_if(descriptor: i32, identity: FileIdentity) {
    if FileIdentity::of_descriptor(descriptor) == Some(identity) {
        // SAFETY: the descriptor is our file's.
        unsafe { libc::close(descriptor) };
    }
}

/// One of our descriptors, in a form that a forked child reads without locks.
#[derive(Debug)]
struct DescriptorEntry {
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

const FREE: i32 = -1;
const RESERVED: i32 = -2;

/// A session has up to three files. Only tests open more; those are not listed.
static DESCRIPTORS: [DescriptorEntry; 4] = [const {
    DescriptorEntry { descriptor: AtomicI32::new(FREE), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
}; 4];

impl DescriptorEntry {
    fn register(&self, descriptor: i32, identity: FileIdentity) -> bool {
        if self.descriptor.compare_exchange(FREE, RESERVED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.device.store(identity.device, Ordering::Relaxed);
        self.inode.store(identity.inode, Ordering::Relaxed);
        self.descriptor.store(descriptor, Ordering::Release);
        true
    }
}

/// Closes the copies of our files in a forked child, so that it does not keep its parent's locks.
///
/// Async-signal-safe.
pub(crate) fn close_inherited() {
    for entry in &DESCRIPTORS {
        let descriptor = entry.descriptor.swap(FREE, Ordering::AcqRel);
        if descriptor >= 0 {
            let (device, inode) = (entry.device.load(Ordering::Relaxed), entry.inode.load(Ordering::Relaxed));
            close_if(descriptor, FileIdentity { device, inode });
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    fn file_in(folder: &Path, name: &str) -> (File, PathBuf) {
        let path = folder.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        (file, path)
    }

    #[test]
    fn low_descriptor_reused_by_the_program_stays_open() {
        let folder = tempfile::tempdir().unwrap();
        let (file, _) = file_in(folder.path(), "ours");
        let identity = FileIdentity::of(&file).unwrap();
        let (precious, _) = file_in(folder.path(), "precious");
        let low = file.into_raw_fd();
        // SAFETY: gives the descriptor to another file.
        unsafe { libc::dup2(precious.as_raw_fd(), low) };
        assert_eq!(move_up(low, identity), low);
        assert_eq!(FileIdentity::of_descriptor(low), Some(FileIdentity::of(&precious).unwrap()));
        // SAFETY: closes the copy made above.
        unsafe { libc::close(low) };
    }

    #[test]
    fn only_our_copy_of_a_reused_descriptor_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, _) = file_in(folder.path(), "ours");
        let identity = FileIdentity::of(&ours).unwrap();
        let (first, _) = file_in(folder.path(), "first");
        let (second, _) = file_in(folder.path(), "second");
        let (low, high) = (first.as_raw_fd(), second.as_raw_fd());
        assert_eq!(keep_one(low, high, identity), low);
        assert!(FileIdentity::of_descriptor(high).is_some(), "the program has reused both numbers");
        let copy = first.try_clone().unwrap().into_raw_fd();
        assert_eq!(keep_one(low, copy, identity), low);
        let closed = FileIdentity::of_descriptor(copy);
        assert_ne!(closed, FileIdentity::of_descriptor(low), "a copy that only we know");
    }

    #[test]
    fn descriptor_reused_by_the_program_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = file_in(folder.path(), "ours");
        let own = GuardedFile::adopt(file, &path).unwrap();
        let number = own.descriptor.load(Ordering::Acquire);
        assert!(number >= FIRST_DESCRIPTOR);
        let (precious, precious_path) = file_in(folder.path(), "precious");
        // SAFETY: gives the descriptor to another file, as programs do that close all descriptors.
        unsafe { libc::dup2(precious.as_raw_fd(), number) };
        own.with(|file| file.write_all_at(b"event", 0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"event");
        assert_eq!(std::fs::read(&precious_path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
        // SAFETY: closes the reopened descriptor.
        unsafe { libc::close(own.descriptor.load(Ordering::Acquire)) };
        assert!(own.with(|_| Ok(())).is_err(), "an unlinked file cannot be reopened");
        drop(own);
        // SAFETY: the program's own descriptor, still open: dropping ours did not close it.
        let mut still = unsafe { File::from_raw_fd(number) };
        assert_eq!(still.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn reopened_file_is_written_at_the_given_offset() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = file_in(folder.path(), "ours");
        let own = GuardedFile::adopt(file, &path).unwrap();
        own.with(|file| file.write_all_at(b"first", 0)).unwrap();
        // SAFETY: closes our own descriptor, as programs do that close all descriptors.
        unsafe { libc::close(own.descriptor.load(Ordering::Acquire)) };
        own.with(|file| file.write_all_at(b"2nd", 0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2ndst");
    }

    #[test]
    fn dropped_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = file_in(folder.path(), "ours");
        let own = GuardedFile::adopt(file, &path).unwrap();
        let identity = own.identity;
        let number = own.descriptor.load(Ordering::Acquire);
        assert!(own.is_at(&path));
        drop(own);
        assert_ne!(FileIdentity::of_descriptor(number), Some(identity));
    }
}
