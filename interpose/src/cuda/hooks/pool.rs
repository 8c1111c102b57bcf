//! Stream-ordered memory and its pools.
//!
//! While a stream is captured, an allocation or free on it does not run but becomes a graph node.
//! Each hook therefore asks for the capture state first and chooses the kind of event by it.

use std::ffi::{c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_CAPTURED, FLAG_HOST, FLAG_MANAGED};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_out, read_pool_location};
use crate::cuda::queries::{allocation_bytes, capturing_graph, device_of_address, memory_of_address};

/// Pool attributes with a 64-bit value: release threshold, reserved and used bytes with peaks.
const ATTRIBUTES_64_BIT: std::ops::RangeInclusive<c_int> = 4..=8;

/// Changes the event of a call on a captured stream into that of the graph node.
/// `aux1` of an allocation, its pool, stays.
fn set_node_if_captured(draft: &mut Draft, stream: u64, per_thread: bool, node: EventKind) {
    if let Some(graph) = capturing_graph(stream, per_thread) {
        draft.kind = node;
        draft.aux[0] = graph;
        draft.flags |= FLAG_CAPTURED;
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: memory that does not migrate.
const PINNED: u32 = 1;

/// Fills address and device: the pool's device need not be the current one. The current pool of a
/// device has device memory.
fn fill_address(event: &mut Event, dptr: *const u64) {
    event.addr = read_out(dptr);
    event.device = device_of_address(event.addr).unwrap_or(event.device);
}

/// Fills address, device and kind of memory: a pool that the program names may be of any kind.
fn fill_pool_address(event: &mut Event, dptr: *const u64) {
    event.addr = read_out(dptr);
    let memory = memory_of_address(event.addr);
    event.device = memory.device.unwrap_or(event.device);
    event.flags |= if memory.is_host { FLAG_HOST } else { 0 };
    event.flags |= if memory.is_managed { FLAG_MANAGED } else { 0 };
}

/// Fills the event for a pool of a location, with the pool once it is known.
fn fill_location(draft: &mut Draft, location: *const c_void, offset: usize, allocation_type: u32) {
    let place = read_pool_location(location, offset, allocation_type);
    (draft.aux[1], draft.device) = (place.packed, place.device);
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
        after |event| { fill_pool_address(event, dptr) }
    }

    cuMemFreeAsync since 11_020, cuMemFreeAsync_ptsz since 11_020 per_thread = "cuMemFreeAsync"
    (dptr: u64, stream: u64) => ASYNC_FREE {
        before |draft| {
            draft.addr = dptr;
            draft.aux[0] = stream;
            set_node_if_captured(draft, stream, PER_THREAD, EventKind::GRAPH_FREE_NODE);
        }
    }

    // CUmemPoolProps: allocation type at 0, location at 8, size limit at 24.
    cuMemPoolCreate since 11_020 = "cuMemPoolCreate"
    (pool: *mut u64, props: *const c_void) => POOL_CREATE {
        before |draft| {
            fill_location(draft, props, 8, read_field(props, 0));
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
            draft.aux = [pool, 1 | u64::from(PINNED) << 16 | u64::from(device as u32) << 32];
        }
    }

    cuMemSetMemPool since 13_000 = "cuMemSetMemPool"
    (place: *mut c_void, kind: c_int, pool: u64) => POOL_USE {
        before |draft| {
            fill_location(draft, place, 0, kind as u32);
            draft.aux[0] = pool;
        }
    }

    cuMemGetDefaultMemPool since 13_000 = "cuMemGetDefaultMemPool"
    (pool: *mut u64, place: *mut c_void, kind: c_int) => POOL_KNOWN {
        before |draft| { fill_location(draft, place, 0, kind as u32) }
        after |event| { event.aux[0] = read_out(pool) }
    }

    cuMemGetMemPool since 13_000 = "cuMemGetMemPool"
    (pool: *mut u64, place: *mut c_void, kind: c_int) => POOL_KNOWN {
        before |draft| { fill_location(draft, place, 0, kind as u32) }
        after |event| { event.aux[0] = read_out(pool) }
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
