//! The start and the end of the process.
//!
//! Constraint: the library is loaded into every child of a traced shell, and a process may end in many ways of which most
//! run no code of ours. Consequence: the constructor only prepares `dlsym`; everything else waits for the first GPU call.
//! At `exit` our destructor runs after those of all libraries loaded later, so frees made while they are torn down are
//! still seen. `quick_exit` calls us too, and `_exit` is noted on the way. Everything else (signals, exec) needs no code: the
//! ring file has it.

use std::sync::atomic::{AtomicBool, Ordering};

/// The program had loaded the driver before us, and may have taken addresses that we never see used.
static LATE: AtomicBool = AtomicBool::new(false);

/// True if the driver was loaded before us.
pub(crate) fn is_late() -> bool {
    LATE.load(Ordering::Relaxed)
}

/// The program itself is linked to the driver: its calls are bound to us, or it makes none.
static LINKED: AtomicBool = AtomicBool::new(false);

/// Says what cannot be seen from here. At load, because the first event may never come.
fn note_arrival() {
    if !crate::cuda::is_loaded() {
        return;
    }
    if gpumemtrace_recorder::is_preloaded() {
        LINKED.store(true, Ordering::Relaxed);
        return;
    }
    LATE.store(true, Ordering::Relaxed);
    gpumemtrace_recorder::print_diagnostic(&[
        "loaded after the CUDA driver: calls through addresses that the program already has are not recorded. ",
        "Start it with LD_PRELOAD or `gpumemtrace run` to record everything.",
    ]);
}

/// Says so if a driver was loaded and never reached through us: a library opened with RTLD_DEEPBIND, in a namespace of its
/// own, or linked past us, leaves no other trace here.
fn note_departure() {
    let past_us = !LINKED.load(Ordering::Relaxed) && !crate::cuda::was_met() && crate::cuda::is_loaded();
    if past_us && gpumemtrace_recorder::is_preloaded() {
        gpumemtrace_recorder::print_diagnostic(&[
            "the CUDA driver was loaded, but none of its memory functions was reached through gpumemtrace; ",
            "nothing was recorded (a library opened with RTLD_DEEPBIND goes past a preload).",
        ]);
    }
}

#[cfg(not(test))]
mod entry_points {
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// The process that our constructor ran in: a fork's end is not its end.
    static PID: AtomicI32 = AtomicI32::new(0);

    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: extern "C" fn() = {
        extern "C" fn constructor() {
            crate::dynamic::resolve_dlsym();
            crate::cuda::register();
            // A panic of ours is counted; its message must not appear among the program's.
            std::panic::set_hook(Box::new(|_| {}));
            // SAFETY: no arguments, no effect.
            PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
            // SAFETY: registers a function without arguments of a library that is never unloaded.
            unsafe { at_quick_exit(end) };
            crate::guard::quietly(|| {
                super::note_arrival();
                Some(())
            });
        }
        constructor
    };

    #[used]
    #[unsafe(link_section = ".fini_array")]
    static DESTRUCTOR: extern "C" fn() = end;

    unsafe extern "C" {
        /// C11's: libc runs the function at `quick_exit`, which ends the process past the destructors and past our `_exit`.
        fn at_quick_exit(function: extern "C" fn()) -> c_int;
    }

    extern "C" fn end() {
        crate::guard::quietly(|| {
            gpumemtrace_recorder::end_at_exit();
            // SAFETY: no arguments, no effect.
            if PID.load(Ordering::Relaxed) == unsafe { libc::getpid() } {
                super::note_departure();
            }
            Some(())
        });
    }

    /// Ends the process at once, as libc's does, after noting that it did so on purpose.
    #[unsafe(no_mangle)]
    extern "C" fn _exit(status: c_int) -> ! {
        end_now(status)
    }

    /// C99's name for it.
    #[unsafe(no_mangle)]
    extern "C" fn _Exit(status: c_int) -> ! {
        end_now(status)
    }

    fn end_now(status: c_int) -> ! {
        crate::guard::quietly(|| {
            gpumemtrace_recorder::end_at_quick_exit(status);
            Some(())
        });
        loop {
            // SAFETY: this is all libc's `_exit` does on Linux; it does not return.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
        }
    }
}
