//! Stream-ordered memory and its pools.
//!
//! Constraint: while a stream is captured, an allocation or a free on it is not made but becomes a node of a graph.
//! Consequence: each asks first, and is recorded as what it is.

use std::ffi::{c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, Event, EventKind, FLAG_CAPTURED};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::hooked_call::{NOT_INITIALIZED, after, before, field, location, out};
use crate::cuda::queries::{allocation_bytes, captured_into, device_of};

/// Attributes of a pool whose value is a 64-bit number: release threshold, reserved and used bytes with their peaks.
const NUMBERS: std::ops::RangeInclusive<c_int> = 4..=8;

/// Turns a call on a captured stream into the node that it becomes.
fn unless_captured(draft: &mut Draft, stream: Word, per_thread: bool, node: EventKind) {
    if let Some(graph) = captured_into(stream, per_thread) {
        draft.kind = node;
        draft.aux = [graph, 0];
        draft.flags |= FLAG_CAPTURED;
    }
}

/// A pool's memory is on the pool's device, which need not be the current one.
fn complete(event: &mut Event, dptr: *const Word) {
    event.addr = out(dptr);
    event.device = device_of(event.addr).unwrap_or(event.device);
}

entry_points! { family 2;
    cuMemAllocAsync since 11_020, cuMemAllocAsync_ptsz since 11_020 per_thread = "cuMemAllocAsync"
    (dptr: *mut Word, size: usize, stream: Word) => ASYNC_ALLOC {
        before |draft| {
            draft.size = size as u64;
            draft.aux[0] = stream;
            unless_captured(draft, stream, PER_THREAD, EventKind::GRAPH_ALLOC_NODE);
        }
        after |event| { complete(event, dptr) }
    }

    cuMemAllocFromPoolAsync since 11_020, cuMemAllocFromPoolAsync_ptsz since 11_020 per_thread = "cuMemAllocFromPoolAsync"
    (dptr: *mut Word, size: usize, pool: Word, stream: Word) => ASYNC_ALLOC {
        before |draft| {
            draft.size = size as u64;
            draft.aux = [stream, pool];
            unless_captured(draft, stream, PER_THREAD, EventKind::GRAPH_ALLOC_NODE);
        }
        after |event| { complete(event, dptr) }
    }

    cuMemFreeAsync since 11_020, cuMemFreeAsync_ptsz since 11_020 per_thread = "cuMemFreeAsync"
    (dptr: Word, stream: Word) => ASYNC_FREE {
        before |draft| {
            draft.addr = dptr;
            draft.aux[0] = stream;
            unless_captured(draft, stream, PER_THREAD, EventKind::GRAPH_FREE_NODE);
        }
    }

    // CUmemPoolProps: location at 8, size limit at 24.
    cuMemPoolCreate since 11_020 = "cuMemPoolCreate"
    (pool: *mut Word, props: *const c_void) => POOL_CREATE {
        before |draft| {
            (draft.aux[1], draft.device) = location(props, 8);
            draft.size = field(props, 24);
        }
        after |event| { event.aux[0] = out(pool) }
    }

    cuMemPoolDestroy since 11_020 = "cuMemPoolDestroy"
    (pool: Word) => POOL_DESTROY {
        before |draft| { draft.aux[0] = pool }
    }

    cuMemPoolTrimTo since 11_020 = "cuMemPoolTrimTo"
    (pool: Word, keep: usize) => POOL_TRIM {
        before |draft| { draft.aux[0] = pool; draft.size = keep as u64 }
    }

    cuMemPoolSetAttribute since 11_020 = "cuMemPoolSetAttribute"
    (pool: Word, attribute: c_int, value: *mut c_void) => POOL_SET {
        before |draft| {
            draft.aux = [pool, attribute as u64];
            draft.size = if NUMBERS.contains(&attribute) { field(value, 0) } else { u64::from(field::<u32>(value, 0)) };
        }
    }

    cuMemPoolGetAttribute since 11_020 = "cuMemPoolGetAttribute"
    (pool: Word, attribute: c_int, value: *mut c_void) => POOL_GET {
        before |draft| { draft.aux = [pool, attribute as u64] }
        after |event| {
            event.size = if NUMBERS.contains(&attribute) { field(value, 0) } else { u64::from(field::<u32>(value, 0)) };
        }
    }

    cuDeviceSetMemPool since 11_020 = "cuDeviceSetMemPool"
    (device: c_int, pool: Word) => POOL_USE {
        before |draft| {
            draft.device = device as u8;
            draft.aux = [pool, 1 | u64::from(device as u32) << 32];
        }
    }

    cuMemSetMemPool since 13_000 = "cuMemSetMemPool"
    (place: *mut c_void, kind: c_int, pool: Word) => POOL_USE {
        before |draft| {
            (draft.aux[1], draft.device) = location(place, 0);
            draft.aux[0] = pool;
        }
    }

    cuMemPoolExportToShareableHandle since 11_020 = "cuMemPoolExportToShareableHandle"
    (handle: *mut c_void, pool: Word, kind: c_int, flags: c_ulonglong) => POOL_EXPORT {
        before |draft| { draft.aux = [pool, kind as u64] }
    }

    cuMemPoolImportFromShareableHandle since 11_020 = "cuMemPoolImportFromShareableHandle"
    (pool: *mut Word, handle: *mut c_void, kind: c_int, flags: c_ulonglong) => POOL_IMPORT {
        before |draft| { draft.aux[1] = kind as u64 }
        after |event| { event.aux[0] = out(pool) }
    }

    cuMemPoolExportPointer since 11_020 = "cuMemPoolExportPointer"
    (data: *mut c_void, dptr: Word) => FOREIGN_EXPORT {
        before |draft| { draft.addr = dptr }
    }

    cuMemPoolImportPointer since 11_020 = "cuMemPoolImportPointer"
    (dptr: *mut Word, pool: Word, data: *mut c_void) => FOREIGN_OPEN {
        before |draft| { draft.aux[0] = pool }
        after |event| {
            event.addr = out(dptr);
            event.size = allocation_bytes(event.addr);
        }
    }
}
