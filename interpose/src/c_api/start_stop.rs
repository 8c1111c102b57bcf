//! Recordings that the program starts and stops itself (late attach).
//!
//! A process starts at most one recording. On Linux, a start before the driver is loaded is as
//! complete as a preload: `loader::got_patch` redirects the calls of all modules. After that,
//! callers already hold addresses of driver functions. The recording then omits all driver calls
//! rather than showing some of them, and covers PyTorch's blocks only; memory that PyTorch already
//! holds is passed in from its own snapshot (`held_memory`). On macOS, the classes of Metal's
//! devices are swizzled at the start. Objects in older heaps are not recorded. The trace's mode
//! is `started` in both cases.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_recorder::{end_by_program, is_preloaded, is_recording, may_record, uninterrupted};

use crate::attachment;
use crate::panic_guard::catch_panic;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Result of [`gpumemtrace_start`]. The Python package uses the same numbers.
#[derive(Clone, Copy)]
#[repr(i32)]
#[allow(dead_code, reason = "some results belong to one system only")]
enum StartResult {
    Failed = -1,
    /// Everything is recorded from now on.
    Everything = 0,
    /// Only PyTorch's blocks are recorded: the driver was already loaded.
    WithoutDriver = 1,
    /// The process is recorded already, or was preloaded to be.
    Already = 2,
    /// A recording of this process has ended; there is no second one.
    Over = 3,
    /// Metal has no device.
    NoDevice = 4,
}

/// `int gpumemtrace_start(void)`: starts a recording with the settings of the environment. Returns
/// a [`StartResult`].
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_start() -> c_int {
    let result = catch_panic(|| {
        if STOPPED.load(Ordering::Acquire) || !may_record() {
            return Some(StartResult::Over);
        }
        if is_recording() || is_preloaded() || attachment::is_started_by_program() {
            return Some(StartResult::Already);
        }
        Some(uninterrupted(install_hooks))
    });
    result.unwrap_or(StartResult::Failed) as c_int
}

/// `int gpumemtrace_stop(void)`: ends the recording for good and completes its trace. A recording
/// that has been requested but has no event yet ends too. Returns 1 if there was one.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_stop() -> c_int {
    let was_recording = catch_panic(|| {
        STOPPED.store(true, Ordering::Release);
        Some(end_by_program())
    });
    c_int::from(was_recording == Some(true))
}

/// Installs the hooks. The attachment is set first, before anything can be recorded.
#[cfg(target_os = "linux")]
fn install_hooks() -> StartResult {
    use crate::loader::got_patch::{PatchScope, patch_modules};

    let is_late = crate::cuda::is_driver_loaded();
    attachment::set_without_driver(is_late);
    attachment::set_started_by_program();
    #[cfg(feature = "metal-double")]
    crate::metal::swizzle_all_devices();
    if is_late {
        patch_modules(PatchScope::WithoutDriver);
        return StartResult::WithoutDriver;
    }
    patch_modules(PatchScope::All { driver_functions: crate::cuda::hooked_names().collect() });
    StartResult::Everything
}

/// Installs the hooks. The attachment is set first, before anything can be recorded.
#[cfg(target_os = "macos")]
fn install_hooks() -> StartResult {
    attachment::set_started_by_program();
    crate::lifecycle::macos::prevent_unload();
    if crate::metal::swizzle_all_devices() { StartResult::Everything } else { StartResult::NoDevice }
}

/// `void gpumemtrace_look_again(void)`: patches modules that were loaded since the last call.
#[cfg(target_os = "linux")]
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_look_again() {
    catch_panic(|| {
        if attachment::is_started_by_program() && !STOPPED.load(Ordering::Acquire) {
            uninterrupted(crate::loader::got_patch::patch_new_modules);
        }
        Some(())
    });
}

/// `int gpumemtrace_attach(void)`: attaches our tracker to PyTorch's allocator. Returns 1 if it is
/// attached afterwards.
///
/// The allocator must be initialized, and this thread must not be inside it.
#[cfg(target_os = "linux")]
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_attach() -> c_int {
    let is_attached = catch_panic(|| attachment::is_started_by_program().then(crate::torch::attach_now));
    c_int::from(is_attached == Some(true))
}
