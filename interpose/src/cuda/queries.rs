//! What a hook asks the driver on its own account.
//!
//! Constraint: a question must not change anything, must be allowed while a stream is captured, and must not meet our own
//! hooks. Consequence: only look-ups of state, through the real addresses; an answer that is an error means "unknown".

use std::ffi::{c_int, c_uint};

use gpumemtrace_format::NO_DEVICE;

use super::hooked_call::real_functions;

/// `CU_STREAM_PER_THREAD`: what stream 0 means to the per-thread variants of functions.
const PER_THREAD_STREAM: u64 = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_ACTIVE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: what this thread asks for breaks no capture.
const CAPTURE_MODE_RELAXED: c_uint = 2;

real_functions! {
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetCurrent(context: *mut u64);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuStreamGetCaptureInfo_v2(stream: u64, status: *mut c_uint, id: *mut u64, graph: *mut u64, nodes: *mut u64, count: *mut usize);
    cuPointerGetAttribute(answer: *mut c_int, attribute: c_uint, address: u64);
    cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuArrayGetMemoryRequirements(answer: *mut [u64; 4], array: u64, device: c_int);
    cuMipmappedArrayGetMemoryRequirements(answer: *mut [u64; 4], array: u64, device: c_int);
}

/// Device ordinal of the calling thread's current context.
pub(crate) fn current_device() -> u8 {
    let mut device: c_int = -1;
    match cuCtxGetDevice(&raw mut device) {
        0 => u8::try_from(device).unwrap_or(NO_DEVICE),
        _ => NO_DEVICE,
    }
}

/// The calling thread's current context; 0 for none.
pub(crate) fn current_context() -> u64 {
    let mut context = 0;
    if cuCtxGetCurrent(&raw mut context) == 0 { context } else { 0 }
}

/// 1 if the device's primary context is not active.
pub(crate) fn primary_has_ended(device: c_int) -> u64 {
    let (mut flags, mut active) = (0, 1);
    u64::from(cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) == 0 && active == 0)
}

/// The graph that a stream is being captured into. The legacy stream may refuse to say while another one is captured.
pub(crate) fn captured_into(stream: u64, per_thread: bool) -> Option<u64> {
    let stream = if per_thread && stream == 0 { PER_THREAD_STREAM } else { stream };
    let (mut status, mut id, mut graph) = (0, 0, 0);
    // Without asking for the nodes it depends on: some of those the driver cannot describe in this form, and it would fail.
    let (nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    let result =
        cuStreamGetCaptureInfo_v2(stream, &raw mut status, &raw mut id, &raw mut graph, nodes, count);
    (result == 0 && status == CAPTURE_ACTIVE).then_some(graph)
}

/// Does something that would end a capture otherwise.
pub(crate) fn relaxed<T>(act: impl FnOnce() -> T) -> T {
    let mut mode = CAPTURE_MODE_RELAXED;
    let relaxed = cuThreadExchangeStreamCaptureMode(&raw mut mode) == 0;
    let answer = act();
    if relaxed {
        // `mode` holds the thread's own by now.
        cuThreadExchangeStreamCaptureMode(&raw mut mode);
    }
    answer
}

/// Free bytes and all bytes of the calling thread's current context.
pub(crate) fn memory_info() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    let result = relaxed(|| cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (result == 0).then_some((free as u64, total as u64))
}

/// Device, free bytes and all bytes of the calling thread's current context.
pub(crate) fn memory_in_use() -> Option<(u8, u64, u64)> {
    memory_info().map(|(free, total)| (current_device(), free, total))
}

/// Ordinal of the device that an address is on, where the driver tells it.
pub(crate) fn device_of(address: u64) -> Option<u8> {
    const DEVICE_ORDINAL: c_uint = 9;
    let mut device: c_int = -1;
    match cuPointerGetAttribute(&raw mut device, DEVICE_ORDINAL, address) {
        0 => u8::try_from(device).ok(),
        _ => None,
    }
}

/// Bytes of the allocation that begins at an address; 0 if unknown.
pub(crate) fn allocation_bytes(address: u64) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    if cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) == 0 { bytes as u64 } else { 0 }
}

/// Bytes that an array needs, where the driver tells it (only for arrays whose memory is mapped later).
pub(crate) fn array_bytes(array: u64, device: u8, mipmapped: bool) -> Option<u64> {
    let mut answer = [0; 4];
    let ask = if mipmapped { cuMipmappedArrayGetMemoryRequirements } else { cuArrayGetMemoryRequirements };
    (ask(&raw mut answer, array, c_int::from(device)) == 0).then_some(answer[0])
}
