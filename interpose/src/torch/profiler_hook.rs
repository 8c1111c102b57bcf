//! Hooks on the reports that PyTorch's native allocator sends to its profiler.
//!
//! The allocator calls `c10::reportMemoryUsageToProfiler` for each block that it allocates or
//! frees, and `reportOutOfMemoryToProfiler` when an allocation fails. It does so with or without an
//! active profiler, through the PLT and under its own lock. Exporting these names from a preloaded
//! library therefore records every block, in the allocator's order and with its running totals.
//! Each call is forwarded to PyTorch's function ([`TorchFn`]).
//!
//! `c10::Device` is two signed bytes, type and index, in one integer register. Type 1 is CUDA. An
//! active profiler also makes the CPU allocator report here; those reports are ignored.
//!
//! The mangled names are the same in torch 2.0 to 2.15 (Linux).

use std::ffi::c_void;

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, record_event};

use super::torch_fn::TorchFn;
use super::{attach, trace_tracker};
use crate::panic_guard::catch_panic;

const CUDA_DEVICE_TYPE: u8 = 1;

const LIBRARY: &std::ffi::CStr = c"libc10.so";

static REPORT_MEMORY_USAGE: TorchFn =
    TorchFn::new(LIBRARY, c"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
static REPORT_OUT_OF_MEMORY: TorchFn =
    TorchFn::new(LIBRARY, c"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE");

/// A draft for a device as c10 passes it; `None` for any other type than CUDA.
fn block_draft(kind: EventKind, device: u16, allocated: usize, reserved: usize) -> Option<Draft> {
    let [device_type, index] = device.to_le_bytes();
    (device_type == CUDA_DEVICE_TYPE).then(|| Draft {
        device: index,
        aux: [allocated as u64, reserved as u64],
        ..Draft::new(kind, ApiId::default())
    })
}

fn record_block(pointer: *mut c_void, delta: i64, allocated: usize, reserved: usize, device: u16) {
    catch_panic(|| {
        let kind = if delta < 0 { EventKind::BLOCK_FREE } else { EventKind::BLOCK_ALLOC };
        let mut draft = block_draft(kind, device, allocated, reserved)?;
        draft.addr = pointer as u64;
        draft.size = delta.unsigned_abs();
        let is_tracker_pending = attach::note_allocator_seen();
        trace_tracker::merge_into(&mut draft);
        record_event(&draft);
        if is_tracker_pending {
            attach::after_report();
        }
        Some(())
    });
}

fn record_oom(size: i64, allocated: usize, reserved: usize, device: u16) {
    catch_panic(|| {
        let mut draft = block_draft(EventKind::BLOCK_OOM, device, allocated, reserved)?;
        draft.size = size.unsigned_abs();
        trace_tracker::merge_into(&mut draft);
        record_event(&draft);
        Some(())
    });
}

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`
#[cfg_attr(not(test), unsafe(export_name = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"))]
unsafe extern "C-unwind" fn report_memory_usage(
    pointer: *mut c_void,
    delta: i64,
    allocated: usize,
    reserved: usize,
    device: u16,
) {
    record_block(pointer, delta, allocated, reserved, device);
    let real = REPORT_MEMORY_USAGE.get();
    if !real.is_null() {
        type ReportMemoryUsage = unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, u16);
        // SAFETY: the address was looked up under this name.
        let real = unsafe { std::mem::transmute::<*mut c_void, ReportMemoryUsage>(real) };
        // SAFETY: the caller's own arguments. A profiler may throw a C++ exception: "C-unwind".
        unsafe { real(pointer, delta, allocated, reserved, device) };
    }
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, c10::Device)`
#[cfg_attr(not(test), unsafe(export_name = "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE"))]
unsafe extern "C-unwind" fn report_out_of_memory(size: i64, allocated: usize, reserved: usize, device: u16) {
    record_oom(size, allocated, reserved, device);
    let real = REPORT_OUT_OF_MEMORY.get();
    if !real.is_null() {
        type ReportOutOfMemory = unsafe extern "C-unwind" fn(i64, usize, usize, u16);
        // SAFETY: the address was looked up under this name.
        let real = unsafe { std::mem::transmute::<*mut c_void, ReportOutOfMemory>(real) };
        // SAFETY: the caller's own arguments.
        unsafe { real(size, allocated, reserved, device) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cuda_devices_become_events() {
        let cuda_3 = u16::from_le_bytes([1, 3]);
        let draft_3 = block_draft(EventKind::BLOCK_ALLOC, cuda_3, 10, 20).unwrap();
        assert_eq!((draft_3.device, draft_3.aux), (3, [10, 20]));
        let cpu = u16::from_le_bytes([0, 0xff]);
        assert!(block_draft(EventKind::BLOCK_ALLOC, cpu, 0, 0).is_none());
        // Unused in tests otherwise.
        let _ = (report_memory_usage as *const (), report_out_of_memory as *const ());
    }
}
