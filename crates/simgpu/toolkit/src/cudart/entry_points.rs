//! `cudaGetDriverEntryPoint`: forwards to the driver.

use core::ffi::c_char;

use simgpu_common::{ApiResult, Out};

use super::{INVALID_VALUE, initialised, runtime};
use crate::versions::wheel_versions;

/// Flag 2 selects the per-thread default stream, as in the driver.
fn entry_point(symbol: u64, out: Out<u64>, version: u32, flags: u64, status: Out<u32>) -> ApiResult {
    if symbol == 0 {
        return Err(INVALID_VALUE);
    }
    out.check()?;
    let driver = initialised()?;
    let (mut address, mut outcome) = (0_u64, 0_u32);
    let code = (driver.get_proc_address_2)(
        symbol as *const c_char,
        &raw mut address,
        version as i32,
        flags,
        &raw mut outcome,
    );
    if code != 0 {
        return Err(code);
    }
    out.put(address)?;
    status.put_if_wanted(outcome);
    Ok(())
}

runtime! {
    cudaGetDriverEntryPoint(symbol: u64, out: Out<u64>, flags: u64, status: Out<u32>) {
        entry_point(symbol, out, wheel_versions().runtime, flags, status)
    }
    cudaGetDriverEntryPointByVersion(symbol: u64, out: Out<u64>, version: u32, flags: u64, status: Out<u32>) {
        entry_point(symbol, out, version, flags, status)
    }
}
