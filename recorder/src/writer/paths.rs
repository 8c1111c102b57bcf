//! Names of the trace's files, and how a process reserves them.
//!
//! Many processes may start in one folder at once (ranks, notebooks, restarts). A finished trace
//! must be kept, a trace that is being written must not be touched, and a prepared symlink must not
//! redirect us. So a trace is created under a temporary name and locked (`flock`, which ends with
//! the process). Then it is renamed in a step that fails if the name is taken. If the name belongs
//! to a trace that no process has locked, that trace is moved aside; otherwise the new trace gets a
//! name with its pid. A file that is not a trace is never touched.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::FILE_MAGIC;

/// The files of a new trace, created and named.
#[derive(Debug)]
pub(crate) struct ReservedOutput {
    /// The locked trace file, empty.
    pub(crate) trace: File,
    /// The ring file, empty.
    pub(crate) ring: File,
    /// The name that the trace got.
    pub(crate) path: PathBuf,
    /// True if the wanted name belongs to a file that is not a trace.
    pub(crate) is_wanted_name_foreign: bool,
}

/// Values for the placeholders in an output pattern.
#[derive(Clone, Debug)]
pub(crate) struct PatternValues {
    /// Replaces `%p` in the pattern.
    pub(crate) pid: u32,
    /// Replaces `%r`; empty if the process has no rank.
    pub(crate) rank: String,
    /// Replaces `%h` in the pattern.
    pub(crate) host: String,
}

impl PatternValues {
    /// Replaces the placeholders. `%%` gives a percent sign; unknown sequences stay as they are.
    pub(crate) fn expand(&self, pattern: &str) -> String {
        let mut out = String::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('p') => out.push_str(&self.pid.to_string()),
                Some('r') => out.push_str(&self.rank),
                Some('h') => out.push_str(&self.host),
                Some('%') | None => out.push('%'),
                Some(other) => out.extend(['%', other]),
            }
        }
        out
    }
}

/// The path of the ring file that belongs to a trace.
pub(crate) fn ring_path(trace: &Path) -> PathBuf {
    let mut name = OsString::from(trace);
    name.push(".ring");
    PathBuf::from(name)
}

/// The path of a finished part of a trace.
pub(crate) fn part_path(trace: &Path, trace_id: [u8; 16], number: u64) -> PathBuf {
    with_suffix(trace, &format!("{}.part{number}", short_id(trace_id)))
}

/// The path of the file of definitions of a trace in parts.
pub(crate) fn stacks_path(trace: &Path, trace_id: [u8; 16]) -> PathBuf {
    with_suffix(trace, &format!("{}.stacks", short_id(trace_id)))
}

/// The first 32 bits of an id, enough to distinguish the traces in one folder.
fn short_id(trace_id: [u8; 16]) -> String {
    format!("{:08x}", u128::from_be_bytes(trace_id) >> 96)
}

/// Creates a file that must not exist yet, and locks it.
pub(crate) fn create_locked(path: &Path) -> io::Result<File> {
    let file = create_new(path)?;
    file.try_lock().map_err(io::Error::from)?;
    Ok(file)
}

/// Creates an empty trace and its ring file under the best free name for `path`.
pub(crate) fn reserve(path: &Path, pid: u32) -> io::Result<ReservedOutput> {
    // Containers that share a folder may have equal pids, so the temporary name is partly random.
    let temporary = with_suffix(path, &format!("new.{pid}-{}", random_suffix()));
    let trace = create_locked(&temporary)?;
    let ring_temporary = ring_path(&temporary);
    let result = create_new(&ring_temporary)
        .and_then(|ring| publish(&temporary, path, pid).map(|(path, foreign)| (ring, path, foreign)));
    match result {
        Ok((ring, path, is_wanted_name_foreign)) => {
            Ok(ReservedOutput { trace, ring, path, is_wanted_name_foreign })
        }
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(&ring_temporary);
            Err(error)
        }
    }
}

