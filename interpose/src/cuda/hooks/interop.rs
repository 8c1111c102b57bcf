//! Memory that belongs to others: other processes, other APIs, graphics. Recorded, and never counted as this process's own.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::CUipcMemHandle;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::hooked_call::{NOT_INITIALIZED, after, before, field, out};
use crate::cuda::queries::{allocation_bytes, current_context};

entry_points! { family 5;
    cuIpcGetMemHandle since 4_010 = "cuIpcGetMemHandle"
    (handle: *mut c_void, dptr: Word) => FOREIGN_EXPORT {
        before |draft| { draft.addr = dptr }
    }

    // The handle is 64 bytes, passed by value.
    cuIpcOpenMemHandle since 4_010, cuIpcOpenMemHandle_v2 since 11_000 = "cuIpcOpenMemHandle"
    (dptr: *mut Word, handle: CUipcMemHandle, flags: c_uint) => FOREIGN_OPEN {
        before |draft| { draft.aux = [u64::from(flags), current_context()] }
        after |event| {
            event.addr = out(dptr);
            event.size = allocation_bytes(event.addr);
        }
    }

    cuIpcCloseMemHandle since 4_010 = "cuIpcCloseMemHandle"
    (dptr: Word) => FOREIGN_CLOSE {
        before |draft| { draft.addr = dptr }
    }

    // CUDA_EXTERNAL_MEMORY_HANDLE_DESC: type at 0, size at 24.
    cuImportExternalMemory since 10_000 = "cuImportExternalMemory"
    (handle: *mut Word, descriptor: *const c_void) => EXTERNAL_IMPORT {
        before |draft| { draft.size = field(descriptor, 24); draft.aux[1] = u64::from(field::<u32>(descriptor, 0)) }
        after |event| { event.aux[0] = out(handle) }
    }

    // CUDA_EXTERNAL_MEMORY_BUFFER_DESC: offset at 0, size at 8.
    cuExternalMemoryGetMappedBuffer since 10_000 = "cuExternalMemoryGetMappedBuffer"
    (dptr: *mut Word, handle: Word, descriptor: *const c_void) => EXTERNAL_MAP {
        before |draft| { draft.size = field(descriptor, 8); draft.aux = [handle, field(descriptor, 0)] }
        after |event| { event.addr = out(dptr) }
    }

    // CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC: offset at 0.
    cuExternalMemoryGetMappedMipmappedArray since 10_000 = "cuExternalMemoryGetMappedMipmappedArray"
    (array: *mut Word, handle: Word, descriptor: *const c_void) => EXTERNAL_MAP {
        before |draft| { draft.aux = [handle, field(descriptor, 0)] }
        after |event| { event.addr = out(array) }
    }

    cuDestroyExternalMemory since 10_000 = "cuDestroyExternalMemory"
    (handle: Word) => EXTERNAL_DESTROY {
        before |draft| { draft.aux[0] = handle }
    }

    cuGraphicsMapResources since 3_000, cuGraphicsMapResources_ptsz since 7_000 per_thread = "cuGraphicsMapResources"
    (count: c_uint, resources: *mut Word, stream: Word) => GRAPHICS_MAP {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    cuGraphicsUnmapResources since 3_000, cuGraphicsUnmapResources_ptsz since 7_000 per_thread = "cuGraphicsUnmapResources"
    (count: c_uint, resources: *mut Word, stream: Word) => GRAPHICS_UNMAP {
        before |draft| { draft.aux = [stream, u64::from(count)] }
    }

    cuGraphicsResourceGetMappedPointer_v2 since 3_020 = "cuGraphicsResourceGetMappedPointer"
    (dptr: *mut Word, size: *mut usize, resource: Word) => GRAPHICS_POINTER {
        before |draft| { draft.aux[0] = resource }
        after |event| { event.addr = out(dptr); event.size = out(size) as u64 }
    }
}
