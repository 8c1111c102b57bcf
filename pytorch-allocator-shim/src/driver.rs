//! The driver functions that the allocator calls.
//!
//! Only the interposition crate has the real functions, and calls through it are recorded. It
//! implements [`DriverApi`] and passes it to [`install_driver`].

use std::ffi::c_int;
use std::sync::OnceLock;

/// A `CUresult` other than `CUDA_SUCCESS`.
pub type CuResult = c_int;
/// `CUDA_ERROR_NOT_INITIALIZED`, before a driver is installed.
pub(crate) const NOT_INITIALIZED: CuResult = 3;

/// Driver calls that run in the primary context of `device`, whatever context the thread has.
pub trait DriverApi: Sync + std::fmt::Debug {
    /// `cuMemAlloc`. With `during_capture` the call must not invalidate a CUDA graph capture.
    fn alloc(&self, device: c_int, bytes: usize, during_capture: bool) -> Result<u64, CuResult>;
    /// `cuMemFree` of an address from [`alloc`](Self::alloc).
    fn free(&self, device: c_int, addr: u64) -> Result<(), CuResult>;
    /// `cuEventCreate`, for an event without timing.
    fn create_event(&self, device: c_int) -> Result<u64, CuResult>;
    /// `cuEventRecord` on a stream of the device.
    fn record_event(&self, device: c_int, event: u64, stream: u64) -> Result<(), CuResult>;
    /// `cuEventQuery`: `Ok` once all work before the event has completed.
    fn query_event(&self, device: c_int, event: u64) -> Result<(), CuResult>;
    /// `cuEventSynchronize`: blocks until all work before the event has completed.
    fn wait_for_event(&self, device: c_int, event: u64) -> Result<(), CuResult>;
    /// `cuMemGetInfo`: free and total bytes of the device.
    fn memory(&self, device: c_int) -> Result<(u64, u64), CuResult>;
}

static DRIVER: OnceLock<&'static dyn DriverApi> = OnceLock::new();

/// Installs the driver's functions. The first call wins; later calls do nothing.
pub fn install_driver(driver: &'static dyn DriverApi) {
    let _ = DRIVER.set(driver);
}

/// The installed functions, or [`NOT_INITIALIZED`] before [`install_driver`].
pub(crate) fn driver() -> Result<&'static dyn DriverApi, CuResult> {
    DRIVER.get().copied().ok_or(NOT_INITIALIZED)
}
