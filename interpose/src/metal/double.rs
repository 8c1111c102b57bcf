//! The hooks on the double's functions that return devices (tests on Linux).
//!
//! The loader's order does here what `__DATA,__interpose` does on macOS.
#![allow(non_snake_case, reason = "Metal's names")]

use std::ffi::{CStr, c_void};

use super::{ObjcId, hooks, look_up};
use crate::panic_guard::catch_panic;

type DevicesFn = unsafe extern "C-unwind" fn() -> ObjcId;

fn call(function: *mut c_void) -> ObjcId {
    if function.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: one of the two functions below, which have this signature.
    unsafe { std::mem::transmute::<*mut c_void, DevicesFn>(function)() }
}

fn call_next(name: &CStr) -> ObjcId {
    call(look_up(libc::RTLD_NEXT, name))
}

/// Calls the double's `MTLCopyAllDevices`, whether it precedes or follows this library.
pub(super) fn all_devices() -> ObjcId {
    let name = c"MTLCopyAllDevices";
    // The program's scope: a look-up relative to this library would find our own function first.
    // SAFETY: a handle of the main program, which is loaded.
    let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    let first = look_up(program, name);
    let is_ours = first == MTLCopyAllDevices as *mut c_void;
    if is_ours { call_next(name) } else { call(first) }
}

/// The hook.
///
/// # Safety
/// As Metal's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> ObjcId {
    let device = call_next(c"MTLCreateSystemDefaultDevice");
    catch_panic(|| {
        // SAFETY: a device, or null.
        unsafe { hooks()?.observe_device(device) };
        Some(())
    });
    device
}

/// The hook.
///
/// # Safety
/// As Metal's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn MTLCopyAllDevices() -> ObjcId {
    let devices = call_next(c"MTLCopyAllDevices");
    catch_panic(|| {
        // SAFETY: an array of devices, or null.
        unsafe { hooks()?.observe_devices(devices) };
        Some(())
    });
    devices
}
