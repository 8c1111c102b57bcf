//! Keeps signals of our own system calls away from the program.
//!
//! A write to a closed pipe or beyond the file-size limit raises a signal in the writing thread,
//! and the default action ends the process. Both signals are blocked around such calls and
//! discarded afterwards. The writer thread is created with all signals blocked, so that the
//! program's handlers never run on it.

#![cfg_attr(
    target_vendor = "apple",
    allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "a signal set has four bytes on Apple systems, and more elsewhere"
    )
)]

/// Runs `body` and discards any `SIGPIPE` or `SIGXFSZ` that it raises in this thread.
///
/// Async-signal-safe if `body` is.
pub(crate) fn without_write_signals<R>(body: impl FnOnce() -> R) -> R {
    let blocked = set_of(&[libc::SIGPIPE, libc::SIGXFSZ]);
    let pending_before = pending();
    let old = change_mask(libc::SIG_BLOCK, &blocked);
    let result = body();
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // A signal that was already pending belongs to the program.
        if !contains(&pending_before, signal) && contains(&pending(), signal) {
            discard_pending(signal);
        }
    }
    change_mask(libc::SIG_SETMASK, &old);
    result
}

/// Runs `body` with all signals blocked. A thread that `body` creates inherits the mask.
pub(crate) fn with_all_blocked<R>(body: impl FnOnce() -> R) -> R {
    let mut all = set_of(&[]);
    // SAFETY: the set is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    let old = change_mask(libc::SIG_SETMASK, &all);
    let result = body();
    change_mask(libc::SIG_SETMASK, &old);
    result
}

/// Unblocks all signals, in a thread of ours that continues as a thread of the program.
pub(crate) fn unblock_all() {
    change_mask(libc::SIG_SETMASK, &set_of(&[]));
}

/// Ends the process by this signal, whatever the program does with it otherwise.
pub(crate) fn end_process_by(signal: i32) -> ! {
    // SAFETY: an all-zero action is the default action, with an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in [signal, libc::SIGKILL] {
        // SAFETY: the structure is ours. All other threads of the program have ended.
        unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
        unblock_all();
        // SAFETY: sends a signal to this process.
        unsafe { libc::kill(libc::getpid(), signal) };
    }
    crate::platform::exit_process(1)
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid buffer for sigemptyset.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: the set is ours; the number is a signal's.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

fn change_mask(how: i32, set: &libc::sigset_t) -> libc::sigset_t {
    let mut old = set_of(&[]);
    // SAFETY: both sets are ours.
    unsafe { libc::pthread_sigmask(how, set, &raw mut old) };
    old
}

fn pending() -> libc::sigset_t {
    let mut set = set_of(&[]);
    // SAFETY: the set is ours.
    unsafe { libc::sigpending(&raw mut set) };
    set
}

fn contains(set: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: an initialised set.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Discards a pending signal of the calling thread. The signal must be blocked.
pub(crate) fn discard_pending(signal: i32) {
    crate::platform::discard_pending_signal(&set_of(&[signal]));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn raised_signal_is_discarded_and_earlier_one_stays_pending() {
        // On a thread of its own, because a signal mask belongs to a thread.
        std::thread::spawn(|| {
            // SAFETY: raises a signal in this thread, where it is blocked.
            let raise = || unsafe { libc::raise(libc::SIGXFSZ) };
            without_write_signals(raise);
            assert!(
                !contains(&pending(), libc::SIGXFSZ),
                "our own signal is discarded, and this thread is alive"
            );

            let blocked = set_of(&[libc::SIGXFSZ]);
            change_mask(libc::SIG_BLOCK, &blocked);
            raise();
            without_write_signals(raise);
            assert!(contains(&pending(), libc::SIGXFSZ), "the program's signal stays pending");
            discard_pending(libc::SIGXFSZ);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn write_to_closed_pipe_does_not_end_the_process() {
        let mut ends = [0; 2];
        // SAFETY: two descriptors of our own; the read end is closed, so the write fails.
        let result = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            libc::close(ends[0]);
            // The test harness ignores SIGPIPE; a program need not.
            let old = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let result = without_write_signals(|| libc::write(ends[1], [0u8].as_ptr().cast(), 1));
            libc::signal(libc::SIGPIPE, old);
            libc::close(ends[1]);
            result
        };
        assert_eq!(result, -1);
    }
}
