//! File leases: other processes that open or truncate the ring file wait until we let go of it.
//!
//! A store into a mapped file that another process has truncated raises SIGBUS, which ends the
//! program. A handler for that signal would change the program, and would not run if the program
//! has its own or blocks the signal. With a lease (`fcntl(2)`) the kernel notifies us first and
//! makes the other process wait, at most `/proc/sys/fs/lease-break-time`. It notifies with a
//! signal, which goes to the writer thread alone, where all signals are blocked; the writer checks
//! at every nap. A process that is stopped for longer loses the lease
//! (`ring/mapping/truncation_guard.rs`). Not every file system has leases, and a file that another
//! process is reading cannot be leased.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::platform::LeaseRequest;

const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;
const F_OWNER_TID: i32 = 0;
/// The signal of the lease. If it ever reached the program: its default action is none, and
/// handlers expect it without a reason.
const LEASE_SIGNAL: i32 = libc::SIGURG;

/// `struct f_owner_ex` of `fcntl.h`.
#[repr(C)]
struct FileOwner {
    kind: i32,
    id: i32,
}

/// Takes a write lease for the calling thread. Returns false if the file system has none, or if
/// another process has the file open.
pub(crate) fn take_lease(file: &File) -> bool {
    let owner = FileOwner { kind: F_OWNER_TID, id: super::this_thread() as i32 };
    // Without these two calls the program would get SIGIO. Its default action is to end the
    // process.
    // SAFETY: our own descriptor; the structure lives across the call.
    let is_ours = unsafe { libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) } == 0
        // SAFETY: our own descriptor.
        && unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, LEASE_SIGNAL) } == 0;
    // SAFETY: our own descriptor.
    is_ours && unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0
}

/// Returns what a waiting process wants to do with the file.
pub(crate) fn lease_request(file: &File) -> LeaseRequest {
    // SAFETY: our own descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) } {
        libc::F_UNLCK => LeaseRequest::Write,
        libc::F_RDLCK => LeaseRequest::Read,
        _ => LeaseRequest::None,
    }
}

/// How long the kernel waits for the answer of a process that holds a lease; 0 means for ever.
/// `None` if `/proc` does not say.
pub(crate) fn lease_break_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/fs/lease-break-time").ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(1_000_000_000)
}

/// Releases the lease, so that waiting processes continue. To be called by the thread that took it.
pub(crate) fn release_lease(file: &File) {
    // SAFETY: our own descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    crate::platform::signals::discard_pending(LEASE_SIGNAL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    type OpenFn = fn(&std::path::Path) -> std::io::Result<File>;

    #[test]
    fn truncating_process_waits_and_reader_is_distinguished() {
        // The signal mask and the owner of a lease belong to a thread.
        let test = || {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ring");
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            if !take_lease(&file) {
                return; // No leases on this file system; tests/suite requires them.
            }
            assert_eq!(lease_request(&file), LeaseRequest::None);
            let read: OpenFn = |path| File::open(path);
            let write: OpenFn = |path| File::options().write(true).truncate(true).open(path);
            for (open, expected) in [(read, LeaseRequest::Read), (write, LeaseRequest::Write)] {
                let path = path.clone();
                let other = std::thread::spawn(move || {
                    let begin = Instant::now();
                    open(&path).unwrap();
                    begin.elapsed()
                });
                while lease_request(&file) == LeaseRequest::None {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(lease_request(&file), expected);
                std::thread::sleep(Duration::from_millis(50));
                assert!(!other.is_finished());
                release_lease(&file);
                assert!(other.join().unwrap() >= Duration::from_millis(50));
                assert!(take_lease(&file), "the lease can be taken again");
            }
        };
        std::thread::spawn(move || crate::platform::signals::with_all_blocked(test)).join().unwrap();
    }
}
