//! Memory of other processes, other APIs and graphics. It is recorded, but never counted as this
//! process's own.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::CUipcMemHandle;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::{read_field, read_out};
use crate::cuda::queries::{allocation_bytes, current_context};

driver_hooks! { family 5;
    cuIpcGetMemHandle since 4_010 = "cuIpcGetMemHandle"
    (handle: *mut c_void, dptr: u64) => FOREIGN_EXPORT {
        before |draft| { draft.addr = dptr }
    }

    // The handle is 64 bytes, passed by value.
    cuIpcOpenMemHandle since 4_010, cuIpcOpenMemHandle_v2 since 11_000 = "cuIpcOpenMemHandle"
    (dptr: *mut u64, handle: CUipcMemHandle, flags: c_uint) => FOREIGN_OPEN {
        before |draft| { draft.aux = [u64::from(flags), current_context()] }
        after |event| {
            event.addr = read_out(dptr);
            event.size = allocation_bytes(event.addr);
        }
    }

    cuIpcCloseMemHandle since 4_010 = "cuIpcCloseMemHandle"
    (dptr: u64) => FOREIGN_CLOSE {
        before |draft| { draft.addr = dptr }
    }

    // CUDA_EXTERNAL_MEMORY_HANDLE_DESC: type at 0, size at 24.
    cuImportExternalMemory since 10_000 = "cuImportExternalMemory"
    (handle: *mut u64, descriptor: *const c_void) => EXTERNAL_IMPORT {
        before |draft| { draft.size = read_field(descriptor, 24); draft.aux[1] = u64::from(read_field::<u32>(descriptor, 0)) }
        after |event| { event.aux[0] = read_out(handle) }
    }

    // CUDA_EXTERNAL_MEMORY_BUFFER_DESC: offset at 0, size at 8.
    cuExternalMemoryGetMappedBuffer since 10_000 = "cuExternalMemoryGetMappedBuffer"
    (dptr: *mut u64, handle: u64, descriptor: *const c_void) => EXTERNAL_MAP {
        before |draft| { draft.size = read_field(descriptor, 8); draft.aux = [handle, read_field(descriptor, 0)] }
        after |event| { event.addr = read_out(dptr) }
    }

    // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC: offset at 0.
    cuExternalMemoryGetMappedMipmappedArray since 10_000 = "cuExternalMemoryGetMappedMipmappedArray"
    (array: *mut u64, handle: u64, descriptor: *const c_void) => EXTERNAL_MAP {
        before |draft| { draft.aux = [handle, read_field(descriptor, 0)] }
        after |event| { event.addr = read_out(array) }
    }

    cuDestroyExternalMemory since 10_000 = "cuDestroyExternalMemory"
    (handle: u64) => EXTERNAL_DESTROY {
        before |draft| { draft.aux[0] = handle }
    }

    cuGraphicsMapResources since 3_000, cuGraphicsMapResources_ptsz since 7_000 per_thread = "cuGraphicsMapResources"
    (count: c_uint, resources: *mut u64, stream: u64) => GRAPHICS_MAP {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    cuGraphicsUnmapResources since 3_000, cuGraphicsUnmapResources_ptsz since 7_000 per_thread = "cuGraphicsUnmapResources"
    (count: c_uint, resources: *mut u64, stream: u64) => GRAPHICS_UNMAP {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    cuGraphicsResourceGetMappedPointer_v2 since 3_020 = "cuGraphicsResourceGetMappedPointer"
    (dptr: *mut u64, size: *mut usize, resource: u64) => GRAPHICS_POINTER {
        before |draft| { draft.aux[0] = resource }
        after |event| { event.addr = read_out(dptr); event.size = read_out(size) as u64 }
    }
}
