//! Signals that our own system calls could raise, kept from the program.
//!
//! Constraint: writing to a closed pipe or beyond a file-size limit raises a signal in the thread that writes, whose
//! default is to end the process; and a program's handler must never run on a thread of ours. Consequence: both signals
//! are blocked around such calls, and what they raised is taken back; our thread is made with all signals blocked.

#![cfg_attr(
    target_vendor = "apple",
    allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "sets of signals have four bytes there, and many elsewhere"
    )
)]

/// Runs `body`; if it raises `SIGPIPE` or `SIGXFSZ` in this thread, nobody hears of it. Async-signal-safe if `body` is.
pub(crate) fn without_write_signals<R>(body: impl FnOnce() -> R) -> R {
    let ours = set_of(&[libc::SIGPIPE, libc::SIGXFSZ]);
    let pending_before = pending();
    let old = change_mask(libc::SIG_BLOCK, &ours);
    let result = body();
    for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
        // One that waited already is the program's.
        if !contains(&pending_before, signal) && contains(&pending(), signal) {
            take_back(signal);
        }
    }
    change_mask(libc::SIG_SETMASK, &old);
    result
}

/// Runs `body` with all signals blocked: a thread inherits the mask of its maker.
pub(crate) fn with_all_blocked<R>(body: impl FnOnce() -> R) -> R {
    let mut all = set_of(&[]);
    // SAFETY: the set is ours.
    unsafe { libc::sigfillset(&raw mut all) };
    let old = change_mask(libc::SIG_SETMASK, &all);
    let result = body();
    change_mask(libc::SIG_SETMASK, &old);
    result
}

/// In a thread of ours that goes on as one of the program's.
pub(crate) fn unblock_all() {
    change_mask(libc::SIG_SETMASK, &set_of(&[]));
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

/// Forgets a signal that waits in this thread, where it is blocked.
pub(crate) fn take_back(signal: i32) {
    crate::platform::forget_signal(&set_of(&[signal]));
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_we_raise_is_taken_back_and_what_waited_stays() {
        // On a thread of its own: a mask is a thread's.
        std::thread::spawn(|| {
            // SAFETY: raises a signal in this thread, where it is blocked.
            let raise = || unsafe { libc::raise(libc::SIGXFSZ) };
            without_write_signals(raise);
            assert!(!contains(&pending(), libc::SIGXFSZ), "ours is gone, and this thread is alive");

            let blocked = set_of(&[libc::SIGXFSZ]);
            change_mask(libc::SIG_BLOCK, &blocked);
            raise();
            without_write_signals(raise);
            assert!(contains(&pending(), libc::SIGXFSZ), "the program's own is not ours to take");
            take_back(libc::SIGXFSZ);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_write_to_a_closed_pipe_ends_nothing() {
        let mut ends = [0; 2];
        // SAFETY: two descriptors of our own; the read end is closed so that writing fails.
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
