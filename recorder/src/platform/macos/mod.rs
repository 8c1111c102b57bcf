//! macOS. Type-checked and linked; none of it has run on a Mac (docs/mps.md).

mod barrier;
mod futex;
mod images;
mod mach;
mod memory;
mod threads;

use std::ffi::CStr;
use std::fs::File;
use std::io;

pub(crate) use barrier::{all_threads, prepare_barrier};
pub(crate) use futex::{wait, wake};
pub(crate) use images::loaded;
pub use images::{generation, is_preloaded};
pub(crate) use memory::{allocate, empty_in_children, hide_from_children, move_over, populate, read_memory};
pub(crate) use threads::{
    errno_place, forget_signal, is_gone, is_last_thread, stack_of_this_thread, step_behind, this_thread,
};

use super::LeaseRequest;

/// As `CLOCK_MONOTONIC` of Linux: it counts no sleep of the machine. (The one of that name here does, in microseconds.)
pub(crate) const CLOCK: libc::clockid_t = libc::CLOCK_UPTIME_RAW;

/// The library that PyTorch's version file lies beside.
pub(crate) const C10: &str = "libc10.dylib";

/// As many random bytes as there are; a refusal leaves what was there.
pub(crate) fn random(bytes: &mut [u8]) {
    // SAFETY: the buffer is as long as we say, and shorter than the 256 bytes that are given at once.
    unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
}

/// Renames unless the new name exists.
pub(crate) fn rename_to_new(from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: two NUL-terminated paths.
    let result = unsafe { libc::renamex_np(from.as_ptr(), to.as_ptr(), libc::RENAME_EXCL) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// There are no leases on files here: a ring file that somebody cuts is a fault at the next store.
pub(crate) fn take(_: &File) -> bool {
    false
}

/// See [`take`].
pub(crate) fn asked(_: &File) -> LeaseRequest {
    LeaseRequest::None
}

/// See [`take`].
pub(crate) fn give(_: &File) {}

/// The system's own clock is as fast: it is read from a page of the kernel's.
pub(crate) fn is_counter_trusted() -> bool {
    false
}

/// The words that the program was started with.
pub(crate) fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// True if somebody may hear what is written there. A write to a pipe that nobody reads raises its signal in any thread that does not
/// block it, so blocking it in ours is not enough.
pub(crate) fn is_heard(descriptor: i32) -> bool {
    let mut asked = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one structure of ours; the wait has no length.
    let answers = unsafe { libc::poll(&raw mut asked, 1, 0) };
    answers >= 0 && asked.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

/// False if a file may not be so long: going beyond the limit would raise a signal, as in [`is_heard`].
pub(crate) fn may_be_long(bytes: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    !known || bytes <= limit.rlim_cur
}
