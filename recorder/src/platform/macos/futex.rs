//! Waiting for a word to change, and telling who waits.
//!
//! Constraint: as on Linux, neither a lock nor memory; and what is public for it (`os_sync_wait_on_address`) is there from macOS 14.4 on
//! only. Consequence: the calls below it, which are in every release since 10.12 and in the system's own C++ library.

use std::sync::atomic::AtomicU32;

use super::mach;

/// `sys/ulock.h` of the kernel's sources.
const COMPARE_AND_WAIT: u32 = 1;
const WAKE_ALL: u32 = 0x100;
/// Errors are returned, and `errno` is left alone.
const NO_ERRNO: u32 = 0x0100_0000;

/// Waits while the word is `expected`, for this long at most. May return early.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    // 0 would be without end; the longest is an hour and more, and who waits asks again.
    let timeout_us = u32::try_from(timeout_ns / 1_000).unwrap_or(u32::MAX).max(1);
    // SAFETY: the word outlives the call (sessions are never freed); all outcomes are handled by the caller's loop.
    unsafe {
        mach::__ulock_wait(COMPARE_AND_WAIT | NO_ERRNO, word.as_ptr().cast(), u64::from(expected), timeout_us)
    };
}

/// Wakes all who wait for the word.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { mach::__ulock_wake(COMPARE_AND_WAIT | WAKE_ALL | NO_ERRNO, word.as_ptr().cast(), 0) };
}
