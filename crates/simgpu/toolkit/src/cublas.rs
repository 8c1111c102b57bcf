//! cuBLAS and cuBLASLt: handles with their own memory; the rest are stubs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use core::ffi::{CStr, c_char};
use simgpu_common::{In, Out};

use crate::driver::{free_own_memory, launch, own_memory, with_context};
use crate::entry::toolkit;
use crate::versions::{bytes_switch, wheel_versions};

const NOT_INITIALIZED: u32 = 1;
const ALLOC_FAILED: u32 = 3;
const INVALID_VALUE: u32 = 7;
const EXECUTION_FAILED: u32 = 13;
const INTERNAL: u32 = 14;

#[derive(Debug, Clone, Copy, Default)]
struct Handle {
    stream: u64,
    pointer_mode: u32,
    math_mode: u32,
    memory: u64,
}

static HANDLES: Mutex<BTreeMap<u64, Handle>> = Mutex::new(BTreeMap::new());

fn on_handle<T>(handle: u64, body: impl FnOnce(&mut Handle) -> T) -> Result<T, u32> {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.get_mut(&handle).map(body).ok_or(NOT_INITIALIZED)
}

toolkit! { 14;
    cublasCreate_v2(out: Out<u64>) {
        out.check().map_err(|_| INVALID_VALUE)?;
        with_context(0).map_err(|_| NOT_INITIALIZED)?;
        let memory = own_memory(bytes_switch("SIMGPU_CUBLAS_BYTES")).map_err(|_| ALLOC_FAILED)?;
        let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
        let id = handles.last_key_value().map_or(0x5200_0000_0000, |(&id, _)| id) + 0x40;
        handles.insert(id, Handle { memory, ..Handle::default() });
        out.put(id)
    }
    cublasDestroy_v2(handle: u64) {
        let gone = HANDLES.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        free_own_memory(gone.ok_or(NOT_INITIALIZED)?.memory);
        Ok(())
    }
    cublasSetStream_v2(handle: u64, stream: u64) { on_handle(handle, |handle| handle.stream = stream) }
    cublasGetStream_v2(handle: u64, out: Out<u64>) { out.put(on_handle(handle, |handle| handle.stream)?) }
    cublasSetPointerMode_v2(handle: u64, mode: u32) { on_handle(handle, |handle| handle.pointer_mode = mode) }
    cublasGetPointerMode_v2(handle: u64, out: Out<u32>) { out.put(on_handle(handle, |handle| handle.pointer_mode)?) }
    cublasSetMathMode(handle: u64, mode: u32) { on_handle(handle, |handle| handle.math_mode = mode) }
    cublasGetMathMode(handle: u64, out: Out<u32>) { out.put(on_handle(handle, |handle| handle.math_mode)?) }
    cublasGetVersion_v2(_handle: u64, out: Out<u32>) { out.put(wheel_versions().cublas) }
    cublasGetProperty(which: u32, out: Out<u32>) {
        let version = wheel_versions().cublas;
        out.put(match which {
            0 => version / 10000,
            1 => version / 100 % 100,
            _ => version % 100,
        })
    }
    // One algorithm, with a zeroed 96-byte result: success, no workspace.
    cublasLtMatmulAlgoGetHeuristic(
        _handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, _preference: u64, wanted: i32,
        results: Out<[u64; 12]>, found: Out<i32>,
    ) {
        if wanted < 1 {
            return Err(INVALID_VALUE);
        }
        results.put([0; 12])?;
        found.put(1)
    }
    cublasLtMatmul(
        _handle: u64, _operation: u64, _alpha: u64, _a: u64, _a_layout: u64, _b: u64, _b_layout: u64, _beta: u64, _c: u64,
        _c_layout: u64, _d: u64, _d_layout: u64, _algorithm: u64, _workspace: u64, _size: u64, stream: u64,
    ) {
        launch(stream).map_err(|_| EXECUTION_FAILED)
    }
    cublasLtMatmulAlgoCheck(
        _handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, _algorithm: In<u64>, result: Out<[u64; 12]>,
    ) {
        result.put([0; 12])
    }
    cublasLtMatmulAlgoConfigGetAttribute(_algorithm: u64, _which: u32, out: Out<u8>, size: u64, written: Out<u64>) {
        out.put_all((0..size).map(|_| 0));
        written.put_if_wanted(size);
        Ok(())
    }
}

/// Implements compute functions: launches a kernel, as cuBLAS does, to add graph nodes.
#[unsafe(no_mangle)]
extern "C" fn simgpu_cublas_work(handle: u64) -> u32 {
    crate::entry::guard(INTERNAL, || {
        let stream = on_handle(handle, |handle| handle.stream)?;
        launch(stream).map_err(|_| EXECUTION_FAILED)
    })
}

#[unsafe(export_name = "simgpu_fn_cublasLtGetVersion")]
extern "C" fn cublaslt_version() -> u64 {
    u64::from(wheel_versions().cublas)
}

#[unsafe(export_name = "simgpu_fn_cublasLtGetCudartVersion")]
extern "C" fn cublaslt_runtime() -> u64 {
    u64::from(wheel_versions().runtime)
}

fn text(code: u32) -> &'static CStr {
    match code {
        0 => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        ALLOC_FAILED => c"CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        INTERNAL => c"CUBLAS_STATUS_INTERNAL_ERROR",
        _ => c"CUBLAS_STATUS_NOT_SUPPORTED",
    }
}

#[unsafe(export_name = "simgpu_fn_cublasGetStatusString")]
extern "C" fn status_text(code: u32) -> *const c_char {
    text(code).as_ptr()
}

#[unsafe(export_name = "simgpu_fn_cublasGetStatusName")]
extern "C" fn status_name(code: u32) -> *const c_char {
    text(code).as_ptr()
}

#[unsafe(export_name = "simgpu_fn_cublasLtGetStatusString")]
extern "C" fn lt_status_text(code: u32) -> *const c_char {
    text(code).as_ptr()
}
