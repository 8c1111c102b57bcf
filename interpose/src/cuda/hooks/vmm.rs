//! Virtual memory management: addresses, physical memory behind handles, mappings; and multicast objects, which are handles
//! of the same kind without memory.

use std::ffi::{c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::hooked_call::{NOT_INITIALIZED, after, before, field, location, out};

entry_points! { family 3;
    cuMemAddressReserve since 10_020 = "cuMemAddressReserve"
    (dptr: *mut Word, size: usize, alignment: usize, hint: Word, flags: c_ulonglong) => VA_RESERVE {
        before |draft| { draft.size = size as u64 }
        after |event| { event.addr = out(dptr) }
    }

    cuMemAddressFree since 10_020 = "cuMemAddressFree"
    (dptr: Word, size: usize) => VA_FREE {
        before |draft| { draft.addr = dptr; draft.size = size as u64 }
    }

    // CUmemAllocationProp: location at 8.
    cuMemCreate since 10_020 = "cuMemCreate"
    (handle: *mut Word, size: usize, prop: *const c_void, flags: c_ulonglong) => PHYS_CREATE {
        before |draft| {
            draft.size = size as u64;
            (draft.aux[1], draft.device) = location(prop, 8);
        }
        after |event| { event.aux[0] = out(handle) }
    }

    cuMemRelease since 10_020 = "cuMemRelease"
    (handle: Word) => PHYS_RELEASE {
        before |draft| { draft.aux[0] = handle }
    }

    cuMemMap since 10_020 = "cuMemMap"
    (dptr: Word, size: usize, offset: usize, handle: Word, flags: c_ulonglong) => MAP {
        before |draft| { draft.addr = dptr; draft.size = size as u64; draft.aux = [handle, offset as u64] }
    }

    cuMemUnmap since 10_020 = "cuMemUnmap"
    (dptr: Word, size: usize) => UNMAP {
        before |draft| { draft.addr = dptr; draft.size = size as u64 }
    }

    cuMemMapArrayAsync since 11_010, cuMemMapArrayAsync_ptsz since 11_010 per_thread = "cuMemMapArrayAsync"
    (changes: *mut c_void, count: u32, stream: Word) => MAP_ARRAY {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    // CUmemAccessDesc: location at 0.
    cuMemSetAccess since 10_020 = "cuMemSetAccess"
    (dptr: Word, size: usize, access: *const c_void, count: usize) => ACCESS {
        before |draft| {
            draft.addr = dptr;
            draft.size = size as u64;
            draft.aux = [count as u64, if count > 0 { location(access, 0).0 } else { 0 }];
        }
    }

    cuMemRetainAllocationHandle since 11_000 = "cuMemRetainAllocationHandle"
    (handle: *mut Word, addr: Word) => PHYS_RETAIN {
        before |draft| { draft.addr = addr }
        after |event| { event.aux[0] = out(handle) }
    }

    cuMemExportToShareableHandle since 10_020 = "cuMemExportToShareableHandle"
    (shared: *mut c_void, handle: Word, kind: c_int, flags: c_ulonglong) => PHYS_EXPORT {
        before |draft| { draft.aux = [handle, kind as u64] }
    }

    cuMemImportFromShareableHandle since 10_020 = "cuMemImportFromShareableHandle"
    (handle: *mut Word, shared: *mut c_void, kind: c_int) => PHYS_IMPORT {
        before |draft| { draft.aux[1] = kind as u64 }
        after |event| { event.aux[0] = out(handle) }
    }

    // CUmulticastObjectProp: number of devices at 0, size at 8.
    cuMulticastCreate since 12_010 = "cuMulticastCreate"
    (handle: *mut Word, prop: *const c_void) => MULTICAST_CREATE {
        before |draft| { draft.size = field(prop, 8); draft.aux[1] = u64::from(field::<u32>(prop, 0)) }
        after |event| { event.aux[0] = out(handle) }
    }

    cuMulticastAddDevice since 12_010 = "cuMulticastAddDevice"
    (handle: Word, device: c_int) => MULTICAST_ADD {
        before |draft| { draft.device = device as u8; draft.aux[0] = handle }
    }

    cuMulticastBindMem since 12_010 = "cuMulticastBindMem"
    (handle: Word, at: usize, memory: Word, offset: usize, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.size = size as u64; draft.aux = [handle, memory] }
    }

    cuMulticastBindMem_v2 since 13_010 = "cuMulticastBindMem"
    (handle: Word, device: c_int, at: usize, memory: Word, offset: usize, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.device = device as u8; draft.size = size as u64; draft.aux = [handle, memory] }
    }

    cuMulticastBindAddr since 12_010 = "cuMulticastBindAddr"
    (handle: Word, at: usize, dptr: Word, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.addr = dptr; draft.size = size as u64; draft.aux[0] = handle }
    }

    cuMulticastBindAddr_v2 since 13_010 = "cuMulticastBindAddr"
    (handle: Word, device: c_int, at: usize, dptr: Word, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| {
            draft.device = device as u8;
            draft.addr = dptr;
            draft.size = size as u64;
            draft.aux[0] = handle;
        }
    }

    cuMulticastUnbind since 12_010 = "cuMulticastUnbind"
    (handle: Word, device: c_int, at: usize, size: usize) => MULTICAST_UNBIND {
        before |draft| { draft.device = device as u8; draft.size = size as u64; draft.aux = [handle, at as u64] }
    }
}
