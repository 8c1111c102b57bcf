//! Which file a session writes, and how no other process can come between.
//!
//! Constraint: many processes may start in one folder at once (ranks, notebooks, restarts), a finished trace must be kept,
//! one that is being written must never be touched, and a file name prepared by somebody else must not lead us elsewhere.
//! Consequence: a trace is created under a private name, locked (`flock`, which ends with the process), and only then given
//! its public name, in a step that fails if the name is taken. A taken name is moved aside if it is a trace and its lock is
//! free (its process has ended), else the newcomer takes a name with its pid. What is not a trace is never touched.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gpumemtrace_format::block::FILE_MAGIC;

/// A trace file of our own: created, locked, named.
#[derive(Debug)]
pub(crate) struct ReservedOutput {
    /// The locked trace file, empty.
    pub(crate) trace: File,
    /// The ring file, empty.
    pub(crate) ring: File,
    /// Name of the trace.
    pub(crate) path: PathBuf,
    /// Whether the wanted name belongs to a file that is not a trace.
    pub(crate) wanted_is_foreign: bool,
}

/// Values for the placeholders of a pattern.
#[derive(Clone, Debug)]
pub(crate) struct PatternValues {
    /// `%p`.
    pub(crate) pid: u32,
    /// `%r`; empty if there is no rank.
    pub(crate) rank: String,
    /// `%h`.
    pub(crate) host: String,
}

impl PatternValues {
    /// Fills a pattern. `%%` is a percent sign; other sequences stay as they are.
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

/// The ring file that belongs to a trace.
pub(crate) fn ring_path(trace: &Path) -> PathBuf {
    let mut name = OsString::from(trace);
    name.push(".ring");
    PathBuf::from(name)
}

/// A part of a trace that is full.
pub(crate) fn part_path(trace: &Path, trace_id: [u8; 16], number: u64) -> PathBuf {
    with_suffix(trace, &format!("{}.part{number}", short(trace_id)))
}

/// What the parts of a trace refer to.
pub(crate) fn stacks_path(trace: &Path, trace_id: [u8; 16]) -> PathBuf {
    with_suffix(trace, &format!("{}.stacks", short(trace_id)))
}

/// Enough of an id to tell the traces of one folder apart.
fn short(trace_id: [u8; 16]) -> String {
    format!("{:08x}", u128::from_be_bytes(trace_id) >> 96)
}

/// Creates a file that is not there yet, and locks it.
pub(crate) fn create_locked(path: &Path) -> io::Result<File> {
    let file = create_new(path)?;
    file.try_lock().map_err(io::Error::from)?;
    Ok(file)
}

/// Creates the trace and its ring file.
pub(crate) fn create(path: &Path, pid: u32) -> io::Result<ReservedOutput> {
    // Pids repeat (containers that share a folder), so the private name has some chance in it.
    let temporary = with_suffix(path, &format!("new.{pid}-{}", random_word()));
    let trace = create_locked(&temporary)?;
    let ring_temporary = ring_path(&temporary);
    let result = create_new(&ring_temporary)
        .and_then(|ring| publish(&temporary, path, pid).map(|(path, foreign)| (ring, path, foreign)));
    match result {
        Ok((ring, path, wanted_is_foreign)) => Ok(ReservedOutput { trace, ring, path, wanted_is_foreign }),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(&ring_temporary);
            Err(error)
        }
    }
}

