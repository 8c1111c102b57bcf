//! Process start and exit on Linux.
//!
//! The library is loaded into every child of a traced shell, so the constructor does little: it
//! resolves `dlsym` and registers callbacks. Everything else waits for the first GPU call.
//!
//! The frees of destructors are recorded, so the recording ends after them. Exit handlers run in
//! reverse order, and the C library registers the one that runs all destructors after the
//! constructors of libraries that are loaded with the program. So a handler of our constructor runs
//! after all destructors, whatever library they belong to. It belongs to no library itself:
//! `on_exit` has no such owner, and a handler with an owner runs with the owner's destructor. If
//! the library was loaded by `dlopen`, such a handler would run too early. Then the recording ends
//! in our destructor, which runs after those of libraries that were loaded later. So it does if
//! another library replaces functions of the C library that the end calls (libfaketime does): after
//! its own destructor they may crash.
//!
//! `quick_exit` calls us too, and `_exit` is hooked. Ends by signal or `exec` need no code here:
//! the ring file survives them.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_recorder::elf::find_module;

use crate::attachment;

/// True if the program itself is linked to the driver. Its calls are bound to our hooks then, so
/// a process without recorded calls made none.
static LINKED_TO_DRIVER: AtomicBool = AtomicBool::new(false);

/// Prints a warning if the driver was loaded before us. Runs in the constructor, since the first
/// event may never come.
fn check_driver_at_load() {
    if !crate::cuda::is_driver_loaded() {
        return;
    }
    if gpumemtrace_recorder::is_preloaded() {
        LINKED_TO_DRIVER.store(true, Ordering::Relaxed);
        return;
    }
    attachment::set_loaded_after_driver();
    gpumemtrace_recorder::print_diagnostic(&[
        "loaded after the CUDA driver: calls through addresses that the program already has are not recorded. ",
        "To record everything, start the program with `gpumemtrace run` or LD_PRELOAD.",
    ]);
}

/// Prints a warning if a driver was loaded but never reached through us. A caller that was opened
/// with `RTLD_DEEPBIND`, by `dlmopen`, or is linked past us leaves no other evidence here.
fn check_driver_at_exit() {
    let was_bypassed = !LINKED_TO_DRIVER.load(Ordering::Relaxed)
        && !crate::cuda::is_recorded_driver_known()
        && crate::cuda::is_driver_loaded();
    if was_bypassed && gpumemtrace_recorder::is_preloaded() {
        gpumemtrace_recorder::print_diagnostic(&[
            "the CUDA driver was loaded, but no call of its memory functions went through gpumemtrace, ",
            "so nothing was recorded. A library opened with RTLD_DEEPBIND bypasses a preload.",
        ]);
    }
}

/// What the end of a recording calls. The memory allocator is missing: others outlive their
/// destructors.
const CALLED_AT_END: [&CStr; 8] = [
    c"clock_gettime",
    c"usleep",
    c"nanosleep",
    c"clock_nanosleep",
    c"fstat",
    c"statx",
    c"pwrite64",
    c"unlink",
];

/// True if a library with destructors serves such a call in place of the C library. The runtimes of
/// sanitizers replace all of them, and work to the end.
fn is_c_library_replaced() -> bool {
    const SANITIZERS: [&[u8]; 5] = [b"libasan.", b"libtsan.", b"liblsan.", b"libubsan.", b"libclang_rt."];
    // glibc had several libraries before 2.34.
    const C_LIBRARIES: [&CStr; 3] = [c"libc.so.6", c"libpthread.so.0", c"librt.so.1"];
    CALLED_AT_END.iter().any(|name| {
        let is_other = find_module(|module| {
            // The kernel's library is second in the loader's order, and replaces no function.
            if module.is_named(c"linux-vdso.so.1") {
                return None;
            }
            // The program's own destructors come before those of its libraries.
            let is_harmless = module.path.is_empty()
                || !module.has_destructors()
                || C_LIBRARIES.iter().any(|library| module.is_named(library))
                || SANITIZERS.iter().any(|prefix| module.file_name().starts_with(prefix));
            module.symbol(name).map(|_| !is_harmless)
        });
        is_other == Some(true)
    })
}

