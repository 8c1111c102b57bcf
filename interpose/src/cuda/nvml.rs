//! Samples of this process's device memory from NVML, which includes contexts and modules and
//! excludes other processes.
//!
//! NVML is a separate library that is slow to initialize and names processes by host pid. It runs
//! once a second, after the program has used a device, on the recorder's thread that may be stuck:
//! loading it takes the loader's lock. It is not used inside another pid namespace, where our pid
//! may be that of another process on the host.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use gpumemtrace_format::event::SAMPLE_SOURCE_NVML;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_lib::driver_symbol;

/// The initial pid namespace (`PROC_PID_INIT_INO` in the Linux sources).
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";
const MAX_DEVICES: c_int = 64;
const MAX_PROCESSES: usize = 256;

/// `nvmlProcessInfo_t` of `nvmlDeviceGetComputeRunningProcesses_v3`: 24 bytes. Source: nvml.h of
/// CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct NvmlProcessInfo {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type GetRunningProcesses = unsafe extern "C" fn(usize, *mut c_uint, *mut NvmlProcessInfo) -> c_int;

/// The initialized library, with NVML's handle of each CUDA device.
#[derive(Debug)]
struct Nvml {
    running_processes: GetRunningProcesses,
    devices: Vec<(u8, usize)>,
}

/// False inside another pid namespace.
pub(crate) fn can_sample() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() == INIT_PID_NAMESPACE)
}

/// Records a sample per device. May wait for the loader's lock. False if there is no NVML.
pub(crate) fn sample() -> bool {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let Some(nvml) = NVML.get_or_init(Nvml::open) else { return false };
    for (ordinal, handle) in &nvml.devices {
        let began_at_seq = gpumemtrace_recorder::next_seq();
        // Two equal readings in a row: otherwise the program is allocating right now, and the value
        // would belong to no point in the trace.
        let mut readings = (0..2).map(|_| nvml.used_bytes(std::process::id(), *handle));
        let used_bytes = readings.next().flatten().filter(|first| readings.next().flatten() == Some(*first));
        if let Some(used_bytes) = used_bytes {
            gpumemtrace_recorder::record_event(&Draft {
                device: *ordinal,
                addr: began_at_seq,
                size: used_bytes,
                aux: [0, SAMPLE_SOURCE_NVML],
                ..Draft::new(EventKind::MEMORY_SAMPLE, ApiId::default())
            });
        }
    }
    true
}

impl Nvml {
    fn open() -> Option<Self> {
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
                std::mem::transmute::<*mut c_void, GetRunningProcesses>(processes),
            )
        };
        // SAFETY: the function takes no arguments.
        if unsafe { init() } != 0 {
            return None;
        }
        let mut devices = Vec::new();
        for ordinal in 0..MAX_DEVICES {
            let Some(bus) = pci_bus_id(ordinal) else { break };
            let mut handle = 0;
            // SAFETY: a NUL-terminated text and an out-parameter of ours.
            if unsafe { by_bus(bus.as_ptr(), &raw mut handle) } == 0 {
                devices.push((ordinal as u8, handle));
            }
        }
        Some(Self { running_processes, devices })
    }

    fn used_bytes(&self, pid: u32, device: usize) -> Option<u64> {
        let mut infos = [NvmlProcessInfo::default(); MAX_PROCESSES];
        let mut count = MAX_PROCESSES as c_uint;
        // SAFETY: the array has `count` elements.
        let result = unsafe { (self.running_processes)(device, &raw mut count, infos.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // The field is all ones where the system does not report bytes.
        let own = infos.iter().take(count as usize).find(|info| info.pid == pid)?;
        (own.used_bytes != u64::MAX).then_some(own.used_bytes)
    }
}

/// The PCI address of a device, by CUDA ordinal, as a NUL-terminated text.
fn pci_bus_id(ordinal: c_int) -> Option<[c_char; 32]> {
    let function = driver_symbol(c"cuDeviceGetPCIBusId");
    if function.is_null() {
        return None;
    }
    // SAFETY: `CUresult cuDeviceGetPCIBusId(char *, int, CUdevice)`; an ordinal is its own handle.
    let function = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(function)
    };
    let mut text = [0; 32];
    // SAFETY: the buffer is longer than the passed length, so it ends with a zero.
    (unsafe { function(text.as_mut_ptr(), 31, ordinal) } == 0).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_info_layout_matches_nvml() {
        assert_eq!(size_of::<NvmlProcessInfo>(), 24);
        assert_eq!(std::mem::offset_of!(NvmlProcessInfo, used_bytes), 8);
    }

    #[test]
    fn sample_does_nothing_without_a_driver() {
        assert!(!can_sample() || !sample());
        assert!(pci_bus_id(0).is_none());
    }
}