/// Gives both files their public names; returns the name the trace got, and whether the wanted one is not a trace's.
fn publish(temporary: &Path, wanted: &Path, pid: u32) -> io::Result<(PathBuf, bool)> {
    let mut wanted_is_foreign = false;
    let own = with_suffix(wanted, &pid.to_string());
    let last = with_suffix(wanted, &format!("{pid}-{}", random_word()));
    for name in [wanted, &own, &last] {
        // Each round lost means that another process won the name meanwhile; after a few, take the next name.
        for _ in 0..16 {
            if link_both(temporary, name)? {
                return Ok((name.to_owned(), wanted_is_foreign));
            }
            match move_aside(name)? {
                MoveAside::NameIsFree => {}
                MoveAside::NotATrace => {
                    wanted_is_foreign |= name == wanted;
                    break;
                }
                MoveAside::StillTaken => break,
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "its name is taken by a process that is still writing it",
    ))
}

/// Renames ring and trace, without replacing a trace. False if the trace's name is taken.
fn link_both(temporary: &Path, name: &Path) -> io::Result<bool> {
    // The trace first: its name decides who owns the pair. A ring without a trace of its id is ignored by every reader.
    if !rename_to_new(temporary, name)? {
        return Ok(false);
    }
    std::fs::rename(ring_path(temporary), ring_path(name))?;
    Ok(true)
}

/// What became of a trace that had our name.
enum MoveAside {
    /// The name is free.
    NameIsFree,
    /// Its process is alive, or there are very many.
    StillTaken,
    /// It is not a trace.
    NotATrace,
}

/// Numbers that are tried for a finished trace.
const MOST_KEPT: u32 = 10_000;

/// Moves a finished trace to `name.1.ext`, `name.2.ext`, ...; nothing else is ever moved.
fn move_aside(path: &Path) -> io::Result<MoveAside> {
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
        Err(error) => return Err(error),
    };
    if !there.is_file() {
        return Err(io::Error::other("it is a folder, a link, or a device, not a file"));
    }
    let mut held =
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
            // Somebody else's, perhaps a trace.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(MoveAside::StillTaken);
            }
            Err(error) => return Err(error),
        };
    match held.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(MoveAside::StillTaken),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Between looking, opening and locking, another newcomer may have moved this file and put its own, live one here. From
    // now on nobody can: whoever moves a trace holds its lock, as we do.
    let ours = held.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
        Ok(_) => return Ok(MoveAside::NameIsFree),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MoveAside::NameIsFree),
        Err(error) => return Err(error),
    }
    if !ours.is_file() || !is_trace_or_empty(&mut held)? {
        return Ok(MoveAside::NotATrace);
    }
    for number in 1..=MOST_KEPT {
        let aside = with_suffix(path, &number.to_string());
        if std::fs::symlink_metadata(&aside).is_ok() || !move_ring(path, &aside)? {
            continue;
        }
        if rename_to_new(path, &aside)? {
            return Ok(MoveAside::NameIsFree);
        }
        let _ = std::fs::remove_file(ring_path(&aside));
    }
    Ok(MoveAside::StillTaken)
}

/// Gives the ring its new name before the trace gets it: a newcomer may put its own ring here as soon as the trace is away.
/// The old name stays until then, so that a trace is never without its ring. False if the new name is taken.
fn move_ring(from: &Path, to: &Path) -> io::Result<bool> {
    let (from, to) = (ring_path(from), ring_path(to));
    match std::fs::hard_link(&from, &to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // No hard links here.
        Err(_) => rename_to_new(&from, &to),
    }
}

fn is_trace_or_empty(file: &mut File) -> io::Result<bool> {
    let mut head = [0; FILE_MAGIC.len()];
    let len = file.read(&mut head)?;
    Ok(len == 0 || len == FILE_MAGIC.len() && head == FILE_MAGIC)
}

fn random_word() -> String {
    let mut bytes = [0u8; 4];
    // A short answer leaves zeros, which only makes the name less unlikely.
    crate::platform::random(&mut bytes);
    format!("{:08x}", u32::from_ne_bytes(bytes))
}

/// `run.trace` and `1` give `run.1.trace`.
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

