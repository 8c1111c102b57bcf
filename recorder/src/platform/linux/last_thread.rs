//! Detects that all threads of the program have ended and only ours is left.
//!
//! A program may end its first thread and leave the rest to others (`pthread_exit` in `main`). The
//! process then ends with its last thread, and the writer thread would keep it alive. So the writer
//! checks at each nap, and ends the process as its last thread would have. A first thread that has
//! ended stays a zombie until the process ends.
//!
//! How the process ends depends on how its threads ended. The C library counts its threads, and
//! ends the process with `exit(0)` when the last of them returns ([`__pthread_exit`]). A thread
//! that ends past the C library stays in that count, so the C library does nothing: the process
//! ends without exit handlers. Then the status of the first thread, which `/proc` shows, tells the
//! exit code or the signal. glibc exports its count for debuggers since 2.34.
//!
//! In a chroot or a sandbox there may be no `/proc`. Then the count alone shows the usual end. If
//! there is no count, or a thread has ended past the C library, the writer asks for every possible
//! thread id whether it is one of ours. That takes a second, but only after the first thread has
//! ended.
//!
//! [`__pthread_exit`]: https://sourceware.org/git/?p=glibc.git;a=blob;f=nptl/pthread_create.c

use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::{has_thread_ended, this_thread};
use crate::platform::{LastThreadEnd, clock};

const TASKS: &CStr = c"/proc/self/task";
/// Every thread id is below this number (`PID_MAX_LIMIT` of the kernel).
const THREAD_ID_LIMIT: u32 = 4 << 20;
/// Time between two searches through all thread ids.
const SEARCH_INTERVAL_NS: u64 = 10_000_000_000;

/// How the program has ended, if the calling thread and `other`, which is ours too, are the only
/// ones that still run.
pub(crate) fn last_thread_end(pid: u32, other: Option<u32>) -> Option<LastThreadEnd> {
    let other = other.filter(|thread| *thread == 0 || !has_thread_ended(pid, *thread));
    let own = 1 + u32::from(other.is_some());
    let Some(links) = thread_directory_links() else { return end_without_proc(pid, other) };
    // The directory has two links of its own and one for each thread.
    let stat = if links == 2 + 1 + u64::from(own) { thread_stat(pid)? } else { return None };
    is_dead(&stat).then(|| match glibc_thread_count() {
        Some(count) if count == own => LastThreadEnd::Returned,
        count => end_by_code(exit_code(&stat), count.is_some()),
    })
}

/// The end of a process by the exit code of its first thread, in the form that `wait` uses.
/// `is_past_library` is true if a thread is known to have ended past the C library.
fn end_by_code(code: Option<i32>, is_past_library: bool) -> LastThreadEnd {
    match code {
        // The C library's own end of a thread looks the same.
        Some(0) | None if !is_past_library => LastThreadEnd::Returned,
        None => LastThreadEnd::Unknown,
        Some(code) if code & 0x7f != 0 => LastThreadEnd::Killed(code & 0x7f),
        Some(code) => LastThreadEnd::Exited(code >> 8 & 0xff),
    }
}

fn thread_directory_links() -> Option<u64> {
    // SAFETY: an all-zero stat is a valid buffer.
    let mut data: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated name; the buffer is ours.
    let known = unsafe { libc::stat(TASKS.as_ptr(), &raw mut data) } == 0;
    known.then_some(data.st_nlink)
}

/// The fields of a thread's `stat` file from its state on. The format is `pid (name) state ...`,
/// and the name may contain any characters.
fn thread_stat(thread: u32) -> Option<Vec<u8>> {
    let stat = std::fs::read(format!("/proc/self/task/{thread}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    Some(stat.get(name_end + 2..)?.to_vec())
}

fn is_dead(stat: &[u8]) -> bool {
    matches!(stat.first(), Some(b'Z' | b'X'))
}

/// The exit code of a dead thread: field 52, where the state is field 3
/// ([proc_pid_stat(5)](https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html)).
fn exit_code(stat: &[u8]) -> Option<i32> {
    let field = stat.split(|byte| *byte == b' ').nth(52 - 3)?;
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

fn end_without_proc(pid: u32, other: Option<u32>) -> Option<LastThreadEnd> {
    let has_count = glibc_thread_count().is_some();
    let is_counted_last = || glibc_thread_count() == Some(1 + u32::from(other.is_some()));
    if is_counted_last() {
        return Some(LastThreadEnd::Returned);
    }
    let own = [pid, this_thread(), other.unwrap_or(pid)];
    let is_last = has_no_memory(pid) && is_search_due() && !has_other_threads(pid, &own, 1..THREAD_ID_LIMIT);
    // The last thread may have returned since it was counted, before the search came to it.
    is_last.then(|| end_by_code(None, has_count && !is_counted_last()))
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

/// True if the process has a thread with an id in this range that is not in `known`.
fn has_other_threads(pid: u32, known: &[u32], mut ids: Range<u32>) -> bool {
    ids.any(|id| !known.contains(&id) && !has_thread_ended(pid, id))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn running_thread_is_neither_dead_nor_last() {
        let pid = std::process::id();
        let stat = thread_stat(pid).unwrap();
        assert!(!is_dead(&stat) && !has_no_memory(pid));
        assert_eq!(exit_code(&stat), Some(0));
        assert_eq!((last_thread_end(pid, None), end_without_proc(pid, None)), (None, None));
    }

    #[test]
    fn status_of_the_first_thread_tells_how_the_process_ends() {
        use LastThreadEnd::{Exited, Killed, Returned, Unknown};
        assert_eq!(
            [0, 5 << 8, 31, 31 | 0x80].map(|code| end_by_code(Some(code), true)),
            [Exited(0), Exited(5), Killed(31), Killed(31)]
        );
        assert_eq!([0, 5 << 8].map(|code| end_by_code(Some(code), false)), [Returned, Exited(5)]);
        assert_eq!([true, false].map(|known| end_by_code(None, known)), [Unknown, Returned]);
    }

    #[test]
    fn counts_without_proc_agree_with_proc() {
        let pid = std::process::id();
        let known = [pid, this_thread()];
        let (id_sender, ids) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            id_sender.send(this_thread()).unwrap();
            let _ = wait.recv();
        });
        let id = ids.recv().unwrap();
        assert!(has_other_threads(pid, &known, id..id + 1));
        assert!(!has_other_threads(pid, &known, 1..2), "process 1 is another process");
        if let Some(count) = glibc_thread_count() {
            assert!(count >= 3, "this thread, the test harness and the one above");
        }
        drop(end);
        thread.join().unwrap();
        // A joined thread is gone from the kernel's table soon afterwards.
        while !has_thread_ended(pid, id) {
            std::thread::yield_now();
        }
        assert!(has_no_memory(id) && !has_other_threads(pid, &known, id..id + 1));
    }
}
