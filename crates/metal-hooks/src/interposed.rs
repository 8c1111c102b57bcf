//! The hooks on Metal's functions that return devices (macOS only).
//!
//! Libraries on macOS bind functions by library, so an exported name of ours replaces nothing. The
//! loader replaces the pairs in `__DATA,__interpose` of libraries in `DYLD_INSERT_LIBRARIES`, for
//! all callers but this library itself.

use crate::devices::MetalHooks;
use crate::runtime::ObjcId;
use std::sync::OnceLock;

#[link(name = "Metal", kind = "framework")]
unsafe extern "C-unwind" {
    fn MTLCopyAllDevices() -> ObjcId;
    fn MTLCreateSystemDefaultDevice() -> ObjcId;
}

/// Calls Metal's own `MTLCopyAllDevices`. The caller owns the array.
pub fn all_devices() -> ObjcId {
    // SAFETY: no arguments.
    unsafe { MTLCopyAllDevices() }
}

static HOOKS_SOURCE: OnceLock<fn() -> Option<MetalHooks>> = OnceLock::new();

/// Registers the function that provides the hooks when the first device appears. The first
/// registration stays.
pub fn register(hooks: fn() -> Option<MetalHooks>) {
    let _ = HOOKS_SOURCE.set(hooks);
}

fn hooks() -> Option<MetalHooks> {
    HOOKS_SOURCE.get().and_then(|hooks| hooks())
}

unsafe extern "C-unwind" fn copy_all_devices() -> ObjcId {
    // SAFETY: no arguments.
    let devices = unsafe { MTLCopyAllDevices() };
    if let Some(hooks) = hooks() {
        // SAFETY: null, or an array that the caller is about to own.
        unsafe { hooks.observe_devices(devices) };
    }
    devices
}

unsafe extern "C-unwind" fn create_system_default_device() -> ObjcId {
    // SAFETY: no arguments.
    let device = unsafe { MTLCreateSystemDefaultDevice() };
    if let Some(hooks) = hooks() {
        // SAFETY: null, or the system's device.
        unsafe { hooks.observe_device(device) };
    }
    device
}

/// An entry of `__interpose`: callers of `replaced` in other libraries call `replacement`.
#[repr(C)]
#[derive(Debug)]
struct DeviceInterposePair {
    replacement: unsafe extern "C-unwind" fn() -> ObjcId,
    replaced: unsafe extern "C-unwind" fn() -> ObjcId,
}

#[used]
#[unsafe(link_section = "__DATA,__interpose")]
static PAIRS: [DeviceInterposePair; 2] = [
    DeviceInterposePair { replacement: copy_all_devices, replaced: MTLCopyAllDevices },
    DeviceInterposePair { replacement: create_system_default_device, replaced: MTLCreateSystemDefaultDevice },
];
