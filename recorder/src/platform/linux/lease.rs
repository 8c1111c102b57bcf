//! Who else opens or cuts the ring file waits until we have let go of it.
//!
//! Constraint: a store into a mapped file that somebody has cut raises SIGBUS, which ends the program; and a handler for that signal
//! would be a changed program (and useless where the program has its own, or blocks it). Consequence: a lease (`fcntl(2)`): before
//! anybody else opens or cuts the file, the kernel asks us and makes them wait, for `/proc/sys/fs/lease-break-time` at most. It
//! asks with a signal, so that is sent to the writer thread alone, where all signals are blocked; the writer looks at every nap.
//! Not every file system has leases; and while somebody reads the file there can be none.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::platform::LeaseRequest;

const F_SETOWN_EX: i32 = 15;
const F_SETSIG: i32 = 10;
const F_OWNER_TID: i32 = 0;
/// The signal. Should it ever reach the program, its default is to be ignored, and handlers of it expect it without a reason.
const QUESTION: i32 = libc::SIGURG;

/// `struct f_owner_ex`.
#[repr(C)]
struct FileOwner {
    kind: i32,
    id: i32,
}

/// Takes the lease, for the calling thread; false if there can be none now.
pub(crate) fn take(file: &File) -> bool {
    let owner = FileOwner { kind: F_OWNER_TID, id: super::this_thread() as i32 };
    // Without these two the question would be asked of the program, whose default is to end.
    // SAFETY: our own descriptor; the structure lives across the call.
    let is_ours = unsafe { libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) } == 0
        // SAFETY: our own descriptor.
        && unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, QUESTION) } == 0;
    // SAFETY: our own descriptor.
    is_ours && unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0
}

/// Whether somebody waits.
pub(crate) fn asked(file: &File) -> LeaseRequest {
    // SAFETY: our own descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) } {
        libc::F_UNLCK => LeaseRequest::Write,
        libc::F_RDLCK => LeaseRequest::Read,
        _ => LeaseRequest::None,
    }
}

/// Lets them go on. To be called by the thread that took it.
pub(crate) fn give(file: &File) {
    // SAFETY: our own descriptor.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    crate::platform::signals::take_back(QUESTION);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    type OpenFn = fn(&std::path::Path) -> std::io::Result<File>;

    #[test]
    fn who_cuts_the_file_waits_for_us_and_who_reads_it_is_told_apart() {
        // A signal mask and an owner are a thread's.
        let test = || {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ring");
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            if !take(&file) {
                return; // No leases here; the suites require them.
            }
            assert_eq!(asked(&file), LeaseRequest::None);
            let read: OpenFn = |path| File::open(path);
            let write: OpenFn = |path| File::options().write(true).truncate(true).open(path);
            for (open, expected) in [(read, LeaseRequest::Read), (write, LeaseRequest::Write)] {
                let path = path.clone();
                let other = std::thread::spawn(move || {
                    let begin = Instant::now();
                    open(&path).unwrap();
                    begin.elapsed()
                });
                while asked(&file) == LeaseRequest::None {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(asked(&file), expected);
                std::thread::sleep(Duration::from_millis(50));
                assert!(!other.is_finished());
                give(&file);
                assert!(other.join().unwrap() >= Duration::from_millis(50));
                assert!(take(&file), "again, when the other has gone");
            }
        };
        std::thread::spawn(move || crate::platform::signals::with_all_blocked(test)).join().unwrap();
    }
}
