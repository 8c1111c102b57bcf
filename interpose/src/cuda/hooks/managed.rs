//! Moves of managed memory that the program asks for. They allocate nothing.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, NO_DEVICE};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_location, read_out};

// `CU_MEM_LOCATION_TYPE_DEVICE` and `CU_MEM_LOCATION_TYPE_HOST`.
const DEVICE: u64 = 1;
const HOST: u64 = 2;

/// Fills a prefetch to a device, or to the host if it is `CU_DEVICE_CPU` (-1).
fn fill_prefetch(draft: &mut Draft, dptr: u64, bytes: usize, device: c_int, stream: u64) {
    (draft.addr, draft.size, draft.aux[0]) = (dptr, bytes as u64, stream);
    draft.device = u8::try_from(device).unwrap_or(NO_DEVICE);
    draft.aux[1] = if device < 0 { HOST } else { DEVICE | (device as u64) << 32 };
}

/// Fills a call for several ranges: the first address, and the bytes of all. Only after success: a
/// call that fails may have a wrong count.
fn fill_ranges(event: &mut Event, dptrs: *const u64, sizes: *const usize, count: usize) {
    let size_at = |at: usize| read_field::<usize>(sizes.cast(), at * size_of::<usize>()) as u64;
    event.addr = read_out(dptrs);
    event.size = if sizes.is_null() { 0 } else { (0..count).map(size_at).fold(0, u64::saturating_add) };
}

/// Fills the target of a batch. With several targets, none is stored.
fn fill_target(draft: &mut Draft, locations: *const c_void, count: usize) {
    (draft.aux[1], draft.device) = if count == 1 { read_location(locations, 0) } else { (0, NO_DEVICE) };
}

driver_hooks! { family 8;
    cuMemPrefetchAsync since 8_000, cuMemPrefetchAsync_ptsz since 8_000 per_thread = "cuMemPrefetchAsync"
    (dptr: u64, bytes: usize, device: c_int, stream: u64) => MANAGED_PREFETCH {
        before |draft| { fill_prefetch(draft, dptr, bytes, device, stream) }
    }

    // The location is a struct of two 32-bit numbers, passed in one register.
    cuMemPrefetchAsync_v2 since 12_020, cuMemPrefetchAsync_v2_ptsz since 12_020 per_thread = "cuMemPrefetchAsync"
    (dptr: u64, bytes: usize, location: u64, flags: c_uint, stream: u64) => MANAGED_PREFETCH {
        before |draft| {
            (draft.addr, draft.size, draft.aux[0]) = (dptr, bytes as u64, stream);
            (draft.aux[1], draft.device) = read_location((&raw const location).cast(), 0);
        }
    }

    cuMemPrefetchBatchAsync since 13_000, cuMemPrefetchBatchAsync_ptsz since 13_000 per_thread = "cuMemPrefetchBatchAsync"
    (dptrs: *mut u64, sizes: *mut usize, count: usize, locations: *mut c_void, indices: *mut usize, location_count: usize, flags: c_ulonglong, stream: u64) => MANAGED_PREFETCH {
        before |draft| { draft.aux[0] = stream; fill_target(draft, locations, location_count) }
        after |event| { fill_ranges(event, dptrs, sizes, count) }
    }

    cuMemDiscardAndPrefetchBatchAsync since 13_000, cuMemDiscardAndPrefetchBatchAsync_ptsz since 13_000 per_thread = "cuMemDiscardAndPrefetchBatchAsync"
    (dptrs: *mut u64, sizes: *mut usize, count: usize, locations: *mut c_void, indices: *mut usize, location_count: usize, flags: c_ulonglong, stream: u64) => MANAGED_PREFETCH {
        before |draft| { draft.aux[0] = stream; fill_target(draft, locations, location_count) }
        after |event| { fill_ranges(event, dptrs, sizes, count) }
    }

    cuMemDiscardBatchAsync since 13_000, cuMemDiscardBatchAsync_ptsz since 13_000 per_thread = "cuMemDiscardBatchAsync"
    (dptrs: *mut u64, sizes: *mut usize, count: usize, flags: c_ulonglong, stream: u64) => MANAGED_DISCARD {
        before |draft| { draft.aux[0] = stream }
        after |event| { fill_ranges(event, dptrs, sizes, count) }
    }
}
