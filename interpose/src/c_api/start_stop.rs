//! A recording that the program starts and ends itself, where nobody could start the program with us.
//!
//! Constraint: whoever is loaded into a running program has missed what came before, and must not guess it; what can still be got between
//! differs from system to system. Consequence: who may begin, once and only once, and who ends is here; what is begun is of the system.

#[cfg(target_os = "linux")]
use super::held_memory as system;
#[cfg(target_os = "linux")]
pub(crate) use super::held_memory::is_without_driver;
#[cfg(target_os = "macos")]
use super::start_macos as system;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_recorder::{end_by_program, is_preloaded, is_recording, may_record};

use crate::panic_guard::quietly;

static STARTED: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// True if the program has asked for a recording, without having been started with us.
pub(crate) fn is_started() -> bool {
    STARTED.load(Ordering::Acquire)
}

/// What the program is told. The Python package knows these numbers.
#[derive(Clone, Copy)]
#[repr(i32)]
#[allow(dead_code, reason = "not every answer is of every system")]
pub(super) enum Answer {
    Failed = -1,
    /// All that can be seen from now on.
    Everything = 0,
    /// PyTorch's blocks only: the driver has been loaded.
    WithoutDriver = 1,
    /// It has been, or will be, without this.
    Already = 2,
    /// A recording of this process has ended, and there is no other.
    Over = 3,
    /// Metal has no device.
    NoDevice = 4,
}

/// `int gpumemtrace_start(void)`: from now on GPU memory is recorded, by the settings of the environment. Answers as [`Answer`] numbers them.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_start() -> c_int {
    let answer = quietly(|| {
        if STOPPED.load(Ordering::Acquire) || !may_record() {
            return Some(Answer::Over);
        }
        if is_recording() || is_preloaded() || is_started() {
            return Some(Answer::Already);
        }
        Some(system::begin(|| STARTED.store(true, Ordering::Release)))
    });
    answer.unwrap_or(Answer::Failed) as c_int
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

/// True once the program has ended its recording.
#[cfg(target_os = "linux")]
pub(super) fn is_stopped() -> bool {
    STOPPED.load(Ordering::Acquire)
}
