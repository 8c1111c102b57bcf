//! Linux.

mod barrier;
mod futex;
mod last_thread;
mod lease;
mod memory;
mod modules;
mod threads;

use std::ffi::CStr;
use std::io;

pub(crate) use barrier::{all_threads, register as prepare_barrier};
pub(crate) use futex::{wait, wake};
pub(crate) use last_thread::is_last_thread;
pub(crate) use lease::{asked, give, take};
pub(crate) use memory::{allocate, empty_in_children, hide_from_children, move_over, populate, read_memory};
pub(crate) use modules::loaded;
pub use modules::{generation, is_preloaded};
pub(crate) use threads::{
    errno_place, forget_signal, is_gone, stack_of_this_thread, step_behind, this_thread,
};

/// The clock that counts no sleep of the machine, and never goes back.
pub(crate) const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The library that PyTorch's version file lies beside.
pub(crate) const C10: &str = "libc10.so";

/// As many random bytes as there are; a short answer leaves what was there.
pub(crate) fn random(bytes: &mut [u8]) {
    // SAFETY: the buffer is as long as we say.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
}

/// Renames unless the new name exists.
pub(crate) fn rename_to_new(from: &CStr, to: &CStr) -> io::Result<()> {
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

/// Whether the kernel itself keeps time by the processor's counter: it has checked then that this runs evenly and alike on all of
/// them.
pub(crate) fn is_counter_trusted() -> bool {
    const CHOICE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_kernels = std::fs::read(CHOICE).is_ok_and(|name| name.trim_ascii() == b"tsc");
    cfg!(target_arch = "x86_64") && is_kernels && may_read_counter()
}

/// Some sandboxes forbid the instruction.
fn may_read_counter() -> bool {
    let mut permission: libc::c_int = 0;
    // SAFETY: the call fills in our own number.
    let known = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut permission) } == 0;
    known && permission == libc::PR_TSC_ENABLE
}

/// The words that the program was started with.
pub(crate) fn command_line() -> Vec<String> {
    let bytes = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let parts = bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
    let mut parts: Vec<String> = parts.collect();
    parts.pop();
    parts
}

/// True if what is written there should be written. Where nobody reads, the signal comes to the thread that writes, which blocks it.
pub(crate) fn is_heard(_: i32) -> bool {
    true
}

/// False if a file may not be so long and a signal would say so. Here it comes to the thread that writes, which blocks it.
pub(crate) fn may_be_long(_: u64) -> bool {
    true
}
