//! Contexts and modules.
//!
//! No call reports the memory that they take. They are recorded because the end of a context frees
//! every block allocated in it. Also, memory that no call accounts for changes at these calls.

use std::ffi::{c_char, c_int, c_uint, c_void};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::driver_hooks;
use crate::cuda::hooked_call::read_out;
use crate::cuda::queries::is_primary_context_inactive;

driver_hooks! { family 7;
    cuCtxCreate since 2_000, cuCtxCreate_v2 since 3_020 = "cuCtxCreate"
    (context: *mut u64, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = read_out(context) }
    }

    cuCtxCreate_v3 since 11_040 = "cuCtxCreate"
    (context: *mut u64, affinity: *mut c_void, count: c_int, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = read_out(context) }
    }

    cuCtxCreate_v4 since 12_050 = "cuCtxCreate"
    (context: *mut u64, params: *mut c_void, flags: c_uint, device: c_int) => CONTEXT_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = read_out(context) }
    }

    cuCtxDestroy since 2_000, cuCtxDestroy_v2 since 4_000 = "cuCtxDestroy"
    (context: u64) => CONTEXT_DESTROY {
        before |draft| { draft.aux[0] = context }
    }

    cuDevicePrimaryCtxRetain since 7_000 = "cuDevicePrimaryCtxRetain"
    (context: *mut u64, device: c_int) => PRIMARY_RETAIN {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = read_out(context) }
    }

    cuDevicePrimaryCtxRelease since 7_000, cuDevicePrimaryCtxRelease_v2 since 11_000 = "cuDevicePrimaryCtxRelease"
    (device: c_int) => PRIMARY_RELEASE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[1] = u64::from(is_primary_context_inactive(device)) }
    }

    cuDevicePrimaryCtxReset since 7_000, cuDevicePrimaryCtxReset_v2 since 11_000 = "cuDevicePrimaryCtxReset"
    (device: c_int) => PRIMARY_RELEASE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[1] = 1 }
    }

    cuGreenCtxCreate since 12_040 = "cuGreenCtxCreate"
    (context: *mut u64, resources: u64, device: c_int, flags: c_uint) => GREEN_CREATE {
        before |draft| { draft.device = device as u8 }
        after |event| { event.aux[0] = read_out(context) }
    }

    cuGreenCtxDestroy since 12_040 = "cuGreenCtxDestroy"
    (context: u64) => GREEN_DESTROY {
        before |draft| { draft.aux[0] = context }
        after |event| { event.aux[1] = u64::from(is_primary_context_inactive(c_int::from(event.device))) }
    }

    cuCtxSetLimit since 3_010 = "cuCtxSetLimit"
    (limit: c_int, value: usize) => CONTEXT_LIMIT {
        before |draft| { draft.size = value as u64; draft.aux[0] = limit as u64 }
    }

    cuModuleLoad since 2_000 = "cuModuleLoad"
    (module: *mut u64, path: *const c_char) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(module) }
    }

    cuModuleLoadData since 2_000 = "cuModuleLoadData"
    (module: *mut u64, image: *const c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(module) }
    }

    cuModuleLoadFatBinary since 2_000 = "cuModuleLoadFatBinary"
    (module: *mut u64, image: *const c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(module) }
    }

    cuModuleLoadDataEx since 2_010 = "cuModuleLoadDataEx"
    (module: *mut u64, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut c_void) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(module) }
    }

    cuModuleUnload since 2_000 = "cuModuleUnload"
    (module: u64) => MODULE_UNLOAD {
        before |draft| { draft.aux[0] = module }
    }

    cuLibraryLoadData since 12_000 = "cuLibraryLoadData"
    (library: *mut u64, image: *const c_void, options: *mut c_int, values: *mut c_void, count: c_uint,
        library_options: *mut c_int, library_values: *mut c_void, library_count: c_uint) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(library) }
    }

    cuLibraryLoadFromFile since 12_000 = "cuLibraryLoadFromFile"
    (library: *mut u64, path: *const c_char, options: *mut c_int, values: *mut c_void, count: c_uint,
        library_options: *mut c_int, library_values: *mut c_void, library_count: c_uint) => MODULE_LOAD {
        after |event| { event.aux[0] = read_out(library) }
    }

    cuLibraryUnload since 12_000 = "cuLibraryUnload"
    (library: u64) => MODULE_UNLOAD {
        before |draft| { draft.aux[0] = library }
    }
}
