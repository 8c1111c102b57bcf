//! How a program's devices come to us on macOS.
//!
//! Constraint: libraries there find functions by the library they were linked against, so that ours cannot be found first by its name.
//! Consequence: pairs of functions in a section that the loader reads in libraries of `DYLD_INSERT_LIBRARIES`: whoever calls the second
//! of a pair calls the first, except from here.

use crate::hooks::Hooks;
use crate::runtime::Object;
use std::sync::OnceLock;

#[link(name = "Metal", kind = "framework")]
unsafe extern "C-unwind" {
    fn MTLCopyAllDevices() -> Object;
    fn MTLCreateSystemDefaultDevice() -> Object;
}

/// Metal's own answer, which a call from here reaches.
pub fn all_devices() -> Object {
    // SAFETY: no arguments.
    unsafe { MTLCopyAllDevices() }
}

static HOOKS: OnceLock<fn() -> Option<Hooks>> = OnceLock::new();

/// How the hooks are come by when the first device is there.
pub fn register(hooks: fn() -> Option<Hooks>) {
    let _ = HOOKS.set(hooks);
}

fn hooks() -> Option<Hooks> {
    HOOKS.get().and_then(|hooks| hooks())
}

unsafe extern "C-unwind" fn copy_all_devices() -> Object {
    // SAFETY: no arguments.
    let devices = unsafe { MTLCopyAllDevices() };
    if let Some(hooks) = hooks() {
        // SAFETY: null, or an array that the caller is about to own.
        unsafe { hooks.devices(devices) };
    }
    devices
}

unsafe extern "C-unwind" fn create_system_default_device() -> Object {
    // SAFETY: no arguments.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    if let Some(hooks) = hooks() {
        // SAFETY: null, or the system's device.
        unsafe { hooks.device(device) };
    }
    device
}

/// The form of `__interpose`.
#[repr(C)]
#[derive(Debug)]
struct Pair {
    new: unsafe extern "C-unwind" fn() -> Object,
    old: unsafe extern "C-unwind" fn() -> Object,
}

#[used]
#[unsafe(link_section = "__DATA,__interpose")]
static PAIRS: [Pair; 2] = [
    Pair { new: copy_all_devices, old: MTLCopyAllDevices },
    Pair { new: create_system_default_device, old: MTLCreateSystemDefaultDevice },
];
