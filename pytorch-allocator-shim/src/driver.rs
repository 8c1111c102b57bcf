//! What the allocator needs of the driver.
//!
//! Constraint: only the hooks know the real functions, and what goes through them is recorded. Consequence: they give
//! themselves to this crate, which looks nothing up itself.

use std::ffi::c_int;
use std::sync::OnceLock;

/// `CUresult`, other than success.
pub type Error = c_int;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub(crate) const NOT_INITIALIZED: Error = 3;

/// The driver's functions, each in the context of a device, whatever the thread's own.
pub trait Driver: Sync + std::fmt::Debug {
    /// `cuMemAlloc`. During a capture it must not end the capture.
    fn alloc(&self, device: c_int, bytes: usize, during_capture: bool) -> Result<u64, Error>;
    /// `cuMemFree`.
    fn free(&self, device: c_int, addr: u64) -> Result<(), Error>;
    /// `cuEventCreate`, without timing.
    fn create_event(&self, device: c_int) -> Result<u64, Error>;
    /// `cuEventRecord`.
    fn record_event(&self, device: c_int, event: u64, stream: u64) -> Result<(), Error>;
    /// `cuEventQuery`: whether it is done.
    fn query_event(&self, device: c_int, event: u64) -> Result<(), Error>;
    /// `cuEventSynchronize`.
    fn wait_for_event(&self, device: c_int, event: u64) -> Result<(), Error>;
    /// `cuMemGetInfo`: free and all bytes of the device.
    fn memory(&self, device: c_int) -> Result<(u64, u64), Error>;
}

static DRIVER: OnceLock<&'static dyn Driver> = OnceLock::new();

/// Gives the driver's functions. Later calls change nothing.
pub fn install(driver: &'static dyn Driver) {
    let _ = DRIVER.set(driver);
}

/// What was given.
pub(crate) fn driver() -> Result<&'static dyn Driver, Error> {
    DRIVER.get().copied().ok_or(NOT_INITIALIZED)
}
