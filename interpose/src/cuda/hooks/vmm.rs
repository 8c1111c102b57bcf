//! Virtual memory management: address ranges, physical memory behind handles, and mappings.
//! Multicast objects are here too: they are handles of the same kind, without memory.

use std::ffi::{c_int, c_ulonglong, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_location, read_out};

driver_hooks! { family 3;
    cuMemAddressReserve since 10_020 = "cuMemAddressReserve"
    (dptr: *mut u64, size: usize, alignment: usize, hint: u64, flags: c_ulonglong) => VA_RESERVE {
        before |draft| { draft.size = size as u64 }
        after |event| { event.addr = read_out(dptr) }
    }

    cuMemAddressFree since 10_020 = "cuMemAddressFree"
    (dptr: u64, size: usize) => VA_FREE {
        before |draft| { draft.addr = dptr; draft.size = size as u64 }
    }

    // CUmemAllocationProp: location at 8.
    cuMemCreate since 10_020 = "cuMemCreate"
    (handle: *mut u64, size: usize, prop: *const c_void, flags: c_ulonglong) => PHYS_CREATE {
        before |draft| {
            draft.size = size as u64;
            (draft.aux[1], draft.device) = read_location(prop, 8);
        }
        after |event| { event.aux[0] = read_out(handle) }
    }

    cuMemRelease since 10_020 = "cuMemRelease"
    (handle: u64) => PHYS_RELEASE {
        before |draft| { draft.aux[0] = handle }
    }

    cuMemMap since 10_020 = "cuMemMap"
    (dptr: u64, size: usize, offset: usize, handle: u64, flags: c_ulonglong) => MAP {
        before |draft| { draft.addr = dptr; draft.size = size as u64; draft.aux = [handle, offset as u64] }
    }

    cuMemUnmap since 10_020 = "cuMemUnmap"
    (dptr: u64, size: usize) => UNMAP {
        before |draft| { draft.addr = dptr; draft.size = size as u64 }
    }

    cuMemMapArrayAsync since 11_010, cuMemMapArrayAsync_ptsz since 11_010 per_thread = "cuMemMapArrayAsync"
    (changes: *mut c_void, count: u32, stream: u64) => MAP_ARRAY {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    // CUmemAccessDesc: location at 0.
    cuMemSetAccess since 10_020 = "cuMemSetAccess"
    (dptr: u64, size: usize, access: *const c_void, count: usize) => ACCESS {
        before |draft| {
            draft.addr = dptr;
            draft.size = size as u64;
            draft.aux = [count as u64, if count > 0 { read_location(access, 0).0 } else { 0 }];
        }
    }

    cuMemRetainAllocationHandle since 11_000 = "cuMemRetainAllocationHandle"
    (handle: *mut u64, addr: u64) => PHYS_RETAIN {
        before |draft| { draft.addr = addr }
        after |event| { event.aux[0] = read_out(handle) }
    }

    cuMemExportToShareableHandle since 10_020 = "cuMemExportToShareableHandle"
    (shared: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong) => PHYS_EXPORT {
        before |draft| { draft.aux = [handle, kind as u64] }
    }

    cuMemImportFromShareableHandle since 10_020 = "cuMemImportFromShareableHandle"
    (handle: *mut u64, shared: *mut c_void, kind: c_int) => PHYS_IMPORT {
        before |draft| { draft.aux[1] = kind as u64 }
        after |event| { event.aux[0] = read_out(handle) }
    }

    // CUmulticastObjectProp: number of devices at 0, size at 8.
    cuMulticastCreate since 12_010 = "cuMulticastCreate"
    (handle: *mut u64, prop: *const c_void) => MULTICAST_CREATE {
        before |draft| { draft.size = read_field(prop, 8); draft.aux[1] = u64::from(read_field::<u32>(prop, 0)) }
        after |event| { event.aux[0] = read_out(handle) }
    }

    cuMulticastAddDevice since 12_010 = "cuMulticastAddDevice"
    (handle: u64, device: c_int) => MULTICAST_ADD {
        before |draft| { draft.device = device as u8; draft.aux[0] = handle }
    }

    cuMulticastBindMem since 12_010 = "cuMulticastBindMem"
    (handle: u64, at: usize, memory: u64, offset: usize, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.size = size as u64; draft.aux = [handle, memory] }
    }

    cuMulticastBindMem_v2 since 13_010 = "cuMulticastBindMem"
    (handle: u64, device: c_int, at: usize, memory: u64, offset: usize, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.device = device as u8; draft.size = size as u64; draft.aux = [handle, memory] }
    }

    cuMulticastBindAddr since 12_010 = "cuMulticastBindAddr"
    (handle: u64, at: usize, dptr: u64, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| { draft.addr = dptr; draft.size = size as u64; draft.aux[0] = handle }
    }

    cuMulticastBindAddr_v2 since 13_010 = "cuMulticastBindAddr"
    (handle: u64, device: c_int, at: usize, dptr: u64, size: usize, flags: c_ulonglong) => MULTICAST_BIND {
        before |draft| {
            draft.device = device as u8;
            draft.addr = dptr;
            draft.size = size as u64;
            draft.aux[0] = handle;
        }
    }

    cuMulticastUnbind since 12_010 = "cuMulticastUnbind"
    (handle: u64, device: c_int, at: usize, size: usize) => MULTICAST_UNBIND {
        before |draft| { draft.device = device as u8; draft.size = size as u64; draft.aux = [handle, at as u64] }
    }
}
