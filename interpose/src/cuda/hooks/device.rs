//! Linear device memory and managed memory.

use std::ffi::c_uint;

use gpumemtrace_format::event::SAMPLE_SOURCE_PROGRAM;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::read_out;
use crate::cuda::queries::current_context;

driver_hooks! { family 0;
    cuMemAlloc_v2 since 3_020 = "cuMemAlloc"
    (dptr: *mut u64, size: usize) => DEVICE_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux[0] = current_context() }
        after |event| { event.addr = read_out(dptr) }
    }

    // The driver chooses the pitch: only the width is known before the call.
    cuMemAllocPitch_v2 since 3_020 = "cuMemAllocPitch"
    (dptr: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) => DEVICE_ALLOC {
        before |draft| { draft.size = (width as u64).saturating_mul(height as u64); draft.aux[0] = current_context() }
        after |event| { event.addr = read_out(dptr); event.size = (read_out(pitch) as u64).saturating_mul(height as u64) }
    }

    cuMemAllocManaged since 6_000 = "cuMemAllocManaged"
    (dptr: *mut u64, size: usize, flags: c_uint) => MANAGED_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux = [u64::from(flags), current_context()] }
        after |event| { event.addr = read_out(dptr) }
    }

    cuMemFree_v2 since 3_020 = "cuMemFree"
    (dptr: u64) => DEVICE_FREE {
        before |draft| { draft.addr = dptr }
    }

    cuMemGetInfo_v2 since 3_020 = "cuMemGetInfo"
    (free: *mut usize, total: *mut usize) => MEMORY_SAMPLE {
        after |event| {
            let (free, total) = (read_out(free) as u64, read_out(total) as u64);
            event.size = total.saturating_sub(free);
            event.aux = [total, SAMPLE_SOURCE_PROGRAM];
        }
    }
}
