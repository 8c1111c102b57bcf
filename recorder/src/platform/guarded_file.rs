//! A file of ours in a process that is not.
//!
//! Constraint: programs close descriptors they did not open (daemons close all of them), the number is then given to a file
//! of theirs, and a child made by `fork` holds a copy of each, with its lock. Consequence: our descriptors stand high,
//! where nobody expects any; before each use we look whether the number still means our file, and open it again by name if
//! not; all are listed, so that a child can close those that are ours, and no other.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Where our descriptors begin, if the limit allows it.
const HIGH: i32 = 512;

/// How often a use is begun again.
const ATTEMPTS: u32 = 8;

/// Which file, whatever its name or number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|data| Self { device: data.dev(), inode: data.ino() })
    }

    /// Async-signal-safe.
    fn of_descriptor(descriptor: i32) -> Option<Self> {
        // SAFETY: an all-zero stat is a valid buffer.
        let mut data: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the buffer is ours; a wrong number gives an error.
        let known = unsafe { libc::fstat(descriptor, &raw mut data) } == 0;
        known.then_some(Self { device: data.st_dev as u64, inode: data.st_ino })
    }
}

/// An open file of ours.
#[derive(Debug)]
pub(crate) struct GuardedFile {
    identity: FileIdentity,
    path: PathBuf,
    descriptor: AtomicI32,
    place: Option<&'static DescriptorEntry>,
}

impl GuardedFile {
    /// Takes over an open file, whose name is `path` from now on.
    pub(crate) fn adopt(file: File, path: &Path) -> io::Result<Self> {
        let identity = FileIdentity::of(&file)?;
        let descriptor = raise(file).into_raw_fd();
        let place = LIST.iter().find(|place| place.take(descriptor, identity));
        Ok(Self { identity, path: path.to_owned(), descriptor: descriptor.into(), place })
    }

    /// Runs `body` with the open file; again if the program took the descriptor away meanwhile, so `body` must be something
    /// that can be repeated. Such a program may get one write of ours into the file that then had the number: that is the
    /// race of anybody who closes what another thread uses.
    pub(crate) fn with<R>(&self, body: impl Fn(&File) -> io::Result<R>) -> io::Result<R> {
        for _ in 0..ATTEMPTS {
            let descriptor = self.descriptor.load(Ordering::Acquire);
            if FileIdentity::of_descriptor(descriptor) != Some(self.identity) {
                self.open_again(descriptor)?;
                continue;
            }
            // SAFETY: the number was just seen to be our file's; the wrapper does not close it.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
            let result = body(&file);
            if FileIdentity::of_descriptor(descriptor) == Some(self.identity) {
                return result;
            }
        }
        Err(io::Error::other("the program keeps closing its descriptor"))
    }

    #[cold]
    fn open_again(&self, lost: i32) -> io::Result<()> {
        let closed =
            |_| io::Error::other("the program closed the descriptor, and the file is not there any more");
        let file = OpenOptions::new()
            .read(true)
            // For a moment it has a number that the program may still take for a file of its own, which it closed: what it writes
            // there must not be put over what we wrote.
            .append(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(closed)?;
        if FileIdentity::of(&file)? != self.identity {
            return Err(closed(io::Error::from_raw_os_error(libc::ENOENT)));
        }
        // Its lock went with the old descriptor. If somebody holds it now, they only look.
        let _ = file.try_lock();
        let file = raise(file);
        write_anywhere(&file);
        let descriptor = file.into_raw_fd();
        match self.descriptor.compare_exchange(lost, descriptor, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                if let Some(place) = self.place {
                    place.descriptor.store(descriptor, Ordering::Release);
                }
            }
            // Another thread was first.
            Err(_) => close_if(descriptor, self.identity),
        }
        Ok(())
    }

    /// True if no path names our file any more.
    pub(crate) fn is_nameless(&self) -> bool {
        self.with(File::metadata).is_ok_and(|data| data.nlink() == 0)
    }

