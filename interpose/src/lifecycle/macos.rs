//! Process start and exit on macOS.
//!
//! Libraries on macOS bind functions by library (two-level namespace), so an exported name of ours
//! replaces nothing. Only `__DATA,__interpose` does, in a process that was started with
//! `DYLD_INSERT_LIBRARIES`. It is used for Metal's two functions that return devices
//! (`crates/metal-hooks`) and for the C library's two that end a process at once. All other methods
//! are swizzled, which also works later (`c_api::start_stop`).
//!
//! Nothing of CUDA is built into this library. It has not yet run on a Mac (`docs/mps.md`).

/// Prevents `dlclose` from unloading this library: threads may be inside a hook at any time. A
/// library that `DYLD_INSERT_LIBRARIES` inserted is never unloaded anyway.
pub(crate) fn prevent_unload() {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: an address and a buffer of ours. The name lives as long as this library, and
    // `RTLD_NOLOAD` loads nothing.
    unsafe {
        if libc::dladdr(prevent_unload as *const std::ffi::c_void, &raw mut info) != 0 {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

#[cfg(not(test))]
mod entry_points {
    use std::ffi::c_int;

    use crate::panic_guard::catch_panic;

    #[used]
    #[unsafe(link_section = "__DATA,__mod_init_func")]
    static CONSTRUCTOR: extern "C" fn() = {
        extern "C" fn constructor() {
            // A panic of ours is counted; its message must not mix with the program's output.
            std::panic::set_hook(Box::new(|_| {}));
            crate::registration::register();
            // Handlers run in reverse order: this one runs last, after other libraries' frees.
            // SAFETY: a function without arguments of a library that is never unloaded.
            unsafe { libc::atexit(end) };
        }
        constructor
    };

    extern "C" fn end() {
        catch_panic(|| {
            gpumemtrace_recorder::end_at_exit();
            Some(())
        });
    }

    unsafe extern "C" {
        fn _exit(status: c_int) -> !;
        fn _Exit(status: c_int) -> !;
    }

    /// Ends the process at once, after recording that the end was intended. `exit` also ends here,
    /// after [`end`] has completed the trace.
    unsafe extern "C" fn end_now(status: c_int) -> ! {
        catch_panic(|| {
            gpumemtrace_recorder::end_at_quick_exit(status);
            Some(())
        });
        // SAFETY: the C library's own function: interposing does not apply to calls from here.
        unsafe { _exit(status) }
    }

    type ExitFn = unsafe extern "C" fn(c_int) -> !;

    /// An entry of `__interpose`: callers of `replaced` in other libraries call `replacement`.
    #[repr(C)]
    struct ExitInterposePair {
        replacement: ExitFn,
        replaced: ExitFn,
    }

    #[used]
    #[unsafe(link_section = "__DATA,__interpose")]
    static PAIRS: [ExitInterposePair; 2] = [
        ExitInterposePair { replacement: end_now, replaced: _exit },
        ExitInterposePair { replacement: end_now, replaced: _Exit },
    ];
}
