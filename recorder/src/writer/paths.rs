//! Names of the trace's files, and how a process reserves them.
//!
//! Many processes may start in one folder at once (ranks, notebooks, restarts). A finished trace
//! must be kept, a trace that is being written must not be touched, and a prepared symlink must not
//! redirect us. So trace and ring file are created under temporary names and locked (`flock`, which
//! ends with the process). Then they are renamed in steps that fail if a name is taken. If the name
//! belongs to a trace that no process has locked, that trace is moved aside. If anything else has
//! the name of the trace or of its ring file, both get a name with the pid. No file of the user is
//! touched.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::FILE_MAGIC;
use gpumemtrace_format::ring::RING_MAGIC;

use crate::diagnostics::error_text;
use occupant::Occupant;

mod occupant;

/// The files of a new trace, created and named.
#[derive(Debug)]
pub(crate) struct ReservedOutput {
    /// The locked trace file, empty.
    pub(crate) trace: File,
    /// The ring file, empty.
    pub(crate) ring: File,
    /// The name that the trace got.
    pub(crate) path: PathBuf,
    /// What prevented a better name, unless that is a running recording.
    pub(crate) obstacle: Option<Obstacle>,
}

/// A file that keeps a name from being used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Obstacle {
    pub(crate) path: PathBuf,
    /// Follows the path in a sentence: "is a folder".
    pub(crate) what: String,
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
    /// Replaces `%j`; empty outside the jobs of a scheduler.
    pub(crate) job: String,
}

impl PatternValues {
    /// Replaces the placeholders. `%%` gives a percent sign; unknown sequences stay as they are.
    pub(crate) fn expand(&self, pattern: &OsStr) -> OsString {
        let mut out = Vec::new();
        let mut bytes = pattern.as_bytes().iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            match bytes.next() {
                Some(b'p') => out.extend(self.pid.to_string().as_bytes()),
                Some(b'r') => out.extend(self.rank.as_bytes()),
                Some(b'h') => out.extend(self.host.as_bytes()),
                Some(b'j') => out.extend(short_job(&self.job).as_bytes()),
                Some(b'%') | None => out.push(b'%'),
                Some(other) => out.extend([b'%', other]),
            }
        }
        OsString::from_vec(out)
    }
}

/// A file name has at most 255 bytes, with all that is added to it.
const MAX_JOB_BYTES: usize = 100;

/// A job ID as a part of a file name. A number that depends on the whole replaces the end of a long
/// one.
fn short_job(job: &str) -> Cow<'_, str> {
    if job.len() <= MAX_JOB_BYTES {
        return Cow::Borrowed(job);
    }
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept = (0..=MAX_JOB_BYTES - 17).rev().find(|end| job.is_char_boundary(*end)).unwrap_or(0);
    Cow::Owned(format!("{}-{hash:016x}", &job[..kept]))
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

/// True for a path in `/dev` or `/proc`, where names belong to devices and streams. New files
/// beside them would take memory, or be visible to the whole system.
pub(crate) fn is_in_system_folder(path: &Path) -> bool {
    path.parent().is_some_and(|folder| {
        folder == Path::new("/dev") || folder == Path::new("/dev/fd") || folder.starts_with("/proc")
    })
}

/// Creates a file that must not exist yet, and locks it if its file system has locks.
pub(crate) fn create_locked(path: &Path) -> io::Result<File> {
    let file = create_new(path)?;
    match file.try_lock().map_err(io::Error::from) {
        Err(error) if !is_without_locks(&error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
        _ => Ok(file),
    }
}

/// True if the file system has no `flock` (on Lustre, the mount option `noflock`: mount.lustre(8))
/// or no lock manager.
fn is_without_locks(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK))
}

/// Creates an empty trace and its ring file under the best free name for `path`.
pub(crate) fn reserve(path: &Path, pid: u32) -> io::Result<ReservedOutput> {
    // Containers that share a folder may have equal pids, so the temporary name is partly random.
    let temporary = with_suffix(path, &format!("new.{pid}-{}", random_suffix()));
    let trace = create_locked(&temporary)?;
    let ring_temporary = ring_path(&temporary);
    let result = create_locked(&ring_temporary).and_then(|ring| Ok((ring, publish(&temporary, path, pid)?)));
    match result {
        Ok((ring, (path, obstacle))) => Ok(ReservedOutput { trace, ring, path, obstacle }),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(&ring_temporary);
            Err(error)
        }
    }
}