#[cfg(not(test))]
mod entry_points {
    use std::ffi::{c_char, c_int, c_void};
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    use crate::panic_guard::catch_panic;

    /// glibc passes the arguments of the process to each constructor
    /// (<https://sourceware.org/git/?p=glibc.git;a=blob;f=elf/dl-init.c>).
    type Constructor = extern "C" fn(count: c_int, arguments: *const *const c_char);

    /// The process that ran our constructor. A fork's exit is not this process's exit.
    static PID: AtomicI32 = AtomicI32::new(0);
    /// True if [`end_last`] runs after all destructors.
    static ENDS_LAST: AtomicBool = AtomicBool::new(false);

    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: Constructor = {
        extern "C" fn constructor(count: c_int, arguments: *const *const c_char) {
            // A program starts with `errno` 0, and our look-ups fail without a driver.
            let errno = gpumemtrace_recorder::errno();
            crate::loader::symbols::resolve_dlsym();
            crate::loader::symbols::find_next_dlsym();
            crate::registration::register();
            crate::loader::dlclose_hook::set_before_unload(crate::cuda::keep_loaded);
            // A panic of ours is counted; its message must not mix with the program's output.
            std::panic::set_hook(Box::new(|_| {}));
            // SAFETY: no arguments, no effect.
            PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
            // SAFETY: registers a function without arguments of a library that is never unloaded.
            unsafe { at_quick_exit(end_quickly) };
            if gpumemtrace_recorder::is_preloaded() {
                crate::cuda::note_startup_modules();
                // SAFETY: as above; the second argument is passed on and not used.
                let is_registered = !super::is_c_library_replaced()
                    && unsafe { on_exit(end_last, std::ptr::null_mut()) } == 0;
                ENDS_LAST.store(is_registered, Ordering::Relaxed);
                // SAFETY: the loader's arguments.
                catch_panic(|| unsafe { crate::lifecycle::python_startup::offer_package(count, arguments) });
            }
            catch_panic(|| {
                super::check_driver_at_load();
                Some(())
            });
            gpumemtrace_recorder::set_errno(errno);
        }
        constructor
    };

    #[used]
    #[unsafe(link_section = ".fini_array")]
    static DESTRUCTOR: extern "C" fn() = destructor;

    unsafe extern "C" {
        /// Of C11: libc calls the function at `quick_exit`, which skips destructors and our
        /// `_exit`.
        fn at_quick_exit(function: extern "C" fn()) -> c_int;
        /// Of glibc: as `atexit`, for a handler that no library owns.
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    extern "C" fn end_last(_: c_int, _: *mut c_void) {
        catch_panic(|| {
            gpumemtrace_recorder::end_after_exit_handlers();
            Some(())
        });
    }

    extern "C" fn end_quickly() {
        catch_panic(|| {
            gpumemtrace_recorder::end_after_exit_handlers();
            Some(())
        });
        check_driver();
    }

    extern "C" fn destructor() {
        if !ENDS_LAST.load(Ordering::Relaxed) {
            catch_panic(|| {
                gpumemtrace_recorder::end_at_exit();
                // Late events may come after the destructor of a library that replaces the clock.
                gpumemtrace_recorder::stop_reading_counter();
                Some(())
            });
        }
        check_driver();
    }

    fn check_driver() {
        catch_panic(|| {
            // SAFETY: no arguments, no effect.
            if PID.load(Ordering::Relaxed) == unsafe { libc::getpid() } {
                super::check_driver_at_exit();
            }
            Some(())
        });
    }

    /// The hook for POSIX `_exit`.
    #[unsafe(no_mangle)]
    extern "C" fn _exit(status: c_int) -> ! {
        end_now(status)
    }

    /// The hook for C99 `_Exit`.
    #[unsafe(no_mangle)]
    extern "C" fn _Exit(status: c_int) -> ! {
        end_now(status)
    }

    /// Ends the process at once, as libc does, after recording that the end was intended.
    fn end_now(status: c_int) -> ! {
        catch_panic(|| {
            gpumemtrace_recorder::end_at_quick_exit(status);
            Some(())
        });
        loop {
            // SAFETY: libc's `_exit` does nothing else on Linux; the call does not return.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
        }
    }
}
