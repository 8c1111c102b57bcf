//! The driver's functions for our own allocator, in the right context.
//!
//! Constraint: PyTorch's backward threads may ask for memory before they have touched the runtime, so they have no context,
//! and the driver (unlike the runtime) does not choose one. Consequence: unless the thread's context is the device's, the
//! device's primary context, the one the runtime uses too, is pushed for the length of the call.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::questions::current_device;
use super::table::{cuDevicePrimaryCtxRetain, cuMemAlloc_v2, cuMemFree_v2};
use super::wrapper::{NOT_INITIALIZED, Real};

const DEVICES: usize = 64;
/// Primary contexts, each retained once and for good.
static PRIMARY: [AtomicPtr<c_void>; DEVICES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; DEVICES];

static PUSH: Real = Real::new(c"cuCtxPushCurrent_v2");
static POP: Real = Real::new(c"cuCtxPopCurrent_v2");

/// Recorded `cuMemAlloc` on a device.
pub(crate) unsafe extern "C" fn alloc(device: c_int, out: *mut u64, size: usize) -> c_int {
    // SAFETY: the caller's out-parameter.
    on_device(device, || unsafe { cuMemAlloc_v2(out, size) })
}

/// Recorded `cuMemFree` on a device.
pub(crate) unsafe extern "C" fn free(device: c_int, pointer: u64) -> c_int {
    // SAFETY: the caller's pointer.
    on_device(device, || unsafe { cuMemFree_v2(pointer) })
}

fn on_device(device: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if c_int::from(current_device()) == device {
        return call();
    }
    let context = match primary_context(device) {
        Ok(context) => context,
        Err(result) => return result,
    };
    let (push, pop) = (PUSH.get(), POP.get());
    if push.is_null() || pop.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: `CUresult cuCtxPushCurrent_v2(CUcontext)`, `CUresult cuCtxPopCurrent_v2(CUcontext *)`.
    let (push, pop) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(push),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void) -> c_int>(pop),
        )
    };
    // SAFETY: a context that is retained for good.
    let pushed = unsafe { push(context) };
    if pushed != 0 {
        return pushed;
    }
    let result = call();
    let mut popped = std::ptr::null_mut();
    // SAFETY: the out-parameter is ours; what was pushed above is popped.
    unsafe { pop(&raw mut popped) };
    result
}

fn primary_context(device: c_int) -> Result<*mut c_void, c_int> {
    const INVALID_DEVICE: c_int = 101;
    let slot = usize::try_from(device).ok().and_then(|device| PRIMARY.get(device)).ok_or(INVALID_DEVICE)?;
    let known = slot.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let mut context = 0;
    // Recorded like anybody else's: a context that we hold does not end when the program lets it go.
    // SAFETY: the out-parameter is ours; an ordinal is its own handle.
    match unsafe { cuDevicePrimaryCtxRetain(&raw mut context, device) } {
        0 => {
            let context = context as *mut c_void;
            slot.store(context, Ordering::Release);
            Ok(context)
        }
        result => Err(result),
    }
}
