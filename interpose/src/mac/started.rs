//! A recording that the program starts and ends itself, where nobody could start the program with us.
//!
//! Constraint: what Metal handed out before, nobody tells. Consequence: from the start on the devices' classes are swizzled, so all that is
//! made from then on is seen, with the heaps that are made then; what lies in older heaps is not, and the trace says `started`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_recorder::{end_by_program, is_preloaded, is_recording};

use crate::guard::quietly;
use crate::metal;

static STARTED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// True if the program has asked for a recording, without having been started with us.
pub(super) fn is_started() -> bool {
    STARTED.load(Ordering::Acquire)
}

/// What the program is told. The Python package knows these numbers; 1 is an answer of the library for CUDA.
const FROM_NOW: c_int = 0;
const ALREADY: c_int = 2;
const OVER: c_int = 3;
const NO_DEVICE: c_int = 4;
const FAILED: c_int = -1;

/// `int gpumemtrace_start(void)`: from now on Metal's memory is recorded, by the settings of the environment. 0: what is made from now on; 4:
/// Metal has no device; 2: it has been, or will be, without this; 3: a recording of this process has ended, and there is no other.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_start() -> c_int {
    let answer = quietly(|| {
        if STOPPED.load(Ordering::Acquire) || !gpumemtrace_recorder::may_record() {
            return Some(OVER);
        }
        if is_recording() || is_preloaded() || STARTED.swap(true, Ordering::AcqRel) {
            return Some(ALREADY);
        }
        stay();
        Some(if metal::meet_all_devices() { FROM_NOW } else { NO_DEVICE })
    });
    answer.unwrap_or(FAILED)
}

/// `int gpumemtrace_stop(void)`: the recording is over, also one that has not begun yet, and its trace is finished. 1 if there was one.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_stop() -> c_int {
    let stopped = quietly(|| {
        STOPPED.store(true, Ordering::Release);
        Some(end_by_program())
    });
    c_int::from(stopped == Some(true))
}

/// Threads may be inside a hook at any time, so the library must never be unloaded. One that was inserted never is.
fn stay() {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: an address of ours and a buffer of ours; the name lives as long as we do, and nothing is loaded.
    unsafe {
        if libc::dladdr(stay as *const std::ffi::c_void, &raw mut info) != 0 {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}
