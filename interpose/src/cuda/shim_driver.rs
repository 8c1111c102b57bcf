//! The driver's functions for our own PyTorch allocator, called in the right context.
//!
//! PyTorch's backward threads may allocate before they have used the CUDA runtime. They have no
//! context then, and the driver, unlike the runtime, does not choose one. Unless the thread's
//! context belongs to the device, the calls here push the device's primary context, which the
//! runtime uses too.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::driver_fn::{NOT_INITIALIZED, unhooked_functions};
use super::hooks::{cuDevicePrimaryCtxRetain, cuMemAlloc_v2, cuMemFree_v2};
use super::queries::{current_device, free_and_total_bytes, with_relaxed_capture_mode};

const MAX_DEVICES: usize = 64;
/// The primary contexts in use, each retained once and never released.
static PRIMARY_CONTEXTS: [AtomicPtr<c_void>; MAX_DEVICES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_DEVICES];

unhooked_functions! {
    cuCtxPushCurrent_v2(context: *mut c_void);
    cuCtxPopCurrent_v2(context: *mut *mut c_void);
    cuEventCreate(event: *mut u64, flags: c_uint);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
}

/// The recorded driver, as the allocator crate needs it. Allocations and frees are recorded.
#[derive(Debug)]
pub(crate) struct ShimDriver;

impl gpumemtrace_pytorch_shim::DriverApi for ShimDriver {
    fn alloc(&self, device: c_int, bytes: usize, during_capture: bool) -> Result<u64, c_int> {
        let mut addr = 0;
        // SAFETY: the out-parameter is ours.
        let mut alloc = || unsafe { cuMemAlloc_v2(&raw mut addr, bytes) };
        let result =
            in_context_of(device, || if during_capture { with_relaxed_capture_mode(alloc) } else { alloc() });
        to_result(result).map(|()| addr)
    }

    fn free(&self, device: c_int, addr: u64) -> Result<(), c_int> {
        // SAFETY: an address that the driver returned.
        to_result(in_context_of(device, || unsafe { cuMemFree_v2(addr) }))
    }

    fn create_event(&self, device: c_int) -> Result<u64, c_int> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = 0;
        to_result(in_context_of(device, || cuEventCreate(&raw mut event, DISABLE_TIMING))).map(|()| event)
    }

    fn record_event(&self, device: c_int, event: u64, stream: u64) -> Result<(), c_int> {
        to_result(in_context_of(device, || cuEventRecord(event, stream)))
    }

    fn query_event(&self, device: c_int, event: u64) -> Result<(), c_int> {
        to_result(in_context_of(device, || cuEventQuery(event)))
    }

    fn wait_for_event(&self, device: c_int, event: u64) -> Result<(), c_int> {
        to_result(in_context_of(device, || cuEventSynchronize(event)))
    }

    fn memory(&self, device: c_int) -> Result<(u64, u64), c_int> {
        let mut memory = None;
        let result = in_context_of(device, || {
            memory = free_and_total_bytes();
            0
        });
        to_result(result)?;
        memory.ok_or(NOT_INITIALIZED)
    }
}

fn to_result(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(result) }
}

/// Makes a call with a context of `device` current.
fn in_context_of(device: c_int, call: impl FnOnce() -> c_int) -> c_int {
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
    let slot =
        usize::try_from(device).ok().and_then(|device| PRIMARY_CONTEXTS.get(device)).ok_or(INVALID_DEVICE)?;
    let known = slot.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let mut context = 0;
    // The call is recorded: our reference keeps the context alive after the program releases its
    // own.
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
