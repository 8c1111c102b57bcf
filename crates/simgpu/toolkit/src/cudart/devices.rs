//! Device count, selection and properties.

use std::sync::OnceLock;

use simgpu_common::{ApiResult, In, Out};

use super::{
    DEVICE, INVALID_DEVICE, INVALID_VALUE, LAST_ERROR, context, device, initialised, properties, runtime,
};
use crate::driver::{driver, forget_primary, make_primary_current, ok};
use crate::versions::wheel_versions;

fn count() -> ApiResult<u32> {
    let mut count = 0;
    ok((initialised()?.device_count)(&raw mut count))?;
    Ok(count)
}

fn check(device: i32) -> ApiResult<u32> {
    let device = u32::try_from(device).map_err(|_| INVALID_DEVICE)?;
    if device < count()? { Ok(device) } else { Err(INVALID_DEVICE) }
}

fn attribute(which: u32, device: u32) -> ApiResult<i32> {
    let mut value = 0;
    ok((driver()?.device_attribute)(&raw mut value, which, device))?;
    Ok(value)
}

/// Returns the property struct of a device, built once because programs read it often.
fn properties_of(device: u32, thirteen: bool) -> ApiResult<&'static [u8]> {
    static KNOWN: [[OnceLock<Vec<u8>>; 2]; 16] = [const { [const { OnceLock::new() }; 2] }; 16];
    let slot = &KNOWN.get(device as usize).ok_or(INVALID_DEVICE)?[usize::from(thirteen)];
    if let Some(known) = slot.get() {
        return Ok(known);
    }
    let driver = driver()?;
    let mut name = [0_u8; 256];
    ok((driver.device_name)(name.as_mut_ptr(), 256, device))?;
    let mut uuid = [0; 16];
    ok((driver.device_uuid)(&raw mut uuid, device))?;
    let mut total = 0;
    ok((driver.device_total)(&raw mut total, device))?;
    let made = properties::fill(&name, &uuid, total, thirteen, |which| attribute(which, device).unwrap_or(0));
    Ok(slot.get_or_init(|| made))
}

fn get_properties(out: Out<u8>, device: i32, thirteen: bool) -> ApiResult {
    out.check()?;
    let known = properties_of(check(device)?, thirteen)?;
    out.put_all(known.iter().copied());
    Ok(())
}

fn set_device(device: i32) -> ApiResult {
    let device = check(device)?;
    DEVICE.set(device);
    make_primary_current(driver()?, device)
}

runtime! {
    cudaGetDeviceCount(out: Out<u32>) {
        out.check()?;
        match count() {
            // cudaErrorNoDevice, as the count of 0 implies.
            Ok(0) => {
                out.put(0)?;
                Err(100)
            }
            Ok(count) => out.put(count),
            Err(code) => {
                out.put(0)?;
                Err(code)
            }
        }
    }
    cudaSetDevice(device: i32) { set_device(device) }
    cudaInitDevice(device: i32, _flags: u32, _device_flags: u32) { set_device(device) }
    cudaGetDevice(out: Out<u32>) { out.put(device()?) }
    cudaGetDeviceProperties__cuda12(out: Out<u8>, device: i32) { get_properties(out, device, false) }
    cudaGetDeviceProperties_v2(out: Out<u8>, device: i32) { get_properties(out, device, false) }
    cudaGetDeviceProperties(out: Out<u8>, device: i32) { get_properties(out, device, true) }
    cudaChooseDevice(out: Out<u32>, _properties: In<u8>) { out.put(device()?) }
    cudaSetValidDevices(_devices: In<u32>, _count: i32) { Ok(()) }
    cudaDeviceGetAttribute(out: Out<i32>, which: u32, device: i32) {
        out.put(attribute(which, check(device)?)?)
    }
    cudaDeviceGetPCIBusId(out: u64, room: i32, device: i32) {
        let device = check(device)?;
        ok((driver()?.device_bus_id)(out, room, device))
    }
    cudaDeviceGetByPCIBusId(out: u64, text: u64) { ok((initialised()?.device_by_bus_id)(out, text)) }
    cudaDeviceCanAccessPeer(out: u64, from: i32, to: i32) {
        let (from, to) = (check(from)?, check(to)?);
        ok((driver()?.can_access_peer)(out, from, to))
    }
    cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        let peer = check(peer)?;
        let driver = context()?;
        let mut handle = 0;
        ok((driver.primary_retain)(&raw mut handle, peer))?;
        ok((driver.enable_peer)(handle, flags))
    }
    cudaDeviceDisablePeerAccess(peer: i32) {
        let peer = check(peer)?;
        let driver = context()?;
        let mut handle = 0;
        ok((driver.primary_retain)(&raw mut handle, peer))?;
        ok((driver.disable_peer)(handle))
    }
    cudaDeviceGetP2PAttribute(out: Out<i32>, which: u32, from: i32, to: i32) {
        let differ = check(from)? != check(to)?;
        out.put(i32::from(differ && (which == 2 || which == 3)))
    }
    cudaDeviceSynchronize() { ok((context()?.ctx_synchronize)()) }
    cudaThreadSynchronize() { ok((context()?.ctx_synchronize)()) }
    cudaDeviceReset() {
        let device = device()?;
        forget_primary(device);
        ok((driver()?.primary_reset)(device))
    }
    cudaDeviceGetStreamPriorityRange(least: u64, greatest: u64) { ok((context()?.ctx_priorities)(least, greatest)) }
    cudaDeviceGetLimit(out: u64, limit: u32) { ok((context()?.ctx_get_limit)(out, limit)) }
    cudaDeviceSetLimit(limit: u32, value: u64) { ok((context()?.ctx_set_limit)(limit, value)) }
    cudaSetDeviceFlags(flags: u32) {
        let device = device()?;
        ok((driver()?.primary_flags)(device, flags))
    }
    cudaGetDeviceFlags(out: Out<u32>) {
        let (mut flags, mut active) = (0, 0);
        ok((initialised()?.primary_state)(device()?, &raw mut flags, &raw mut active))?;
        out.put(flags)
    }
    cudaDeviceGetCacheConfig(out: Out<u32>) { out.put(0) }
    cudaDeviceSetCacheConfig(_config: u32) { Ok(()) }
    cudaDeviceGetSharedMemConfig(out: Out<u32>) { out.put(0) }
    cudaDeviceSetSharedMemConfig(_config: u32) { Ok(()) }
    cudaDriverGetVersion(out: u64) {
        if out == 0 {
            return Err(INVALID_VALUE);
        }
        ok((driver()?.driver_version)(out))
    }
    cudaRuntimeGetVersion(out: Out<u32>) { out.put(wheel_versions().runtime) }
    cudaProfilerStart() { Ok(()) }
    cudaProfilerStop() { Ok(()) }
}

#[unsafe(export_name = "simgpu_fn_cudaGetLastError")]
extern "C" fn get_last_error() -> u32 {
    LAST_ERROR.replace(0)
}

#[unsafe(export_name = "simgpu_fn_cudaPeekAtLastError")]
extern "C" fn peek_at_last_error() -> u32 {
    LAST_ERROR.get()
}
