//! NVML: the queries for PyTorch's out-of-memory text, and the totals of monitoring tools.
//!
//! NVML does not use libcuda on a real machine, so a tracer must see no driver call. This library
//! calls a private function of the simulated driver, if the process has loaded that.

use core::ffi::{CStr, c_char};
use std::sync::OnceLock;

use simgpu_common::{ApiResult, Out, Text};

use crate::entry::toolkit;
use crate::versions::wheel_versions;

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const INSUFFICIENT_SIZE: u32 = 7;
const DRIVER_NOT_LOADED: u32 = 9;

type Usage = extern "C" fn(u32, *mut u64, *mut u64) -> u32;
type Shape = extern "C" fn(*mut u32, *mut u32);

struct Private {
    usage: Usage,
    shape: Shape,
}

fn private() -> ApiResult<&'static Private> {
    static PRIVATE: OnceLock<Option<Private>> = OnceLock::new();
    let found = PRIVATE.get_or_init(|| {
        // SAFETY: names are terminated; the handle is kept; the functions have these types.
        unsafe {
            let handle = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            let find = |name: &CStr| {
                let address =
                    if handle.is_null() { std::ptr::null_mut() } else { libc::dlsym(handle, name.as_ptr()) };
                (!address.is_null()).then_some(address)
            };
            Some(Private {
                usage: std::mem::transmute::<*mut libc::c_void, Usage>(find(c"simgpu_device_usage")?),
                shape: std::mem::transmute::<*mut libc::c_void, Shape>(find(c"simgpu_shape")?),
            })
        }
    });
    found.as_ref().ok_or(DRIVER_NOT_LOADED)
}

fn devices() -> ApiResult<u32> {
    let (mut devices, mut compute) = (0, 0);
    (private()?.shape)(&raw mut devices, &raw mut compute);
    Ok(devices)
}

fn usage(handle: u64) -> ApiResult<(u64, u64)> {
    let device = handle.checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    let (mut used, mut total) = (0, 0);
    if (private()?.usage)(device as u32, &raw mut used, &raw mut total) != 0 {
        return Err(INVALID_ARGUMENT);
    }
    Ok((used, total))
}

/// Device handles are the ordinal plus one.
fn handle(out: Out<u64>, ordinal: u32) -> ApiResult {
    if ordinal >= devices()? {
        return Err(INVALID_ARGUMENT);
    }
    out.put(u64::from(ordinal) + 1)
}

/// `nvmlProcessInfo_t`: pid, memory, two instance ids.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

fn processes(device: u64, count: Out<u32>, out: Out<ProcessInfo>) -> ApiResult {
    let (used, _) = usage(device)?;
    let room = count.current().map_err(|_| INVALID_ARGUMENT)?;
    // A process without device memory has no context there.
    let listed = u32::from(used > 0);
    count.put(listed)?;
    if room < listed {
        return Err(INSUFFICIENT_SIZE);
    }
    if listed > 0 {
        let none = u32::MAX;
        out.put(ProcessInfo { pid: std::process::id(), used, gpu_instance: none, compute_instance: none })?;
    }
    Ok(())
}

fn copy_text(out: Out<u8>, room: u32, text: &str) {
    if room > 0 {
        out.put_all(text.bytes().take(room as usize - 1).chain([0]));
    }
}

toolkit! { 999;
    nvmlInit_v2() { private().map(|_| ()) }
    nvmlInit() { private().map(|_| ()) }
    nvmlInitWithFlags(_flags: u32) { private().map(|_| ()) }
    nvmlShutdown() { Ok(()) }
    nvmlDeviceGetCount_v2(out: Out<u32>) { out.put(devices()?) }
    nvmlDeviceGetHandleByIndex_v2(ordinal: u32, out: Out<u64>) { handle(out, ordinal) }
    nvmlDeviceGetHandleByPciBusId_v2(text: Text, out: Out<u64>) {
        let text = text.get()?.to_string_lossy().to_ascii_uppercase();
        let bus = text.rsplit(':').nth(1).and_then(|bus| u32::from_str_radix(bus, 16).ok()).ok_or(INVALID_ARGUMENT)?;
        handle(out, bus.checked_sub(0x17).ok_or(INVALID_ARGUMENT)?)
    }
    nvmlDeviceGetIndex(device: u64, out: Out<u32>) {
        usage(device)?;
        out.put(device as u32 - 1)
    }
    nvmlDeviceGetName(device: u64, out: Out<u8>, room: u32) {
        usage(device)?;
        copy_text(out, room, &std::env::var("SIMGPU_NAME").unwrap_or_else(|_| "Simulated GPU".to_owned()));
        Ok(())
    }
    nvmlDeviceGetUUID(device: u64, out: Out<u8>, room: u32) {
        usage(device)?;
        copy_text(out, room, &format!("GPU-73696d75-6c61-7465-6420-4750552000{:02x}", device - 1));
        Ok(())
    }
    nvmlDeviceGetMemoryInfo(device: u64, out: Out<[u64; 3]>) {
        let (used, total) = usage(device)?;
        out.put([total, total - used, used])
    }
    nvmlDeviceGetComputeRunningProcesses(device: u64, count: Out<u32>, out: Out<ProcessInfo>) { processes(device, count, out) }
    nvmlDeviceGetComputeRunningProcesses_v2(device: u64, count: Out<u32>, out: Out<ProcessInfo>) { processes(device, count, out) }
    nvmlDeviceGetComputeRunningProcesses_v3(device: u64, count: Out<u32>, out: Out<ProcessInfo>) { processes(device, count, out) }
    nvmlDeviceGetCudaComputeCapability(_device: u64, major: Out<u32>, minor: Out<u32>) {
        let (mut devices, mut compute) = (0, 0);
        (private()?.shape)(&raw mut devices, &raw mut compute);
        major.put(compute / 10)?;
        minor.put(compute % 10)
    }
    nvmlSystemGetCudaDriverVersion(out: Out<u32>) { out.put(wheel_versions().driver) }
    nvmlSystemGetCudaDriverVersion_v2(out: Out<u32>) { out.put(wheel_versions().driver) }
    nvmlSystemGetDriverVersion(out: Out<u8>, room: u32) {
        copy_text(out, room, "580.00 (simulated)");
        Ok(())
    }
    // Fields after the version: uuid (16 bytes), status, clique, state (0: no fabric), health.
    nvmlDeviceGetGpuFabricInfoV(device: u64, out: Out<u32>) {
        usage(device)?;
        out.nth(1).put_all([0; 8]);
        Ok(())
    }
    nvmlDeviceGetNvLinkRemoteDeviceType(_device: u64, _link: u32, _out: u64) { Err(NOT_SUPPORTED) }
    nvmlDeviceGetNvLinkRemotePciInfo_v2(_device: u64, _link: u32, _out: u64) { Err(NOT_SUPPORTED) }
    nvmlDeviceGetUtilizationRates(_device: u64, out: Out<[u32; 2]>) { out.put([0, 0]) }
    nvmlDeviceGetTemperature(_device: u64, _sensor: u32, out: Out<u32>) { out.put(40) }
    nvmlDeviceGetPowerUsage(_device: u64, out: Out<u32>) { out.put(70_000) }
    nvmlDeviceGetClockInfo(_device: u64, _kind: u32, out: Out<u32>) { out.put(1755) }
}

#[unsafe(export_name = "simgpu_fn_nvmlErrorString")]
extern "C" fn error_text(code: u32) -> *const c_char {
    match code {
        0 => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