/// Gives both files their public names. Returns the trace's name, and whether the wanted name
/// belongs to a file that is not a trace.
fn publish(temporary: &Path, wanted: &Path, pid: u32) -> io::Result<(PathBuf, bool)> {
    let mut is_wanted_name_foreign = false;
    let own = with_suffix(wanted, &pid.to_string());
    let last = with_suffix(wanted, &format!("{pid}-{}", random_suffix()));
    for name in [wanted, &own, &last] {
        // Each failed attempt means that another process took the name meanwhile; then try the next
        // name.
        for _ in 0..16 {
            if rename_both(temporary, name)? {
                return Ok((name.to_owned(), is_wanted_name_foreign));
            }
            match move_aside(name)? {
                MoveAside::NameIsFree => {}
                MoveAside::NotATrace => {
                    is_wanted_name_foreign |= name == wanted;
                    break;
                }
                MoveAside::StillTaken => break,
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "another process is still writing a trace of that name"))
}

/// Renames trace and ring file. Returns false if the trace's name is taken; nothing is replaced
/// then.
fn rename_both(temporary: &Path, name: &Path) -> io::Result<bool> {
    // The trace comes first: its name decides which process owns the pair. Readers ignore a ring
    // file with another id.
    if !rename_to_new(temporary, name)? {
        return Ok(false);
    }
    std::fs::rename(ring_path(temporary), ring_path(name))?;
    Ok(true)
}

/// The outcome of [`move_aside`].
enum MoveAside {
    /// The name is free now.
    NameIsFree,
    /// A live process writes the trace, or all numbers are taken.
    StillTaken,
    /// The file is not a trace.
    NotATrace,
}

/// Largest number that is tried for a finished trace.
const MAX_NUMBER: u32 = 10_000;

/// Renames a finished trace to `name.1.ext`, `name.2.ext`, ... Nothing else is ever moved.
fn move_aside(path: &Path) -> io::Result<MoveAside> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
        Err(error) => return Err(error),
    };
    if !found.is_file() {
        return Err(io::Error::other("it is a folder, a link, or a device, not a file"));
    }
    let mut file =
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
            // Another user's file, perhaps a trace.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(MoveAside::StillTaken);
            }
            Err(error) => return Err(error),
        };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(MoveAside::StillTaken),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Before the lock was taken, another process may have moved this file and put its own, live
    // trace here. From now on no process can: moving a trace requires its lock.
    let locked = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if (found.dev(), found.ino()) == (locked.dev(), locked.ino()) => {}
        Ok(_) => return Ok(MoveAside::NameIsFree),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
        Err(error) => return Err(error),
    }
    if !locked.is_file() || !is_trace_or_empty(&mut file)? {
        return Ok(MoveAside::NotATrace);
    }
    for number in 1..=MAX_NUMBER {
        let aside = with_suffix(path, &number.to_string());
        if std::fs::symlink_metadata(&aside).is_ok() || !link_ring(path, &aside)? {
            continue;
        }
        if rename_to_new(path, &aside)? {
            return Ok(MoveAside::NameIsFree);
        }
        let _ = std::fs::remove_file(ring_path(&aside));
    }
    Ok(MoveAside::StillTaken)
}

/// Gives the ring file its new name before the trace is moved. As soon as the trace is gone,
/// another process may put its own ring file here. The old name stays until then, so a trace is
/// never without its ring file. Returns false if the new name is taken.
fn link_ring(from: &Path, to: &Path) -> io::Result<bool> {
    let (from, to) = (ring_path(from), ring_path(to));
    match std::fs::hard_link(&from, &to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // The file system has no hard links.
        Err(_) => rename_to_new(&from, &to),
    }
}

fn is_trace_or_empty(file: &mut File) -> io::Result<bool> {
    let mut head = [0; FILE_MAGIC.len()];
    let len = file.read(&mut head)?;
    Ok(len == 0 || len == FILE_MAGIC.len() && head == FILE_MAGIC)
}

fn random_suffix() -> String {
    let mut bytes = [0u8; 4];
    // A short read leaves zeros, which only makes the name less random.
    crate::platform::fill_random(&mut bytes);
    format!("{:08x}", u32::from_ne_bytes(bytes))
}

/// Inserts a suffix before the extension: `run.trace` and `1` give `run.1.trace`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Renames unless the new name exists. Returns false if it exists, or if another process has moved
/// the old file.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (from_c, to_c) = (path(from)?, path(to)?);
    let Err(error) = crate::platform::rename_no_replace(&from_c, &to_c) else { return Ok(true) };
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::ENOENT) => Ok(false),
        // Without the flag (some file systems, kernels and sandboxes), a hard link also fails if
        // the name exists.
        Some(libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::ENOTSUP) => match std::fs::hard_link(from, to)
        {
            Ok(()) => std::fs::remove_file(from).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        },
        _ => Err(error),
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
