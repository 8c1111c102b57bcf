//! The driver's functions for our own allocator, in the right context.
//!
//! Constraint: PyTorch's backward threads may ask for memory before they have touched the runtime, so they have no context,
//! and the driver (unlike the runtime) does not choose one. Consequence: unless the thread's context is the device's, the
//! device's primary context, the one the runtime uses too, is pushed for the length of the call.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::questions::{current_device, memory_info, relaxed};
use super::table::{cuDevicePrimaryCtxRetain, cuMemAlloc_v2, cuMemFree_v2};
use super::wrapper::{NOT_INITIALIZED, real_functions};

const DEVICES: usize = 64;
/// Primary contexts, each retained once and for good.
static PRIMARY: [AtomicPtr<c_void>; DEVICES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; DEVICES];

real_functions! {
    cuCtxPushCurrent_v2(context: *mut c_void);
    cuCtxPopCurrent_v2(context: *mut *mut c_void);
    cuEventCreate(event: *mut u64, flags: c_uint);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
}

/// The driver, for our own allocator.
#[derive(Debug)]
pub(crate) struct Driver;

impl gpumemtrace_pytorch_shim::DriverApi for Driver {
    /// Recorded.
    fn alloc(&self, device: c_int, bytes: usize, during_capture: bool) -> Result<u64, c_int> {
        let mut addr = 0;
        // SAFETY: the out-parameter is ours.
        let mut alloc = || unsafe { cuMemAlloc_v2(&raw mut addr, bytes) };
        let result = on_device(device, || if during_capture { relaxed(alloc) } else { alloc() });
        answer(result).map(|()| addr)
    }

    /// Recorded.
    fn free(&self, device: c_int, addr: u64) -> Result<(), c_int> {
        // SAFETY: what the driver gave.
        answer(on_device(device, || unsafe { cuMemFree_v2(addr) }))
    }

    fn create_event(&self, device: c_int) -> Result<u64, c_int> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = 0;
        answer(on_device(device, || cuEventCreate(&raw mut event, DISABLE_TIMING))).map(|()| event)
    }

    fn record_event(&self, device: c_int, event: u64, stream: u64) -> Result<(), c_int> {
        answer(on_device(device, || cuEventRecord(event, stream)))
    }

    fn query_event(&self, device: c_int, event: u64) -> Result<(), c_int> {
        answer(on_device(device, || cuEventQuery(event)))
    }

    fn wait_for_event(&self, device: c_int, event: u64) -> Result<(), c_int> {
        answer(on_device(device, || cuEventSynchronize(event)))
    }

    fn memory(&self, device: c_int) -> Result<(u64, u64), c_int> {
        let mut memory = None;
        let result = on_device(device, || {
            memory = memory_info();
            0
        });
        answer(result)?;
        memory.ok_or(NOT_INITIALIZED)
    }
}

fn answer(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(result) }
}

fn on_device(device: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if c_int::from(current_device()) == device {
        return call();
    }
    let context = match primary_context(device) {
        Ok(context) => context,
        Err(result) => return result,
    };
    let pushed = cuCtxPushCurrent_v2(context);
    if pushed != 0 {
        return pushed;
    }
    let result = call();
    let mut popped = std::ptr::null_mut();
    cuCtxPopCurrent_v2(&raw mut popped);
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
