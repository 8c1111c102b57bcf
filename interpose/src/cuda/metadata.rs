//! Trace metadata from the driver: its version, and the name and size of each device.
//!
//! The queries must neither create a context nor disturb the program's. Only functions that need
//! no context are called, past our own hooks, after the program's first driver call, on the
//! recorder's thread that may be stuck.

use std::ffi::{c_char, c_int, c_void};

use gpumemtrace_format::Meta;

use super::driver_lib::driver_symbol;

const MAX_DEVICES: c_int = 64;

/// Adds the driver's version, and the name and size of each device. Omits what the driver does not
/// report.
pub(crate) fn collect(meta: &mut Meta) {
    let number = |name| -> Option<c_int> {
        let function = driver_symbol(name);
        if function.is_null() {
            return None;
        }
        // SAFETY: both functions used here are `CUresult f(int *)`.
        let function = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(function)
        };
        let mut value = 0;
        // SAFETY: the out-parameter is ours.
        (unsafe { function(&raw mut value) } == 0).then_some(value)
    };
    if let Some(version) = number(c"cuDriverGetVersion") {
        meta.set_text("cuda_driver", format!("{}.{}", version / 1000, version % 1000 / 10));
    }
    for ordinal in 0..number(c"cuDeviceGetCount").unwrap_or(0).clamp(0, MAX_DEVICES) {
        if let Some(bytes) = total_bytes(ordinal) {
            meta.set_number(&format!("device.{ordinal}.total_bytes"), bytes);
        }
        if let Some(name) = device_name(ordinal) {
            meta.set_text(&format!("device.{ordinal}.name"), name);
        }
    }
}

fn total_bytes(ordinal: c_int) -> Option<u64> {
    let function = driver_symbol(c"cuDeviceTotalMem_v2");
    if function.is_null() {
        return None;
    }
    // SAFETY: `CUresult cuDeviceTotalMem_v2(size_t *, CUdevice)`; an ordinal is its own handle.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut usize, c_int) -> c_int>(function)
    };
    let mut bytes = 0;
    // SAFETY: the out-parameter is ours.
    (unsafe { function(&raw mut bytes, ordinal) } == 0).then_some(bytes as u64)
}

fn device_name(ordinal: c_int) -> Option<String> {
    let function = driver_symbol(c"cuDeviceGetName");
    if function.is_null() {
        return None;
    }
    // SAFETY: `CUresult cuDeviceGetName(char *, int, CUdevice)`.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(function)
    };
    let mut name = [0u8; 256];
    // SAFETY: the buffer has the passed length.
    if unsafe { function(name.as_mut_ptr().cast(), name.len() as c_int, ordinal) } != 0 {
        return None;
    }
    let len = name.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&name[..len]).into_owned())
}
