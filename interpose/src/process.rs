//! The start and the end of the process.
//!
//! Constraint: the library is loaded into every child of a traced shell, and a process may end in many ways of which most
//! run no code of ours. Consequence: the constructor only prepares `dlsym`; everything else waits for the first GPU call.
//! At `exit` our destructor runs after those of all libraries loaded later, so frees made while they are torn down are
//! still seen. `quick_exit` calls us too, and `_exit` is noted on the way. Everything else (signals, exec) needs no code: the ring file has it.

#[cfg(not(test))]
mod entry_points {
    use std::ffi::c_int;

    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: extern "C" fn() = {
        extern "C" fn constructor() {
            crate::dynamic::resolve_dlsym();
            crate::cuda::register();
            // A panic of ours is counted; its message must not appear among the program's.
            std::panic::set_hook(Box::new(|_| {}));
            // SAFETY: registers a function without arguments of a library that is never unloaded.
            unsafe { at_quick_exit(end) };
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