/// Renames unless the new name exists; false if it does (or the old one is gone: somebody else moved it).
fn rename_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (from_c, to_c) = (path(from)?, path(to)?);
    let Err(error) = crate::platform::rename_to_new(&from_c, &to_c) else { return Ok(true) };
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::ENOENT) => Ok(false),
        // File systems, kernels and sandboxes without the flag: a hard link fails in the same way when the name exists.
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
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn patterns_are_filled() {
        let names = PatternValues { pid: 7, rank: "3".into(), host: "node".into() };
        assert_eq!(names.expand("run.%p.rank%r@%h.%%.%x%"), "run.7.rank3@node.%.%x%");
    }

    #[test]
    fn a_finished_trace_is_kept_and_its_ring_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        std::fs::write(&path, b"gpumtrc\nfirst").unwrap();
        std::fs::write(ring_path(&path), "ring of first").unwrap();
        let output = create(&path, 1).unwrap();
        assert_eq!(output.path, path);
        let aside = folder.path().join("run.1.trace");
        assert_eq!(std::fs::read(&aside).unwrap(), b"gpumtrc\nfirst");
        assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"ring of first");
        assert_eq!(std::fs::metadata(ring_path(&path)).unwrap().len(), 0);
        drop(output);
        create(&path, 1).unwrap();
        assert!(folder.path().join("run.2.trace").exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6, "no temporary files stay");
    }

    #[test]
    fn a_trace_of_a_live_process_is_never_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        let first = create(&path, 1).unwrap();
        let second = create(&path, 42).unwrap();
        assert_eq!(second.path, folder.path().join("run.42.trace"));
        assert_eq!(first.path, path);
    }

    #[test]
    fn what_is_not_a_trace_is_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let notes = folder.path().join("notes.txt");
        std::fs::write(&notes, "mine").unwrap();
        let output = create(&notes, 7).unwrap();
        assert_eq!((output.path, output.wanted_is_foreign), (folder.path().join("notes.7.txt"), true));
        assert_eq!(std::fs::read(&notes).unwrap(), b"mine");

        let device = folder.path().join("device");
        let device_c = std::ffi::CString::new(device.as_os_str().as_bytes()).unwrap();
        // SAFETY: makes a FIFO under a NUL-terminated name.
        assert_eq!(unsafe { libc::mkfifo(device_c.as_ptr(), 0o600) }, 0);
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        for name in ["device", "folder"] {
            let error = create(&folder.path().join(name), 7).unwrap_err();
            assert!(error.to_string().contains("not a file"), "{error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5, "nothing else is left");
    }

    #[test]
    fn a_pid_seen_before_still_finds_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        let outputs: Vec<ReservedOutput> = (0..3).map(|_| create(&path, 1).unwrap()).collect();
        assert_eq!(outputs[1].path, folder.path().join("run.1.trace"));
        assert!(outputs[2].path.file_name().unwrap().to_string_lossy().starts_with("run.1-"));
    }

    #[test]
    fn a_trace_is_never_without_its_ring_while_it_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        drop(create(&path, 1).unwrap());
        std::fs::write(ring_path(&path), "ring").unwrap();
        std::fs::write(ring_path(&with_suffix(&path, "1")), "a ring that lost its trace").unwrap();
        assert!(matches!(move_aside(&path).unwrap(), MoveAside::NameIsFree));
        let aside = with_suffix(&path, "2");
        assert_eq!(std::fs::read(ring_path(&aside)).unwrap(), b"ring");
        assert!(aside.exists() && !path.exists());
    }

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        let precious = folder.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        symlink(&precious, &path).unwrap();
        assert!(create(&path, 1).is_err(), "a link under our name is refused, not followed");
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine");

        let output = create(&folder.path().join("other.trace"), 1).unwrap();
        assert_eq!(output.trace.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(output.ring.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_hundred_newcomers_at_once_all_get_a_file_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        let outputs: Vec<ReservedOutput> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=100)
                .map(|pid| {
                    scope.spawn({
                        let path = &path;
                        move || create(path, pid).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut names: Vec<PathBuf> = outputs.iter().map(|output| output.path.clone()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 100);
        for output in outputs {
            assert!(output.path.exists() && ring_path(&output.path).exists());
        }
    }
}