/// Gives both files their public names. Returns the trace's name, and what prevented a better one.
fn publish(temporary: &Path, wanted: &Path, pid: u32) -> io::Result<(PathBuf, Option<Obstacle>)> {
    let mut first_obstacle = None;
    let own = with_suffix(wanted, &pid.to_string());
    let last = with_suffix(wanted, &format!("{pid}-{}", random_suffix()));
    for name in [wanted, &own, &last] {
        // Each failed attempt means that another process took the name meanwhile; then try the next
        // name.
        for _ in 0..16 {
            match claim(temporary, name)? {
                Claim::Taken => return Ok((name.to_owned(), first_obstacle)),
                Claim::Changed => {}
                Claim::InUse => break,
                Claim::Blocked(obstacle) => {
                    first_obstacle.get_or_insert(obstacle);
                    break;
                }
            }
        }
    }
    let text = match first_obstacle {
        Some(Obstacle { path, what }) => format!("{} {what}", path.display()),
        None => "another process is still writing a trace of that name".to_owned(),
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

/// The outcome of [`claim`].
enum Claim {
    /// Both files have the name now.
    Taken,
    /// Another process changed the folder; try again.
    Changed,
    /// A live process writes a trace of this name, or all numbers for a finished one are taken.
    InUse,
    Blocked(Obstacle),
}

/// Tries to give both files a name. Without success, they keep the temporary one.
fn claim(temporary: &Path, name: &Path) -> io::Result<Claim> {
    let blocked = |path: &Path, what: String| Ok(Claim::Blocked(Obstacle { path: path.to_owned(), what }));
    let finished = match occupant::find(name, &FILE_MAGIC, "a trace")? {
        Occupant::None => None,
        Occupant::Ours(lock) => Some(lock),
        Occupant::InUse => return Ok(Claim::InUse),
        Occupant::Changed => return Ok(Claim::Changed),
        Occupant::Foreign(what) => return blocked(name, what),
    };
    let ring = ring_path(name);
    // Opening the ring file of a live process would break its lease, so this comes second.
    let old_ring = match occupant::find(&ring, &RING_MAGIC, "a ring file")? {
        Occupant::None => None,
        Occupant::Ours(lock) => Some(lock),
        // A process that starts at the same time may just have taken both names.
        Occupant::InUse if finished.is_none() && exists(name) => {
            return Ok(Claim::Changed);
        }
        Occupant::InUse => return blocked(&ring, "is in use by another process".to_owned()),
        Occupant::Changed => return Ok(Claim::Changed),
        Occupant::Foreign(what) => return blocked(&ring, what),
    };
    if finished.is_some() {
        match move_aside(name, old_ring.is_some()) {
            Ok(true) => {}
            Ok(false) => return Ok(Claim::InUse),
            // A file of another user in a sticky folder.
            Err(error) => return blocked(name, format!("cannot be renamed: {}", error_text(&error))),
        }
    }
    // The trace comes first: its name decides which process owns the pair. Readers ignore a ring
    // file with another id.
    if !rename_to_new(temporary, name)? {
        return Ok(Claim::Changed);
    }
    match place_ring(&ring_path(temporary), &ring, old_ring.is_some()) {
        Ok(true) => Ok(Claim::Taken),
        outcome => {
            rename_to_new(name, temporary)?;
            match outcome {
                Err(error) => blocked(&ring, format!("cannot be replaced: {}", error_text(&error))),
                Ok(_) => Ok(Claim::Changed),
            }
        }
    }
}

/// Gives the ring file its name, in place of the ring file of a dead process. Returns false if
/// another file has taken the name.
fn place_ring(temporary: &Path, ring: &Path, has_old_ring: bool) -> io::Result<bool> {
    if has_old_ring {
        match std::fs::remove_file(ring) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    rename_to_new(temporary, ring)
}

/// Largest number that is tried for a finished trace.
const MAX_NUMBER: u32 = 10_000;

/// Renames a finished trace, which must be locked, to `name.1.ext`, `name.2.ext`, ... Returns false
/// if all numbers are taken.
fn move_aside(path: &Path, has_ring: bool) -> io::Result<bool> {
    for number in 1..=MAX_NUMBER {
        let aside = with_suffix(path, &number.to_string());
        if exists(&aside) || exists(&ring_path(&aside)) || has_ring && !link_ring(path, &aside)? {
            continue;
        }
        let moved = rename_to_new(path, &aside);
        if !matches!(moved, Ok(true)) && has_ring {
            undo_second_name(&ring_path(path), &ring_path(&aside));
        }
        if moved? {
            return Ok(true);
        }
    }
    Ok(false)
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

/// Takes a second name away from a file, or gives it the first one back if it was renamed.
pub(crate) fn undo_second_name(first: &Path, second: &Path) {
    let _ = if exists(first) { std::fs::remove_file(second) } else { std::fs::rename(second, first) };
}

fn exists(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
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
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    // The umask may have removed the owner's rights, and readers need them.
    if file.metadata()?.mode() & OWNER_ONLY != OWNER_ONLY {
        // A file system without modes, or a sandbox, may refuse; recording does not need them.
        let _ = file.set_permissions(Permissions::from_mode(OWNER_ONLY));
    }
    Ok(file)
}

/// Mode of all our files: a trace names files and functions of its user.
const OWNER_ONLY: u32 = 0o600;

/// Renames unless the new name exists. Returns false if it exists, or if another process has moved
/// the old file.
pub(crate) fn rename_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (from_c, to_c) = (path(from)?, path(to)?);
    let Err(error) = crate::platform::rename_no_replace(&from_c, &to_c) else { return Ok(true) };
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::ENOENT) => Ok(false),
        // Without the flag (some file systems, kernels and sandboxes), a hard link also fails if
        // the name exists.
        Some(libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::ENOTSUP) => match std::fs::hard_link(from, to)
        {
            Ok(()) => std::fs::remove_file(from).map(|()| true).inspect_err(|_| {
                let _ = std::fs::remove_file(to);
            }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        },
        _ => Err(error),
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
