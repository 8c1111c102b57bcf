//! Waiting for a word to change, and waking the threads that wait.
//!
//! The hook path wakes the writer and may neither allocate nor take a lock, so this is the plain
//! futex system call.

use std::sync::atomic::AtomicU32;

/// Waits while the word is `expected`, at most `timeout_ns`. May return early.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the word outlives the call (sessions are never freed); all outcomes are handled by
    // the caller's loop.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            &raw const timeout,
        )
    };
}

/// Wakes all threads that wait for the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
    };
}
