//! Detects that all threads of the program have ended and only ours is left.
//!
//! A program may end its first thread and leave the rest to others (`pthread_exit` in `main`). The
//! process then ends with its last thread, and the writer thread would keep it alive. So the writer
//! checks at each nap, and ends the process as the C library would. A first thread that has ended
//! stays a zombie until the process ends.
//!
//! In a chroot or a sandbox there may be no `/proc`. Then the C library's own count of threads
//! decides: when it falls to zero, `pthread_exit` ends the process ([`__pthread_exit`]). glibc
//! exports the count for debuggers since 2.34. Without it, the writer asks for every possible
//! thread id whether it is one of ours, which takes a second, but only after the first thread has
//! ended.
//!
//! [`__pthread_exit`]: https://sourceware.org/git/?p=glibc.git;a=blob;f=nptl/pthread_create.c

use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::{has_thread_ended, this_thread};
use crate::platform::clock;

const TASKS: &CStr = c"/proc/self/task";
/// Every thread id is below this number (`PID_MAX_LIMIT` of the kernel).
const THREAD_ID_LIMIT: u32 = 4 << 20;
/// Time between two searches through all thread ids.
const SEARCH_INTERVAL_NS: u64 = 10_000_000_000;

/// True if the calling thread is the only one that runs.
pub(crate) fn is_last_thread(pid: u32) -> bool {
    match thread_directory_links() {
        // The directory has two links of its own and one for each thread.
        Some(links) => links == 2 + 2 && is_thread_dead(pid),
        None => is_last_thread_without_proc(pid),
    }
}

fn thread_directory_links() -> Option<u64> {
    // SAFETY: an all-zero stat is a valid buffer.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated name; the buffer is ours.
    let known = unsafe { libc::stat(TASKS.as_ptr(), &raw mut data) } == 0;
    known.then_some(data.st_nlink)
}

fn is_thread_dead(thread: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{thread}/stat")) else { return false };
    // The format is `pid (name) state`, and the name may contain any characters.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    matches!(state, Some(b'Z' | b'X'))
}

fn is_last_thread_without_proc(pid: u32) -> bool {
    match glibc_thread_count() {
        Some(count) => count == 1,
        None => has_no_memory(pid) && is_search_due() && !has_other_threads(pid, 1..THREAD_ID_LIMIT),
    }
}

/// The C library's count of running threads, ours included. `None` if it does not export it.
fn glibc_thread_count() -> Option<u32> {
    static COUNT: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
    let mut count = COUNT.load(Ordering::Acquire);
    if count.is_null() {
        count = super::find_symbol(c"__nptl_nthreads").map_or(count, |at| at as *mut u32);
        COUNT.store(count, Ordering::Release);
    }
    // SAFETY: an aligned `unsigned int` of the C library, which is never unloaded. It changes it
    // with atomics too.
    (!count.is_null()).then(|| unsafe { AtomicU32::from_ptr(count) }.load(Ordering::Acquire))
}

/// True if a thread has ended but is still known, as the first thread of a process is.
fn has_no_memory(thread: u32) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: reads one byte of our own into itself. The kernel finds no memory for a thread that
    // has ended.
    let read = unsafe { libc::process_vm_readv(thread as i32, &raw const here, 1, &raw const here, 1, 0) };
    // SAFETY: a valid pointer to this thread's errno.
    read < 0 && unsafe { *super::errno_location() } == libc::ESRCH
}

fn is_search_due() -> bool {
    static NEXT_NS: AtomicU64 = AtomicU64::new(0);
    let now_ns = clock::now_ns();
    let is_due = now_ns >= NEXT_NS.load(Ordering::Relaxed);
    if is_due {
        NEXT_NS.store(now_ns + SEARCH_INTERVAL_NS, Ordering::Relaxed);
    }
    is_due
}

/// True if the process has a thread with an id in this range, besides its first and the calling
/// one.
fn has_other_threads(pid: u32, mut ids: Range<u32>) -> bool {
    let this = this_thread();
    ids.any(|id| id != pid && id != this && !has_thread_ended(pid, id))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn running_thread_is_neither_dead_nor_last() {
        let pid = std::process::id();
        assert!(!is_thread_dead(pid) && !has_no_memory(pid));
        assert!(!is_last_thread(pid) && !is_last_thread_without_proc(pid));
    }

    #[test]
    fn counts_without_proc_agree_with_proc() {
        let pid = std::process::id();
        let (id_sender, ids) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            id_sender.send(this_thread()).unwrap();
            let _ = wait.recv();
        });
        let id = ids.recv().unwrap();
        assert!(has_other_threads(pid, id..id + 1));
        assert!(!has_other_threads(pid, 1..2), "process 1 is another process");
        if let Some(count) = glibc_thread_count() {
            assert!(count >= 3, "this thread, the test harness and the one above");
        }
        drop(end);
        thread.join().unwrap();
        // A joined thread is gone from the kernel's table soon afterwards.
        while !has_thread_ended(pid, id) {
            std::thread::yield_now();
        }
        assert!(has_no_memory(id) && !has_other_threads(pid, id..id + 1));
    }
}
