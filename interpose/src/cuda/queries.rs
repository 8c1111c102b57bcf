//! Questions that the hooks ask the driver.
//!
//! The queries only read driver state and call it past our own hooks, so they are not recorded.
//! All of them are allowed while a stream is captured. A query that returns an error counts as
//! "unknown".

use std::ffi::{c_int, c_uint};

use gpumemtrace_format::NO_DEVICE;

use super::driver_fn::unhooked_functions;

/// `CU_STREAM_PER_THREAD`: the stream that 0 denotes in the per-thread variants of functions.
const PER_THREAD_STREAM: u64 = 2;
/// The driver API's `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const CAPTURE_ACTIVE: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of this thread invalidate no capture.
const CAPTURE_MODE_RELAXED: c_uint = 2;

unhooked_functions! {
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetCurrent(context: *mut u64);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuStreamGetCaptureInfo_v2(stream: u64, status: *mut c_uint, id: *mut u64, graph: *mut u64, nodes: *mut u64, count: *mut usize);
    cuPointerGetAttribute(value: *mut c_int, attribute: c_uint, address: u64);
    cuPointerGetAttributes(count: c_uint, attributes: *const c_uint, values: *const *mut c_int, address: u64);
    cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    cuArrayGetMemoryRequirements(requirements: *mut [u64; 4], array: u64, device: c_int);
    cuMipmappedArrayGetMemoryRequirements(requirements: *mut [u64; 4], array: u64, device: c_int);
}

/// Device ordinal of the calling thread's current context; `NO_DEVICE` without one.
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

/// True if the device's primary context is not active. False if that is unknown.
pub(crate) fn is_primary_context_inactive(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 1);
    cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) == 0 && active == 0
}

/// The graph that a stream is being captured into; `None` if it is not captured. The driver may
/// refuse to answer for the legacy stream while another stream is captured.
pub(crate) fn capturing_graph(stream: u64, per_thread: bool) -> Option<u64> {
    let stream = if per_thread && stream == 0 { PER_THREAD_STREAM } else { stream };
    let (mut status, mut id, mut graph) = (0, 0, 0);
    // Does not ask for the dependency nodes: the call fails if one of them has edge data, which
    // this form cannot describe.
    let (nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut());
    let result =
        cuStreamGetCaptureInfo_v2(stream, &raw mut status, &raw mut id, &raw mut graph, nodes, count);
    (result == 0 && status == CAPTURE_ACTIVE).then_some(graph)
}

/// Runs `body` with the thread's capture mode relaxed, so that its driver calls do not invalidate
/// a capture.
pub(crate) fn with_relaxed_capture_mode<T>(body: impl FnOnce() -> T) -> T {
    let mut mode = CAPTURE_MODE_RELAXED;
    let is_relaxed = cuThreadExchangeStreamCaptureMode(&raw mut mode) == 0;
    let result = body();
    if is_relaxed {
        // The first exchange left the thread's own mode in `mode`.
        cuThreadExchangeStreamCaptureMode(&raw mut mode);
    }
    result
}

/// Free and total bytes on the device of the calling thread's current context.
pub(crate) fn free_and_total_bytes() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    let result = with_relaxed_capture_mode(|| cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (result == 0).then_some((free as u64, total as u64))
}

/// Ordinal of the device that holds an address; `None` if the driver does not know.
pub(crate) fn device_of_address(address: u64) -> Option<u8> {
    const DEVICE_ORDINAL: c_uint = 9;
    let mut device: c_int = -1;
    match cuPointerGetAttribute(&raw mut device, DEVICE_ORDINAL, address) {
        0 => u8::try_from(device).ok(),
        _ => None,
    }
}

/// The device and the kind of memory at an address.
#[derive(Debug, Default)]
pub(crate) struct AddressMemory {
    /// `None` if the driver does not know, or if the memory is on the host.
    pub(crate) device: Option<u8>,
    pub(crate) is_host: bool,
    pub(crate) is_managed: bool,
}

/// The memory at an address; the default if the driver does not know the address. One call for all
/// attributes: it is made once per allocation.
pub(crate) fn memory_of_address(address: u64) -> AddressMemory {
    // `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`, `_MEMORY_TYPE` and `_IS_MANAGED`.
    const ATTRIBUTES: [c_uint; 3] = [9, 2, 8];
    // `CU_MEMORYTYPE_HOST`.
    const HOST: c_int = 1;
    let (mut device, mut memory_type, mut is_managed): (c_int, c_int, c_int) = (-1, 0, 0);
    let values = [&raw mut device, &raw mut memory_type, &raw mut is_managed];
    if cuPointerGetAttributes(ATTRIBUTES.len() as c_uint, ATTRIBUTES.as_ptr(), values.as_ptr(), address) != 0
    {
        return AddressMemory::default();
    }
    let is_managed = is_managed != 0;
    AddressMemory {
        device: u8::try_from(device).ok(),
        is_host: memory_type == HOST && !is_managed,
        is_managed,
    }
}

/// Bytes of the allocation that contains an address; 0 if unknown.
pub(crate) fn allocation_bytes(address: u64) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    if cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) == 0 { bytes as u64 } else { 0 }
}

/// Bytes that an array needs. `None` unless its memory is mapped later, for example when sparse:
/// the driver reports the size of no other array.
pub(crate) fn array_bytes(array: u64, device: u8, mipmapped: bool) -> Option<u64> {
    let mut requirements = [0; 4];
    let query = if mipmapped { cuMipmappedArrayGetMemoryRequirements } else { cuArrayGetMemoryRequirements };
    (query(&raw mut requirements, array, c_int::from(device)) == 0).then_some(requirements[0])
}
