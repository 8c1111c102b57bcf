//! Contexts and code. Neither tells how much memory it takes, but a context that ends frees every block allocated in it,
//! and the memory that no call accounts for grows and shrinks at these calls.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::{Word, entry_points, first_id};
use crate::cuda::hooked_call::{NOT_INITIALIZED, after, before, out};
use crate::cuda::queries::primary_has_ended;

entry_points! { family 7;
    cuCtxCreate since 2_000, cuCtxCreate_v2 since 3_020 = "cuCtxCreate"
    (context: *mut Word, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = out(context) }
    }

    cuCtxCreate_v3 since 11_040 = "cuCtxCreate"
    (context: *mut Word, affinity: *mut c_void, count: c_int, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = out(context) }
    }

    cuCtxCreate_v4 since 12_050 = "cuCtxCreate"
    (context: *mut Word, params: *mut c_void, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = out(context) }
    }

    cuCtxDestroy since 2_000, cuCtxDestroy_v2 since 4_000 = "cuCtxDestroy"
    (context: Word) => CONTEXT_DESTROY {
        before |draft| { draft.aux[0] = context }
    }

    cuDevicePrimaryCtxRetain since 7_000 = "cuDevicePrimaryCtxRetain"
    (context: *mut Word, device: c_int) => PRIMARY_RETAIN {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = out(context) }
    }

    cuDevicePrimaryCtxRelease since 7_000, cuDevicePrimaryCtxRelease_v2 since 11_000 = "cuDevicePrimaryCtxRelease"
    (device: c_int) => PRIMARY_RELEASE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[1] = primary_has_ended(device) }
    }

    cuDevicePrimaryCtxReset since 7_000, cuDevicePrimaryCtxReset_v2 since 11_000 = "cuDevicePrimaryCtxReset"
    (device: c_int) => PRIMARY_RELEASE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[1] = 1 }
    }

    cuGreenCtxCreate since 12_040 = "cuGreenCtxCreate"
    (context: *mut Word, resources: Word, device: c_int, flags: c_uint) => GREEN_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = out(context) }
    }

    cuGreenCtxDestroy since 12_040 = "cuGreenCtxDestroy"
    (context: Word) => GREEN_DESTROY {
        before |draft| { draft.aux[0] = context }
        after |event| { event.aux[1] = primary_has_ended(c_int::from(event.device)) }
    }

    cuCtxSetLimit since 3_010 = "cuCtxSetLimit"
    (limit: c_int, value: usize) => CONTEXT_LIMIT {
        before |draft| { draft.size = value as u64; draft.aux[0] = limit as u64 }
    }

    cuModuleLoad since 2_000 = "cuModuleLoad"
    (module: *mut Word, path: *const c_char) => MODULE_LOAD {
        after |event| { event.aux[0] = out(module) }
    }

    cuModuleLoadData since 2_000 = "cuModuleLoadData"
    (module: *mut Word, image: *const c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = out(module) }
    }

    cuModuleLoadFatBinary since 2_000 = "cuModuleLoadFatBinary"
    (module: *mut Word, image: *const c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = out(module) }
    }

    cuModuleLoadDataEx since 2_010 = "cuModuleLoadDataEx"
    (module: *mut Word, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = out(module) }
    }

    cuModuleUnload since 2_000 = "cuModuleUnload"
    (module: Word) => MODULE_UNLOAD {
        before |draft| { draft.aux[0] = module }
    }

    cuLibraryLoadData since 12_000 = "cuLibraryLoadData"
    (library: *mut Word, image: *const c_void, options: *mut c_int, values: *mut c_void, count: c_uint,
        library_options: *mut c_int, library_values: *mut c_void, library_count: c_uint) => MODULE_LOAD {
        after |event| { event.aux[0] = out(library) }
    }

    cuLibraryLoadFromFile since 12_000 = "cuLibraryLoadFromFile"
    (library: *mut Word, path: *const c_char, options: *mut c_int, values: *mut c_void, count: c_uint,
        library_options: *mut c_int, library_values: *mut c_void, library_count: c_uint) => MODULE_LOAD {
        after |event| { event.aux[0] = out(library) }
    }

    cuLibraryUnload since 12_000 = "cuLibraryUnload"
    (library: Word) => MODULE_UNLOAD {
        before |draft| { draft.aux[0] = library }
    }
}
