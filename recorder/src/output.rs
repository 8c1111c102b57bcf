//! Which file a session writes, and how no other process can come between.
//!
//! Constraint: many processes may start in one folder at once (ranks, notebooks, restarts), a finished trace must be kept,
//! one that is being written must never be touched, and a file name prepared by somebody else must not lead us elsewhere.
//! Consequence: a trace is created under a private name, locked (`flock`, which ends with the process), and only then given
//! its public name, in a step that fails if the name is taken. A taken name is moved aside if its lock is free (its
//! process has ended), else the newcomer takes a name with its pid.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A trace file of our own: created, locked, named.
#[derive(Debug)]
pub(crate) struct Output {
    /// The locked trace file, empty.
    pub(crate) trace: File,
    /// The ring file, empty.
    pub(crate) ring: File,
    /// Name of the trace.
    pub(crate) path: PathBuf,
}

/// Values for the placeholders of a pattern.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// `%p`.
    pub(crate) pid: u32,
    /// `%r`; empty if there is no rank.
    pub(crate) rank: String,
    /// `%h`.
    pub(crate) host: String,
}

impl Names {
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

/// Creates the trace and its ring file.
pub(crate) fn create(path: &Path, pid: u32) -> io::Result<Output> {
    let temporary = with_suffix(path, &format!("new.{pid}"));
    // Left behind by a process with our pid that died in the middle of this function.
    remove_if_there(&temporary)?;
    let trace = create_new(&temporary)?;
    trace.try_lock().map_err(io::Error::from)?;
    let ring_temporary = ring_path(&temporary);
    remove_if_there(&ring_temporary)?;
    let result = create_new(&ring_temporary).and_then(|ring| {
        let path = publish(&temporary, path, pid)?;
        Ok((ring, path))
    });
    match result {
        Ok((ring, path)) => Ok(Output { trace, ring, path }),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            let _ = std::fs::remove_file(&ring_temporary);
            Err(error)
        }
    }
}

/// Gives both files their public names; returns the name the trace got.
fn publish(temporary: &Path, wanted: &Path, pid: u32) -> io::Result<PathBuf> {
    // Each round lost means that another process won the name meanwhile; after a few, our pid makes the name our own.
    for _ in 0..16 {
        if link_both(temporary, wanted)? {
            return Ok(wanted.to_owned());
        }
        if !move_aside(wanted)? {
            break;
        }
    }
    let own = with_suffix(wanted, &pid.to_string());
    for _ in 0..16 {
        if link_both(temporary, &own)? {
            return Ok(own);
        }
        // A trace of an earlier process with our pid.
        if !move_aside(&own)? {
            break;
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

/// Moves a finished trace to `name.1.ext`, `name.2.ext`, ...; false if its process is still alive.
fn move_aside(path: &Path) -> io::Result<bool> {
    let held =
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
    match held.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // Between opening and locking, another newcomer may have moved this file and put its own, live one here. From now on
    // nobody can: whoever moves a trace holds its lock, as we do.
    let (ours, there) = (held.metadata()?, std::fs::symlink_metadata(path));
    if there.is_ok_and(|there| (there.dev(), there.ino()) != (ours.dev(), ours.ino())) {
        return Ok(true);
    }
    for number in 1..u32::MAX {
        let aside = with_suffix(path, &number.to_string());
        if rename_to_new(path, &aside)? {
            match std::fs::rename(ring_path(path), ring_path(&aside)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(true),
            }
        }
    }
    Ok(false)
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

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Renames unless the new name exists; false if it does (or the old one is gone: somebody else moved it).
fn rename_to_new(from: &Path, to: &Path) -> io::Result<bool> {
    let path = |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (from_c, to_c) = (path(from)?, path(to)?);
    // SAFETY: two NUL-terminated paths.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from_c.as_ptr(),
            libc::AT_FDCWD,
            to_c.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EEXIST | libc::ENOENT) => Ok(false),
        // File systems and kernels without the flag: a hard link fails in the same way when the name exists.
        Some(libc::EINVAL | libc::ENOSYS) => match std::fs::hard_link(from, to) {
            Ok(()) => std::fs::remove_file(from).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        },
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn patterns_are_filled() {
        let names = Names { pid: 7, rank: "3".into(), host: "node".into() };
        assert_eq!(names.expand("run.%p.rank%r@%h.%%.%x%"), "run.7.rank3@node.%.%x%");
    }

    #[test]
    fn a_finished_trace_is_kept_and_its_ring_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.trace");
        std::fs::write(&path, "first").unwrap();
        std::fs::write(ring_path(&path), "ring of first").unwrap();
        let output = create(&path, 1).unwrap();
        assert_eq!(output.path, path);
        let aside = folder.path().join("run.1.trace");
        assert_eq!(std::fs::read(&aside).unwrap(), b"first");
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
        let outputs: Vec<Output> = std::thread::scope(|scope| {
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
