//! Metal's memory in the trace.
//!
//! The crate `gpumemtrace-metal` produces events about Metal's objects; [`recorder_sink`] turns
//! them into trace events. This module starts it when the program obtains its first device. On
//! Linux it is built for tests only, against a double of Metal under GCC's Objective-C runtime
//! (`double`).

#[cfg(target_os = "linux")]
mod double;
mod recorder_sink;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_format::Meta;
use gpumemtrace_metal::runtime::{self, ObjcId, ObjcRuntime};
use gpumemtrace_metal::{METHOD_COUNT, METHOD_NAMES, MetalHooks};

#[cfg(target_os = "linux")]
use crate::cuda::API_NAMES as DRIVER_NAMES;
#[cfg(target_os = "linux")]
use crate::loader::symbols::real_dlsym as look_up;
use recorder_sink::RecorderSink;
pub(crate) use recorder_sink::{has_heaps, uncovered};

/// Only the unused first `ApiId` precedes the methods.
#[cfg(target_os = "macos")]
const DRIVER_NAMES: &[&str] = &[""];

#[cfg(target_os = "macos")]
fn look_up(handle: *mut std::ffi::c_void, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    // SAFETY: a NUL-terminated name; looking up a symbol has no other effect.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The `ApiId` of the first method.
const FIRST_METHOD_ID: usize = DRIVER_NAMES.len();
// An `ApiId` is one byte.
const _: () = assert!(FIRST_METHOD_ID + METHOD_COUNT <= 256);

/// Names of driver functions and of Metal's methods, by `ApiId`.
pub(crate) static API_NAMES: [&str; FIRST_METHOD_ID + METHOD_COUNT] = {
    let mut names = [""; FIRST_METHOD_ID + METHOD_COUNT];
    let mut at = 0;
    while at < names.len() {
        names[at] = if at < FIRST_METHOD_ID { DRIVER_NAMES[at] } else { METHOD_NAMES[at - FIRST_METHOD_ID] };
        at += 1;
    }
    names
};

static HAS_DEVICE: AtomicBool = AtomicBool::new(false);

/// True once the program has obtained a Metal device.
pub(crate) fn has_device() -> bool {
    HAS_DEVICE.load(Ordering::Acquire)
}

/// The hooks, started at the first call. `None` if no known Objective-C runtime is loaded.
fn hooks() -> Option<MetalHooks> {
    static HOOKS: OnceLock<Option<MetalHooks>> = OnceLock::new();
    let start = || {
        let runtime: &'static dyn ObjcRuntime =
            Box::leak(runtime::find(&|name| look_up(libc::RTLD_DEFAULT, name))?);
        Some(gpumemtrace_metal::start(runtime, &RecorderSink))
    };
    let hooks = *HOOKS.get_or_init(start);
    HAS_DEVICE.store(hooks.is_some(), Ordering::Release);
    hooks
}

/// Adds name and size of each observed device. The size is the memory that the system recommends
/// as a maximum; allocations beyond it are allowed.
pub(crate) fn collect_metadata(meta: &mut Meta) {
    let Some(hooks) = has_device().then(hooks).flatten() else { return };
    for device in hooks.known_devices() {
        if let Some(bytes) = device.recommended_bytes {
            meta.set_number(&format!("device.{}.total_bytes", device.number), bytes);
        }
        if let Some(name) = device.name {
            meta.set_text(&format!("device.{}.name", device.number), name);
        }
    }
}

/// Swizzles the classes of all devices, for a recording that starts after the program may have
/// obtained some. False if there is no device or no runtime.
pub(crate) fn swizzle_all_devices() -> bool {
    let devices = all_devices();
    if devices.is_null() {
        return false;
    }
    let Some(hooks) = hooks() else { return false };
    // SAFETY: an array that we own and never release, which keeps its devices alive.
    unsafe { hooks.observe_devices(devices) };
    true
}

#[cfg(target_os = "macos")]
fn all_devices() -> ObjcId {
    gpumemtrace_metal::interposed::all_devices()
}

#[cfg(target_os = "linux")]
fn all_devices() -> ObjcId {
    double::all_devices()
}

/// Connects the interposed functions that return devices to the hooks.
#[cfg(target_os = "macos")]
pub(crate) fn register() {
    gpumemtrace_metal::interposed::register(hooks);
}
