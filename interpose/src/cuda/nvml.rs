//! What NVML says this process uses: with its contexts and its code, and without other processes.
//!
//! Constraint: NVML is another library, slow to start, whose answers name processes by the system's own pids. Consequence:
//! it is asked on the recorder's thread only, once a second, after the program has used a device; and only where our pid is
//! the system's too (not in a container of its own pids, where another process might have that number).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use gpumemtrace_format::event::WITNESS_NVML;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::library::driver_symbol;

/// Inode of the system's own pid namespace (`PROC_PID_INIT_INO`).
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";
const MAX_DEVICES: c_int = 64;
const MAX_PROCESSES: usize = 256;

/// `nvmlProcessInfo_t` of `nvmlDeviceGetComputeRunningProcesses_v3`: 24 bytes. Source: nvml.h of CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type RunningProcesses = unsafe extern "C" fn(usize, *mut c_uint, *mut ProcessInfo) -> c_int;

/// The library, and its handle of each device that the driver shows.
#[derive(Debug)]
struct Nvml {
    running_processes: RunningProcesses,
    devices: Vec<(u8, usize)>,
}

/// Records what this process uses on each device. On the recorder's thread.
pub(crate) fn sample() {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let Some(nvml) = NVML.get_or_init(Nvml::open) else { return };
    for (ordinal, handle) in &nvml.devices {
        // Two equal answers: else the program is just allocating, and the number would be of no moment in the trace.
        let mut answers = (0..2).map(|_| nvml.used_by(std::process::id(), *handle));
        let used_bytes = answers.next().flatten().filter(|first| answers.next().flatten() == Some(*first));
        if let Some(used_bytes) = used_bytes {
            gpumemtrace_recorder::record_event(&Draft {
                device: *ordinal,
                size: used_bytes,
                aux: [0, WITNESS_NVML],
                ..Draft::new(EventKind::MEMORY_SAMPLE, ApiId::default())
            });
        }
    }
}

impl Nvml {
    fn open() -> Option<Self> {
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        if namespace.as_os_str() != INIT_PID_NAMESPACE {
            return None;
        }
        // SAFETY: loads NVIDIA's library, as `nvidia-smi` and PyTorch do; it stays loaded.
        let library =
            unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: an open library and a NUL-terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (init, by_bus) = (symbol(c"nvmlInit_v2")?, symbol(c"nvmlDeviceGetHandleByPciBusId_v2")?);
        let processes = symbol(c"nvmlDeviceGetComputeRunningProcesses_v3")?;
        // SAFETY: NVML's own signatures.
        let (init, by_bus, running_processes) = unsafe {
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(init),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut usize) -> c_int>(
                    by_bus,
                ),
                std::mem::transmute::<*mut c_void, RunningProcesses>(processes),
            )
        };
        // SAFETY: takes nothing.
        if unsafe { init() } != 0 {
            return None;
        }
        let mut devices = Vec::new();
        for ordinal in 0..MAX_DEVICES {
            let Some(bus) = bus_id(ordinal) else { break };
            let mut handle = 0;
            // SAFETY: a NUL-terminated text and a place for the handle.
            if unsafe { by_bus(bus.as_ptr(), &raw mut handle) } == 0 {
                devices.push((ordinal as u8, handle));
            }
        }
        Some(Self { running_processes, devices })
    }

    fn used_by(&self, pid: u32, device: usize) -> Option<u64> {
        let mut infos = [ProcessInfo::default(); MAX_PROCESSES];
        let mut count = MAX_PROCESSES as c_uint;
        // SAFETY: room for as many as we say.
        let result = unsafe { (self.running_processes)(device, &raw mut count, infos.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // Some systems do not tell the bytes: then the field is all ones.
        let own = infos.iter().take(count as usize).find(|info| info.pid == pid)?;
        (own.used_bytes != u64::MAX).then_some(own.used_bytes)
    }
}

/// The PCI address of a device as the program numbers them.
fn bus_id(ordinal: c_int) -> Option<[c_char; 32]> {
    let function = driver_symbol(c"cuDeviceGetPCIBusId");
    if function.is_null() {
        return None;
    }
    // SAFETY: `CUresult cuDeviceGetPCIBusId(char *, int, CUdevice)`; an ordinal is its own handle.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(function)
    };
    let mut text = [0; 32];
    // SAFETY: the buffer is longer than we say, so it ends with a zero.
    (unsafe { function(text.as_mut_ptr(), 31, ordinal) } == 0).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_nvmls() {
        assert_eq!(size_of::<ProcessInfo>(), 24);
        assert_eq!(std::mem::offset_of!(ProcessInfo, used_bytes), 8);
    }

    #[test]
    fn without_a_driver_nothing_is_sampled() {
        sample();
        assert!(bus_id(0).is_none());
    }
}
