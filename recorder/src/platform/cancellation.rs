//! Keeps `pthread_cancel` away from our own system calls.
//!
//! Many functions of the C library are cancellation points: `write`, `open`, `usleep`. A thread
//! that the program cancels there unwinds, and the hooks catch unwinding
//! ([`std::panic::catch_unwind`]), which glibc answers with "FATAL: exception not rethrown" and an
//! abort. So every part of a hook that leaves the steady state runs with cancellation disabled. The
//! thread is cancelled at its next own cancellation point. The steady state has none and pays
//! nothing.
//!
//! A thread with `PTHREAD_CANCEL_ASYNCHRONOUS` may be cancelled at any instruction. POSIX allows it
//! to call only three functions, and no function of a GPU driver is among them
//! (<https://pubs.opengroup.org/onlinepubs/9799919799/functions/V2_chap02.html>, 2.9.5.4).

use std::ffi::c_int;

use super::errno_location;
use super::signals::with_all_blocked;

#[cfg(target_os = "linux")]
const PTHREAD_CANCEL_DISABLE: c_int = 1;
#[cfg(target_os = "macos")]
const PTHREAD_CANCEL_DISABLE: c_int = 0;

unsafe extern "C" {
    /// Of POSIX. Missing in the `libc` crate.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Restores the calling thread's cancellation state and `errno` when it is dropped, also after a
/// panic.
struct CancellationState {
    state: c_int,
    errno: i32,
}

impl Drop for CancellationState {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: a state that the same function returned; the out-parameter is ours.
        unsafe { pthread_setcancelstate(self.state, &raw mut ours) };
        // SAFETY: always a valid pointer to this thread's errno.
        unsafe { *errno_location() = self.errno };
    }
}

/// Runs `body` with cancellation of the calling thread disabled and all signals blocked, which
/// takes two system calls.
///
/// For everything outside of the steady state that takes a lock of the C library or of a driver, or
/// changes state in several steps. A signal handler that left it by `siglongjmp` would leave the
/// lock held.
pub fn uninterrupted<R>(body: impl FnOnce() -> R) -> R {
    without_cancellation(|| with_all_blocked(body))
}

/// Runs `body` with cancellation of the calling thread disabled. Makes no system call itself. Keeps
/// `errno`, which a signal handler of the program changes when it interrupts our sleep.
pub fn without_cancellation<R>(body: impl FnOnce() -> R) -> R {
    // SAFETY: always a valid pointer to this thread's errno.
    let mut state = CancellationState { state: 0, errno: unsafe { *errno_location() } };
    // SAFETY: a constant of POSIX; the out-parameter is ours.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut state.state) };
    body()
}
