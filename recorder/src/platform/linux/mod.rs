//! The Linux implementation of [`crate::platform`].

mod barrier;
pub(crate) mod elf_module;
mod futex;
mod last_thread;
mod lease;
mod memory;
mod modules;
pub(crate) mod symbol_table;
mod threads;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

pub(crate) use barrier::{barrier_on_all_threads, register as prepare_barrier};
pub(crate) use elf_module::find_symbol;
pub(crate) use futex::{wait, wake};
pub(crate) use last_thread::last_thread_end;
pub(crate) use lease::{lease_break_ns, lease_request, release_lease, take_lease};
pub(crate) use memory::{
    allocate_file_range, copies_on_write, hide_from_children, populate_for_writing, read_memory,
    replace_mapping, zero_in_children, zero_private_memory,
};
pub(crate) use modules::loaded_modules;
pub use modules::{is_preloaded, loaded_module_counts};
pub(crate) use threads::{
    discard_pending_signal, errno_location, exit_process, exit_thread, has_thread_ended, lower_priority,
    name_this_thread, stack_of_this_thread, this_thread,
};

/// A clock that never goes back and does not count suspended time.
pub(crate) const MONOTONIC_CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The PyTorch library from which the path of the version file is derived.
pub(crate) const LIBC10: &str = "libc10.so";

/// Fills `bytes` with random data. A short read leaves the rest unchanged.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    // glibc has the function `getrandom` since 2.25 only.
    // SAFETY: the length is that of the buffer.
    unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) };
}

/// Renames a file. Fails if the new name exists.
pub(crate) fn rename_no_replace(from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: two NUL-terminated paths.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel itself keeps time by the processor's counter. It has then checked that the
/// counter runs evenly and is the same on all processors.
pub(crate) fn is_counter_trusted() -> bool {
    const CURRENT_CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_used_by_kernel = std::fs::read(CURRENT_CLOCKSOURCE).is_ok_and(|name| name.trim_ascii() == b"tsc");
    cfg!(target_arch = "x86_64") && is_used_by_kernel && may_read_counter()
}

/// Reads a clock by a system call, which does not need the processor's counter.
#[cold]
pub(crate) fn clock_by_system_call(clock: libc::clockid_t, time: &mut libc::timespec) {
    // SAFETY: a valid clock and a buffer of ours.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, std::ptr::from_mut(time)) };
}

/// Whether the process may read the counter; some sandboxes forbid the instruction.
fn may_read_counter() -> bool {
    let mut permission: libc::c_int = 0;
    // SAFETY: the call fills in our own number.
    let known = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut permission) } == 0;
    known && permission == libc::PR_TSC_ENABLE
}

/// The command line of this process.
pub(crate) fn command_line() -> Vec<String> {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let parts = bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
    let mut parts: Vec<String> = parts.collect();
    // Each argument ends with a NUL, except in a title that the program has set.
    parts.pop_if(|last| last.is_empty());
    parts
}

/// As `pwrite`, also after the destructor of a preload that replaces it.
pub(crate) fn write_at_by_system_call(file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
    // SAFETY: the buffer lives across the call, which changes no memory of ours.
    let written = unsafe {
        libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), bytes.as_ptr(), bytes.len(), at.cast_signed())
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Whether a write to a descriptor is safe. Always true on Linux: `SIGPIPE` goes to the writing
/// thread, which blocks it.
pub(crate) fn has_reader(_: i32) -> bool {
    true
}

/// Whether a file may grow to this size. Always true on Linux: `SIGXFSZ` goes to the writing
/// thread, which blocks it.
pub(crate) fn is_file_size_allowed(_: u64) -> bool {
    true
}
