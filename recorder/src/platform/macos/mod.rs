//! The macOS implementation of [`crate::platform`]. Compiled and linked, but not yet run on a Mac
//! (docs/mps.md).

mod barrier;
mod futex;
mod images;
mod mach;
mod memory;
mod threads;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) use barrier::{barrier_on_all_threads, prepare_barrier};
pub(crate) use futex::{wait, wake};
pub(crate) use images::loaded_modules;
pub use images::{is_preloaded, loaded_module_counts};
pub(crate) use memory::{
    allocate_file_range, copies_on_write, hide_from_children, populate_for_writing, read_memory,
    replace_mapping, zero_in_children, zero_private_memory,
};
pub(crate) use threads::{
    discard_pending_signal, errno_location, exit_process, exit_thread, has_thread_ended, last_thread_end,
    lower_priority, name_this_thread, stack_of_this_thread, this_thread,
};

use super::LeaseRequest;

/// A clock that never goes back and does not count suspended time, like `CLOCK_MONOTONIC` of Linux.
/// (The macOS clock of that name counts suspended time, in microseconds.)
pub(crate) const MONOTONIC_CLOCK: libc::clockid_t = libc::CLOCK_UPTIME_RAW;

/// The PyTorch library from which the path of the version file is derived.
pub(crate) const LIBC10: &str = "libc10.dylib";

/// The address of the first definition of `name` in the loader's order.
pub(crate) fn find_symbol(name: &CStr) -> Option<usize> {
    // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

/// Fills `bytes` with random data. If refused, leaves them unchanged.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    // SAFETY: the length is that of the buffer, which is below the limit of 256 bytes.
    unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) };
}

/// Renames a file. Fails if the new name exists.
pub(crate) fn rename_no_replace(from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: two NUL-terminated paths.
    let result = unsafe { libc::renamex_np(from.as_ptr(), to.as_ptr(), libc::RENAME_EXCL) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// macOS has no file leases: if another process truncates the ring file, the next store faults.
pub(crate) fn take_lease(_: &File) -> bool {
    false
}

/// See [`take_lease`]: macOS has no file leases.
pub(crate) fn lease_request(_: &File) -> LeaseRequest {
    LeaseRequest::None
}

/// See [`take_lease`]: macOS has no file leases.
pub(crate) fn lease_break_ns() -> Option<u64> {
    None
}

/// See [`take_lease`]: macOS has no file leases.
pub(crate) fn release_lease(_: &File) {}

/// Whether to use the processor's counter. Not on macOS: its clock is as fast, read from a shared
/// page.
pub(crate) fn is_counter_trusted() -> bool {
    false
}

/// The command line of this process.
pub(crate) fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Whether a write to a descriptor is safe. A write to a pipe without a reader raises `SIGPIPE` in
/// any thread that does not block it. So blocking it in our own thread is not enough.
pub(crate) fn has_reader(descriptor: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one structure of ours; the wait has no length.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready >= 0 && poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

/// Whether a file may grow to this size. Exceeding the limit would raise a signal, as in
/// [`has_reader`].
pub(crate) fn is_file_size_allowed(bytes: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer is ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    !known || bytes <= limit.rlim_cur
}

/// As `pwrite`: no preload replaces calls within another library.
pub(crate) fn write_at_by_system_call(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    file.write_at(bytes, at)
}

/// As `clock_gettime`: no program of macOS can forbid the counter.
pub(crate) fn clock_by_system_call(clock: libc::clockid_t, time: &mut libc::timespec) {
    // SAFETY: a valid clock and a buffer of ours.
    unsafe { libc::clock_gettime(clock, time) };
}
