//! Linear device memory, and managed memory, which may lie anywhere.

use std::ffi::c_uint;

use gpumemtrace_format::event::SAMPLE_SOURCE_PROGRAM;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::questions::current_context;
use crate::cuda::wrapper::{NOT_INITIALIZED, after, before, out};

entry_points! { family 0;
    cuMemAlloc_v2 since 3_020 = "cuMemAlloc"
    (dptr: *mut Word, size: usize) => DEVICE_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux[0] = current_context() }
        after |event| { event.addr = out(dptr) }
    }

    // Before the call only the width is known; the driver chooses the pitch.
    cuMemAllocPitch_v2 since 3_020 = "cuMemAllocPitch"
    (dptr: *mut Word, pitch: *mut usize, width: usize, height: usize, element: c_uint) => DEVICE_ALLOC {
        before |draft| { draft.size = (width as u64).saturating_mul(height as u64); draft.aux[0] = current_context() }
        after |event| { event.addr = out(dptr); event.size = (out(pitch) as u64).saturating_mul(height as u64) }
    }

    cuMemAllocManaged since 6_000 = "cuMemAllocManaged"
    (dptr: *mut Word, size: usize, flags: c_uint) => MANAGED_ALLOC {
        before |draft| { draft.size = size as u64; draft.aux = [u64::from(flags), current_context()] }
        after |event| { event.addr = out(dptr) }
    }

    cuMemFree_v2 since 3_020 = "cuMemFree"
    (dptr: Word) => DEVICE_FREE {
        before |draft| { draft.addr = dptr }
    }

    cuMemGetInfo_v2 since 3_020 = "cuMemGetInfo"
    (free: *mut usize, total: *mut usize) => MEMORY_SAMPLE {
        after |event| {
            let (free, total) = (out(free) as u64, out(total) as u64);
            event.size = total.saturating_sub(free);
            event.aux = [total, SAMPLE_SOURCE_PROGRAM];
        }
    }
}
