//! Waiting for a word to change, and waking the threads that wait.
//!
//! The hook path wakes the writer and may neither allocate nor take a lock. The public interface
//! (`os_sync_wait_on_address`) exists only from macOS 14.4 on. So this uses the calls below it,
//! which exist since 10.12 and which the system's own C++ library uses.

use std::sync::atomic::AtomicU32;

use super::mach;

/// Constants of `sys/ulock.h` in the kernel's sources.
const COMPARE_AND_WAIT: u32 = 1;
const WAKE_ALL: u32 = 0x100;
/// Errors are returned, and `errno` stays unchanged.
const NO_ERRNO: u32 = 0x0100_0000;

/// Waits while the word is `expected`, at most `timeout_ns`. May return early.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    // 0 would mean no timeout. The largest value is more than an hour; callers wait again.
    let timeout_us = u32::try_from(timeout_ns / 1_000).unwrap_or(u32::MAX).max(1);
    // SAFETY: the word outlives the call (sessions are never freed); all outcomes are handled by
    // the caller's loop.
    unsafe {
        mach::__ulock_wait(COMPARE_AND_WAIT | NO_ERRNO, word.as_ptr().cast(), u64::from(expected), timeout_us)
    };
}

/// Wakes all threads that wait for the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { mach::__ulock_wake(COMPARE_AND_WAIT | WAKE_ALL | NO_ERRNO, word.as_ptr().cast(), 0) };
}
