//! Stream-ordered memory and its pools.
//!
//! While a stream is captured, an allocation or free on it does not run but becomes a graph node.
//! Each hook therefore asks for the capture state first and chooses the kind of event by it.

use std::ffi::{c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_CAPTURED};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_location, read_out};
use crate::cuda::queries::{allocation_bytes, capturing_graph, device_of_address};

/// Pool attributes with a 64-bit value: release threshold, reserved and used bytes with peaks.
const ATTRIBUTES_64_BIT: std::ops::RangeInclusive<c_int> = 4..=8;

/// Changes the event of a call on a captured stream into that of the graph node.
fn set_node_if_captured(draft: &mut Draft, stream: u64, per_thread: bool, node: EventKind) {
    if let Some(graph) = capturing_graph(stream, per_thread) {
        draft.kind = node;
        draft.aux = [graph, 0];
        draft.flags |= FLAG_CAPTURED;
    }
}

/// Fills address and device: a pool's device need not be the current one.
fn fill_address(event: &mut Event, dptr: *const u64) {
    event.addr = read_out(dptr);
    event.device = device_of_address(event.addr).unwrap_or(event.device);
}

driver_hooks! { family 2;
    cuMemAllocAsync since 11_020, cuMemAllocAsync_ptsz since 11_020 per_thread = "cuMemAllocAsync"
    (dptr: *mut u64, size: usize, stream: u64) => ASYNC_ALLOC {
        before |draft| {
            draft.size = size as u64;
            draft.aux[0] = stream;
            set_node_if_captured(draft, stream, PER_THREAD, EventKind::GRAPH_ALLOC_NODE);
        }
        after |event| { fill_address(event, dptr) }
    }

    cuMemAllocFromPoolAsync since 11_020, cuMemAllocFromPoolAsync_ptsz since 11_020 per_thread = "cuMemAllocFromPoolAsync"
    (dptr: *mut u64, size: usize, pool: u64, stream: u64) => ASYNC_ALLOC {
        before |draft| {
            draft.size = size as u64;
            draft.aux = [stream, pool];
            set_node_if_captured(draft, stream, PER_THREAD, EventKind::GRAPH_ALLOC_NODE);
        }
        after |event| { fill_address(event, dptr) }
    }

    cuMemFreeAsync since 11_020, cuMemFreeAsync_ptsz since 11_020 per_thread = "cuMemFreeAsync"
    (dptr: u64, stream: u64) => ASYNC_FREE {
        before |draft| {
            draft.addr = dptr;
            draft.aux[0] = stream;
            set_node_if_captured(draft, stream, PER_THREAD, EventKind::GRAPH_FREE_NODE);
        }
    }

    // CUmemPoolProps: location at 8, size limit at 24.
    cuMemPoolCreate since 11_020 = "cuMemPoolCreate"
    (pool: *mut u64, props: *const c_void) => POOL_CREATE {
        before |draft| {
            (draft.aux[1], draft.device) = read_location(props, 8);
            draft.size = read_field(props, 24);
        }
        after |event| { event.aux[0] = read_out(pool) }
    }

    cuMemPoolDestroy since 11_020 = "cuMemPoolDestroy"
    (pool: u64) => POOL_DESTROY {
        before |draft| { draft.aux[0] = pool }
    }

    cuMemPoolTrimTo since 11_020 = "cuMemPoolTrimTo"
    (pool: u64, keep: usize) => POOL_TRIM {
        before |draft| { draft.aux[0] = pool; draft.size = keep as u64 }
    }

    cuMemPoolSetAttribute since 11_020 = "cuMemPoolSetAttribute"
    (pool: u64, attribute: c_int, value: *mut c_void) => POOL_SET {
        before |draft| {
            draft.aux = [pool, attribute as u64];
            draft.size = if ATTRIBUTES_64_BIT.contains(&attribute) { read_field(value, 0) } else { u64::from(read_field::<u32>(value, 0)) };
        }
    }

    cuMemPoolGetAttribute since 11_020 = "cuMemPoolGetAttribute"
    (pool: u64, attribute: c_int, value: *mut c_void) => POOL_GET {
        before |draft| { draft.aux = [pool, attribute as u64] }
        after |event| {
            event.size = if ATTRIBUTES_64_BIT.contains(&attribute) { read_field(value, 0) } else { u64::from(read_field::<u32>(value, 0)) };
        }
    }

    cuDeviceSetMemPool since 11_020 = "cuDeviceSetMemPool"
    (device: c_int, pool: u64) => POOL_USE {
        before |draft| {
            draft.device = device as u8;
            draft.aux = [pool, 1 | u64::from(device as u32) << 32];
        }
    }

    cuMemSetMemPool since 13_000 = "cuMemSetMemPool"
    (place: *mut c_void, kind: c_int, pool: u64) => POOL_USE {
        before |draft| {
            (draft.aux[1], draft.device) = read_location(place, 0);
            draft.aux[0] = pool;
        }
    }

    cuMemPoolExportToShareableHandle since 11_020 = "cuMemPoolExportToShareableHandle"
    (handle: *mut c_void, pool: u64, kind: c_int, flags: c_ulonglong) => POOL_EXPORT {
        before |draft| { draft.aux = [pool, kind as u64] }
    }

    cuMemPoolImportFromShareableHandle since 11_020 = "cuMemPoolImportFromShareableHandle"
    (pool: *mut u64, handle: *mut c_void, kind: c_int, flags: c_ulonglong) => POOL_IMPORT {
        before |draft| { draft.aux[1] = kind as u64 }
        after |event| { event.aux[0] = read_out(pool) }
    }

    cuMemPoolExportPointer since 11_020 = "cuMemPoolExportPointer"
    (data: *mut c_void, dptr: u64) => FOREIGN_EXPORT {
        before |draft| { draft.addr = dptr }
    }

    cuMemPoolImportPointer since 11_020 = "cuMemPoolImportPointer"
    (dptr: *mut u64, pool: u64, data: *mut c_void) => FOREIGN_OPEN {
        before |draft| { draft.aux[0] = pool }
        after |event| {
            event.addr = read_out(dptr);
            event.size = allocation_bytes(event.addr);
        }
    }
}
