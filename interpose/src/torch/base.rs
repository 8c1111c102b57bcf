//! PyTorch's own report of every block of its native allocator.
//!
//! Constraint: the allocator calls `c10::reportMemoryUsageToProfiler` for each block it hands out or takes back, and
//! `reportOutOfMemoryToProfiler` when it gives up, whether or not a profiler is active, through the PLT and under its own
//! lock. Consequence: defining those names in a preloaded library sees every block, in the allocator's own order, with its
//! totals. The call is passed on to the real function, found once by its library (it is not in the global scope).
//!
//! `Device` is two signed bytes, type and index, passed in one integer register. Type 1 is CUDA; with a profiler active the
//! same function also reports CPU memory, which is not ours.
//!
//! Names: the same mangled ones in torch 2.0 to 2.15 (Linux).

use std::ffi::c_void;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, record_event};

use super::original::Original;
use super::{attach, tracker};
use crate::guard::quietly;

const CUDA: u8 = 1;

const LIBRARY: &std::ffi::CStr = c"libc10.so";

static REPORT: Original = Original::new(LIBRARY, c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
static REPORT_OOM: Original = Original::new(LIBRARY, c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

/// A draft for a device as c10 passes it; `None` if it is not a CUDA device.
fn draft(kind: EventKind, device: u16, allocated: usize, reserved: usize) -> Option<Draft> {
    let [device_type, index] = device.to_le_bytes();
    (device_type == CUDA).then(|| Draft {
        device: index,
        aux: [allocated as u64, reserved as u64],
        ..Draft::new(kind, ApiId::default())
    })
}

fn record_block(pointer: *mut c_void, delta: i64, allocated: usize, reserved: usize, device: u16) {
    quietly(|| {
        let kind = if delta < 0 { EventKind::BLOCK_FREE } else { EventKind::BLOCK_ALLOC };
        let mut draft = draft(kind, device, allocated, reserved)?;
        draft.addr = pointer as u64;
        draft.size = delta.unsigned_abs();
        let is_news = attach::allocator_is_alive();
        tracker::join(&mut draft);
        record_event(&draft);
        if is_news {
            attach::after_report();
        }
        Some(())
    });
}

fn record_oom(size: i64, allocated: usize, reserved: usize, device: u16) {
    quietly(|| {
        let mut draft = draft(EventKind::BLOCK_OOM, device, allocated, reserved)?;
        draft.size = size.unsigned_abs();
        tracker::join(&mut draft);
        record_event(&draft);
        Some(())
    });
}

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`
#[cfg_attr(not(test), unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))]
unsafe extern "C-unwind" fn report(
    pointer: *mut c_void,
    delta: i64,
    allocated: usize,
    reserved: usize,
    device: u16,
) {
    record_block(pointer, delta, allocated, reserved, device);
    let original = REPORT.get();
    if !original.is_null() {
        type Report = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, u16);
        // SAFETY: the address was looked up under this name.
        let original = unsafe { std::mem::transmute::<*mut c_void, Report>(original) };
        // SAFETY: the caller's own arguments. A C++ exception of a profiler passes through, hence "C-unwind".
        unsafe { original(pointer, delta, allocated, reserved, device) };
    }
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, c10::Device)`
#[cfg_attr(not(test), unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"))]
unsafe extern "C-unwind" fn report_oom(size: i64, allocated: usize, reserved: usize, device: u16) {
    record_oom(size, allocated, reserved, device);
    let original = REPORT_OOM.get();
    if !original.is_null() {
        type ReportOom = unsafe extern "C-unwind" fn(i64, usize, usize, u16);
        // SAFETY: the address was looked up under this name.
        let original = unsafe { std::mem::transmute::<*mut c_void, ReportOom>(original) };
        // SAFETY: the caller's own arguments.
        unsafe { original(size, allocated, reserved, device) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cuda_devices_are_ours() {
        let cuda_3 = u16::from_le_bytes([1, 3]);
        let draft_3 = draft(EventKind::BLOCK_ALLOC, cuda_3, 10, 20).unwrap();
        assert_eq!((draft_3.device, draft_3.aux), (3, [10, 20]));
        let cpu = u16::from_le_bytes([0, 0xff]);
        assert!(draft(EventKind::BLOCK_ALLOC, cpu, 0, 0).is_none());
        // Never called without torch in this process, but they must exist with these signatures.
        let _ = (report as *const (), report_oom as *const ());
    }
}
