//! Reads the ring file beside a trace without waiting for a program that does not answer.
//!
//! The recorder holds a lease on its ring file (`recorder/src/platform/linux/lease.rs`). `open(2)`
//! waits until the recorder has released it, or until `/proc/sys/fs/lease-break-time` (45 s) has
//! passed; a stopped program never answers. So a ring of a program that is known to be stopped is
//! not opened at all, because even an attempt takes the lease away in the end. Any other ring is
//! opened with `O_NONBLOCK`. If that fails, a thread opens it and waits, for at most a few seconds.
//! While an `open(2)` waits, the recorder cannot take its lease again, so the reader gets in even
//! if it is scheduled late.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gpumemtrace_format::ring::{RingImage, RingProgress, RingSource};
use gpumemtrace_replay::RingFile;
use rustix::fs::OFlags;

/// How long to wait for the recorder. Its writer thread looks for waiting readers four times a
/// second.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(3);
/// After a program did not answer, its ring is not opened again for this long. By then the kernel
/// has taken the lease away.
const NEXT_ATTEMPT: Duration = Duration::from_mins(1);

/// The path of the ring file of a trace.
pub(crate) fn ring_path(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".ring");
    PathBuf::from(name)
}

/// Reads the ring file of a trace.
pub(crate) fn read_ring(trace: &Path) -> RingFile {
    RingReader::new(trace).read_new(|_| false)
}

/// Reads one ring file once or several times.
pub(crate) struct RingReader {
    path: PathBuf,
    progress: RingProgress,
    /// When the program did not answer.
    unanswered: Option<Instant>,
}

impl RingReader {
    /// Reads the ring file of the trace `trace`.
    pub(crate) fn new(trace: &Path) -> Self {
        Self { path: ring_path(trace), progress: RingProgress::default(), unanswered: None }
    }

    /// Reads what earlier calls have not read. Waits for the recorder for at most a few seconds. If
    /// the content of the first page satisfies `is_known`, reads no more: the image then has no
    /// records.
    pub(crate) fn read_new(&mut self, is_known: impl FnOnce(&RingImage) -> bool) -> RingFile {
        let mut file = match self.open() {
            Ok(file) => OpenRing(file),
            Err(why) => return why,
        };
        match RingImage::read_new(&mut file, &mut self.progress, is_known) {
            Ok(image) => RingFile::Loaded(Box::new(image)),
            Err(error) => RingFile::Unusable(error.to_string()),
        }
    }

    /// True if the program did not answer at the last attempt.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }

    fn open(&mut self) -> Result<File, RingFile> {
        let facts = std::fs::metadata(&self.path).map_err(unreadable)?;
        if !facts.is_file() {
            return Err(RingFile::Unusable("is not a regular file".to_owned()));
        }
        let owner = lease_owner(&facts);
        if owner.is_some_and(is_stopped)
            || self.unanswered.is_some_and(|since| since.elapsed() < NEXT_ATTEMPT)
        {
            self.unanswered.get_or_insert_with(Instant::now);
            return Err(does_not_answer(owner));
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let opened = match options.open(&self.path) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => open_patiently(self.path.clone()),
            other => Some(other),
        };
        self.unanswered = opened.is_none().then(Instant::now);
        opened.ok_or_else(|| does_not_answer(owner))?.map_err(unreadable)
    }
}

struct OpenRing(File);

impl RingSource for OpenRing {
    fn read_at(&mut self, at: u64, into: &mut [u8]) -> std::io::Result<usize> {
        FileExt::read_at(&self.0, into, at)
    }

    fn length_bytes(&mut self) -> std::io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Opens a file and waits for its lease; `None` if the recorder does not answer in time. The thread
/// then goes on waiting: the kernel ends its wait, or the end of this process.
fn open_patiently(path: PathBuf) -> Option<std::io::Result<File>> {
    let (sender, receiver) = mpsc::channel();
    let open = move || drop(sender.send(File::open(path)));
    if let Err(error) = std::thread::Builder::new().name("ring".to_owned()).spawn(open) {
        return Some(Err(error));
    }
    receiver.recv_timeout(MAX_ANSWER_TIME).ok()
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` passes it")]
fn unreadable(error: std::io::Error) -> RingFile {
    match error.kind() {
        ErrorKind::NotFound => RingFile::Absent,
        _ => RingFile::Unusable(format!("cannot be read ({error})")),
    }
}

/// The text completes "the ring file ...".
fn does_not_answer(pid: Option<u32>) -> RingFile {
    let pid = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    RingFile::Unusable(format!(
        "cannot be read, because the program{pid} does not answer; it is probably stopped (SIGSTOP, a debugger or a \
         frozen cgroup). Its last events are not included; continue the program and run this again"
    ))
}

/// The process that holds a lease on the file; `None` if there is none, or if it is in another
/// process namespace.
#[cfg(target_os = "linux")]
fn lease_owner(facts: &std::fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let device = (rustix::fs::major(facts.dev()), rustix::fs::minor(facts.dev()));
    find_lease(&std::fs::read_to_string("/proc/locks").ok()?, device, facts.ino())
}

/// macOS has no file leases.
#[cfg(not(target_os = "linux"))]
fn lease_owner(_: &std::fs::Metadata) -> Option<u32> {
    None
}

/// Finds the lease in the text of `/proc/locks` (`proc_locks(5)`). There the device is that of the
/// file system, which on btrfs is not the device of `stat(2)`; such a lease is not found.
#[cfg(any(target_os = "linux", test))]
fn find_lease(locks: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        // "5: LEASE  ACTIVE    WRITE 4711 08:01:123456 0 EOF"
        match *line.split_whitespace().collect::<Vec<_>>() {
            [_, "LEASE", _, _, pid, place, ..] if place == file => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    })
}

/// True if a signal or a debugger has stopped the process. A frozen cgroup does not show here.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| has_stopped_state(&stat))
}

/// The state follows the name, which may contain anything (`proc_pid_stat(5)`).
fn has_stopped_state(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_found_by_device_and_inode() {
        let locks = "1: FLOCK  ADVISORY  WRITE 11 fe:00:77 0 EOF\n\
                     2: LEASE  ACTIVE    WRITE 12 fe:00:78 0 EOF\n\
                     3: LEASE  BREAKING  READ  13 fe:00:77 0 EOF\n\
                     4: LEASE  ACTIVE    WRITE 0 fe:00:79 0 EOF\n";
        let device = (0xfe, 0);
        assert_eq!(find_lease(locks, device, 77), Some(13));
        assert_eq!(find_lease(locks, device, 78), Some(12));
        assert_eq!(find_lease(locks, device, 79), None, "the process is in another namespace");
        assert_eq!(find_lease(locks, (0xfe, 1), 77), None);
    }

    #[test]
    fn state_follows_a_hostile_process_name() {
        assert!(has_stopped_state("7 (a) S 1) T 1 7"));
        assert!(has_stopped_state("7 (python) t 1 7"));
        assert!(!has_stopped_state("7 (a) T 1) S 1 7"));
        assert!(!has_stopped_state(""));
    }
}
