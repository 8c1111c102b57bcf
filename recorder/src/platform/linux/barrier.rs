//! A memory barrier on all threads of the process, which only its caller pays for.
//!
//! At the end of a recording one thread must know that no hook is running. Hooks must not execute a
//! fence at every event for that one moment. `membarrier(2)` is an asymmetric fence: hooks only
//! keep the compiler from reordering, and the kernel interrupts the running threads when the end
//! comes.

/// Commands of `membarrier`: <https://man7.org/linux/man-pages/man2/membarrier.2.html>.
const PRIVATE_EXPEDITED: i32 = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const GLOBAL: i32 = 1;
/// Without `membarrier`: far longer than a store stays in the processor's store buffer.
const STORE_BUFFER_US: u32 = 20_000;

/// Registers the process for the barrier. Takes some milliseconds, so the writer thread calls it.
pub(crate) fn register() {
    membarrier(REGISTER_PRIVATE_EXPEDITED);
}

/// A full memory barrier on all threads of the process.
pub(crate) fn barrier_on_all_threads() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    if !membarrier(PRIVATE_EXPEDITED) && !membarrier(GLOBAL) {
        // SAFETY: a plain sleep.
        unsafe { libc::usleep(STORE_BUFFER_US) };
    }
}

fn membarrier(command: i32) -> bool {
    // SAFETY: takes two numbers, and a third that is ignored without a flag.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
