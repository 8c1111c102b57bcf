//! The hook for `prctl`, which may take the processor's counter away from a thread.
//!
//! A sandbox that forbids it (`PR_SET_TSC`) makes the next reading a SIGSEGV. The recorder reads
//! the counter at each event, so it stops doing that before.

use std::ffi::{c_int, c_ulong};

/// The hook for `prctl`. The C library's function makes the same system call and nothing else.
#[unsafe(no_mangle)]
extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if option == libc::PR_SET_TSC && a == libc::PR_TSC_SIGSEGV as c_ulong {
        gpumemtrace_recorder::stop_reading_counter();
    }
    // SAFETY: the program's own system call.
    unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int }
}
