//! A memory barrier on all threads of the process, paid for by the one that asks.
//!
//! Constraint: at the end one thread must know that no other is in the middle of recording, and the others must not pay a
//! fence at every event for that one moment. Consequence: `membarrier(2)`, an asymmetric fence: the hooks only keep the
//! compiler from reordering, the kernel interrupts the running threads when the end comes.

/// <https://man7.org/linux/man-pages/man2/membarrier.2.html>
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const GLOBAL: i32 = 1;
/// A store leaves the processor's buffer in far less.
const LONG_ENOUGH_US: u32 = 20_000;

/// Must be called once before; may take some milliseconds, so not in a thread of the program.
pub(crate) fn register() {
    membarrier(REGISTER_PRIVATE_EXPEDITED);
}

/// Every store made by any thread before it was interrupted is visible when this returns.
pub(crate) fn all_threads() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if !membarrier(PRIVATE_EXPEDITED) && !membarrier(GLOBAL) {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(LONG_ENOUGH_US) };
    }
}

fn membarrier(command: i32) -> bool {
    // SAFETY: takes two numbers, and a third that is ignored without a flag.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
