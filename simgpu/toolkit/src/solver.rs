//! cuSPARSE and cuSOLVER: sizes that must be defined, because callers allocate what they are told.

use core::ffi::c_char;
use simgpu_common::Out;

use crate::entry::toolkit;

toolkit! { 6;
    // `cusparse*_bufferSize` of the generic interface: the size is the last argument.
    cusparseSpMV_bufferSize(_h: u64, _op: u32, _alpha: u64, _a: u64, _x: u64, _beta: u64, _y: u64, _kind: u32, _algo: u32, out: Out<u64>) {
        out.put(0)
    }
    cusparseSpMM_bufferSize(
        _h: u64, _op_a: u32, _op_b: u32, _alpha: u64, _a: u64, _b: u64, _beta: u64, _c: u64, _kind: u32, _algo: u32, out: Out<u64>,
    ) {
        out.put(0)
    }
    cusparseSDDMM_bufferSize(
        _h: u64, _op_a: u32, _op_b: u32, _alpha: u64, _a: u64, _b: u64, _beta: u64, _c: u64, _kind: u32, _algo: u32, out: Out<u64>,
    ) {
        out.put(0)
    }
}

#[unsafe(export_name = "simgpu_fn_cusparseGetErrorString")]
extern "C" fn sparse_error_text(code: u32) -> *const c_char {
    if code == 0 { c"success" } else { c"internal error" }.as_ptr()
}

#[unsafe(export_name = "simgpu_fn_cusparseGetErrorName")]
extern "C" fn sparse_error_name(code: u32) -> *const c_char {
    if code == 0 { c"CUSPARSE_STATUS_SUCCESS" } else { c"CUSPARSE_STATUS_INTERNAL_ERROR" }.as_ptr()
}
