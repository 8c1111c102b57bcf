//! What has a name that a new trace or ring file could get.
//!
//! Looking must not harm anything: opening a named pipe blocks, opening a device may have effects,
//! and opening a ring file breaks the lease of its process. So the type comes first, then an open
//! that neither blocks nor follows a link, then a lock, and last the first bytes.

use std::fs::{File, FileType, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::is_without_locks;
use crate::diagnostics::error_text;

/// The file that has a name.
#[derive(Debug)]
pub(super) enum Occupant {
    None,
    /// A file of ours, or an empty one, that no process writes. Locked until the value is dropped.
    Ours(File),
    /// A process has locked or leased the file, or may write it: the file system has no locks.
    InUse,
    /// Another file got the name meanwhile.
    Changed,
    /// Not a file of ours. The text follows its path in a sentence: "is a folder".
    Foreign(String),
}

/// Looks at the file `path`. A file of ours begins with `magic` and is `kind`: "a trace".
pub(super) fn find(path: &Path, magic: &[u8], kind: &str) -> io::Result<Occupant> {
    match find_opened(path, false, magic, kind) {
        // NFS locks only files that are open for writing (flock(2)).
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => find_opened(path, true, magic, kind),
        found => found,
    }
}

fn find_opened(path: &Path, for_writing: bool, magic: &[u8], kind: &str) -> io::Result<Occupant> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::None),
        Err(error) => return Err(error),
    };
    if !found.is_file() {
        return Ok(Occupant::Foreign(describe_type(found.file_type()).to_owned()));
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).write(for_writing).custom_flags(flags).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) => {
            return Ok(match error.kind() {
                io::ErrorKind::NotFound => Occupant::Changed,
                io::ErrorKind::WouldBlock => Occupant::InUse,
                _ => Occupant::Foreign(format!("cannot be opened: {}", error_text(&error))),
            });
        }
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Occupant::InUse),
        Err(TryLockError::Error(error)) if is_without_locks(&error) => return Ok(Occupant::InUse),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Before the lock was taken, another process may have moved this file and put its own, live
    // file here. From now on no process can: moving a trace requires its lock.
    let locked = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => {}
        Ok(_) => return Ok(Occupant::Changed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Changed),
        Err(error) => return Err(error),
    }
    let mut head = Vec::with_capacity(magic.len());
    if let Err(error) = file.by_ref().take(magic.len() as u64).read_to_end(&mut head) {
        return Ok(Occupant::Foreign(format!("cannot be read: {}", error_text(&error))));
    }
    if head.is_empty() || head == magic {
        return Ok(Occupant::Ours(file));
    }
    Ok(Occupant::Foreign(format!("is not {kind}")))
}

fn describe_type(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "is a folder"
    } else if kind.is_symlink() {
        "is a symbolic link, which is not followed"
    } else if kind.is_fifo() {
        "is a named pipe"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a device"
    }
}
