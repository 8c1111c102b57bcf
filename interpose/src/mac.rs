//! The process on macOS: how it starts and ends with us in it, and what is told of it.
//!
//! Constraint: libraries there find each other's functions by library, so a name of ours comes before nobody's; only what the loader reads
//! at its start (`__DATA,__interpose`) stands before a function, in a process that was started with `DYLD_INSERT_LIBRARIES`. Consequence:
//! this is for Metal's two functions that hand out devices (`interpose/metal`) and for the C library's two that end a process at once.
//! All else is swizzled, which can also be done later: [`crate::started`].
//!
//! There is no CUDA here, and nothing of it in this library.

use gpumemtrace_format::Meta;
use gpumemtrace_recorder::HookCallbacks;

use crate::{metal, started};

fn register() {
    gpumemtrace_recorder::register_callbacks(HookCallbacks {
        add_metadata: metal::facts,
        add_hook_mode: mode,
        api_names: &metal::NAMES,
        uncovered_calls: || metal::uncovered(0),
        uncovered_names: Vec::new,
        record_samples: || {},
    });
    metal::register();
}

fn mode(meta: &mut Meta) -> u8 {
    let modes = [
        (gpumemtrace_recorder::is_preloaded(), "preload"),
        (started::is_started(), "started"),
        (metal::is_met(), "metal"),
    ];
    meta.set_list("mode", modes.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()).collect());
    u8::from(metal::is_met()) | u8::from(started::is_started()) << 1
}

#[cfg(not(test))]
mod entry_points {
    use std::ffi::c_int;

    #[used]
    #[unsafe(link_section = "__DATA,__mod_init_func")]
    static CONSTRUCTOR: extern "C" fn() = {
        extern "C" fn constructor() {
            // A panic of ours is counted; its message must not appear among the program's.
            std::panic::set_hook(Box::new(|_| {}));
            super::register();
            // Registered first, it runs last, when what others free at their end has been freed.
            // SAFETY: a function without arguments of a library that is never unloaded.
            unsafe { libc::atexit(end) };
        }
        constructor
    };

    extern "C" fn end() {
        crate::guard::quietly(|| {
            gpumemtrace_recorder::end_at_exit();
            Some(())
        });
    }

    unsafe extern "C" {
        fn _exit(status: c_int) -> !;
        fn _Exit(status: c_int) -> !;
    }

    /// Ends the process at once, after noting that it did so on purpose. `exit` comes here too, in the end; by then the trace is finished.
    unsafe extern "C" fn end_now(status: c_int) -> ! {
        crate::guard::quietly(|| {
            gpumemtrace_recorder::end_at_quick_exit(status);
            Some(())
        });
        // SAFETY: the C library's own, which a call from here reaches.
        unsafe { _exit(status) }
    }

    type Exit = unsafe extern "C" fn(c_int) -> !;

    /// The form of `__interpose`: whoever calls the second calls the first.
    #[repr(C)]
    struct Pair {
        new: Exit,
        old: Exit,
    }

    #[used]
    #[unsafe(link_section = "__DATA,__interpose")]
    static PAIRS: [Pair; 2] = [Pair { new: end_now, old: _exit }, Pair { new: end_now, old: _Exit }];
}
