//! The CUDA runtime: what PyTorch and its kin call, each function one or two driver calls.

mod devices;
mod entry_points;
mod graphs;
mod kernels;
mod memory;
mod properties;
mod streams;
mod texts;

use std::cell::Cell;

use simgpu_common::Answer;

use crate::driver::{Driver, driver, ok};

thread_local! {
    static LAST_ERROR: Cell<u32> = const { Cell::new(0) };
    static DEVICE: Cell<u32> = const { Cell::new(0) };
}

const INVALID_VALUE: u32 = 1;
const INVALID_DEVICE: u32 = 101;
const NOT_READY: u32 = 600;
const NOT_SUPPORTED: u32 = 801;
/// What a panic inside turns into.
const UNKNOWN: u32 = 999;

/// Runs a body and remembers its error for `cudaGetLastError`; "not ready" is an answer, not an error to remember.
fn remember(body: impl FnOnce() -> Answer) -> u32 {
    let code = crate::entry::guard(UNKNOWN, body);
    if code != 0 && code != NOT_READY {
        LAST_ERROR.set(code);
    }
    code
}

/// The driver, initialised.
fn initialised() -> Answer<&'static Driver> {
    let driver = driver()?;
    ok((driver.init)(0))?;
    Ok(driver)
}

/// The driver with a context current on the thread.
fn context() -> Answer<&'static Driver> {
    crate::driver::with_context(DEVICE.get())
}

/// The thread's device: that of its context, or the one it chose before there was any.
fn device() -> Answer<u32> {
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

/// Declares runtime functions.
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
