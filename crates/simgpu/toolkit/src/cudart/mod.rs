//! The CUDA runtime functions that PyTorch uses; each makes one or two driver calls.

mod devices;
mod entry_points;
mod fat_binary;
mod graphs;
mod kernels;
mod memory;
mod properties;
mod streams;
mod texts;

use std::cell::Cell;

use simgpu_common::ApiResult;

use crate::driver::{Driver, driver, ok};

thread_local! {
    static LAST_ERROR: Cell<u32> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
}

const INVALID_VALUE: u32 = 1;
const INVALID_DEVICE: u32 = 101;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;
/// Result of a function that panicked.
const UNKNOWN: u32 = 999;

/// Runs a body and stores its error for `cudaGetLastError`, except `cudaErrorNotReady`.
fn remember(body: impl FnOnce() -> ApiResult) -> u32 {
    let code = crate::entry::guard(UNKNOWN, body);
    if code != 0 && code != NOT_READY {
        LAST_ERROR.set(code);
    }
    code
}

/// Returns the initialised driver.
fn initialised() -> ApiResult<&'static Driver> {
    let driver = driver()?;
    ok((driver.init)(0))?;
    Ok(driver)
}

/// Returns the driver, with a context current on the thread.
fn context() -> ApiResult<&'static Driver> {
    crate::driver::with_context(DEVICE.get())
}

/// Returns the thread's device: its context's, or the one it selected earlier.
fn device() -> ApiResult<u32> {
    let driver = initialised()?;
    let mut context = 0;
    ok((driver.ctx_current)(&raw mut context))?;
    if context == 0 {
        return Ok(DEVICE.get());
    }
    let mut device = 0;
    ok((driver.ctx_device)(&raw mut device))?;
    Ok(device)
}

/// Declares runtime functions; each stores its error for `cudaGetLastError`.
macro_rules! runtime {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(export_name = concat!("simgpu_fn_", stringify!($name)))]
            extern "C" fn $name($($arg: $ty),*) -> u32 {
                $crate::cudart::remember(|| $body)
            }
        )*
    };
}
use runtime;