    /// True if this path names our file.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path)
            .is_ok_and(|there| FileIdentity { device: there.dev(), inode: there.ino() } == self.identity)
    }
}

impl Drop for GuardedFile {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.descriptor.store(FREE, Ordering::Release);
        }
        close_if(self.descriptor.load(Ordering::Acquire), self.identity);
    }
}

/// Moves a descriptor up. Where the limit is lower it stays where it is.
fn raise(file: File) -> File {
    // SAFETY: our own descriptor.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
    // SAFETY: a new descriptor that nobody else knows.
    if high < 0 { file } else { unsafe { File::from_raw_fd(high) } }
}

/// From now on writes go where they are meant to, not behind the end.
fn write_anywhere(file: &File) {
    // SAFETY: our own descriptor.
    unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_APPEND);
    }
}

fn close_if(descriptor: i32, identity: FileIdentity) {
    if FileIdentity::of_descriptor(descriptor) == Some(identity) {
        // SAFETY: the number means our file.
        unsafe { libc::close(descriptor) };
    }
}

/// A descriptor of ours, readable in a child without locks.
#[derive(Debug)]
struct DescriptorEntry {
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

const FREE: i32 = -1;
const TAKEN: i32 = -2;

/// A session has two files. More than these are never open at a time outside of tests, and are then not listed.
static LIST: [DescriptorEntry; 4] = [const {
    DescriptorEntry { descriptor: AtomicI32::new(FREE), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
}; 4];

impl DescriptorEntry {
    fn take(&self, descriptor: i32, identity: FileIdentity) -> bool {
        if self.descriptor.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.device.store(identity.device, Ordering::Relaxed);
        self.inode.store(identity.inode, Ordering::Relaxed);
        self.descriptor.store(descriptor, Ordering::Release);
        true
    }
}

/// In a child just made by `fork`: closes the copies of our files, so that it does not hold its parent's locks.
pub(crate) fn close_inherited() {
    for place in &LIST {
        let descriptor = place.descriptor.swap(FREE, Ordering::AcqRel);
        if descriptor >= 0 {
            let (device, inode) = (place.device.load(Ordering::Relaxed), place.inode.load(Ordering::Relaxed));
            close_if(descriptor, FileIdentity { device, inode });
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    fn file_in(folder: &Path, name: &str) -> (File, PathBuf) {
        let path = folder.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        (file, path)
    }

    #[test]
    fn a_number_that_now_means_another_file_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = file_in(folder.path(), "ours");
        let own = GuardedFile::adopt(file, &path).unwrap();
        let number = own.descriptor.load(Ordering::Acquire);
        assert!(number >= HIGH);
        let (precious, precious_path) = file_in(folder.path(), "precious");
        // SAFETY: gives the number to another file, as a program may that closes all descriptors.
        unsafe { libc::dup2(precious.as_raw_fd(), number) };
        own.with(|file| file.write_all_at(b"event", 0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"event");
        assert_eq!(std::fs::read(&precious_path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
        // SAFETY: closes the descriptor that was opened again.
        unsafe { libc::close(own.descriptor.load(Ordering::Acquire)) };
        assert!(own.with(|_| Ok(())).is_err(), "a file without a name cannot be found again");
        drop(own);
        // SAFETY: the program's own number, still open: dropping ours did not close it.
        let mut still = unsafe { File::from_raw_fd(number) };
        assert_eq!(still.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn a_file_that_was_opened_again_is_written_where_it_is_meant_to() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path) = file_in(folder.path(), "ours");
        let own = GuardedFile::adopt(file, &path).unwrap();
        own.with(|file| file.write_all_at(b"first", 0)).unwrap();
        // SAFETY: closes our own descriptor, as a program may that closes all.
        unsafe { libc::close(own.descriptor.load(Ordering::Acquire)) };
        own.with(|file| file.write_all_at(b"2nd", 0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2ndst");
    }

    #[test]
    fn a_file_of_ours_is_closed_when_it_is_dropped() {
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
