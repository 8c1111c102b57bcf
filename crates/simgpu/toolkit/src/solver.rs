//! cuSPARSE and cuSOLVER: workspace sizes, because callers allocate what these return.

use core::ffi::c_char;
use simgpu_common::Out;

/// Declares functions that store a size of 0 in their n-th argument. All arguments are integers or
/// pointers, each in its own register or stack slot, so one function serves many signatures.
macro_rules! sizes {
    ($($name:ident: $($skip:ident)* => $($out:ident: $ty:ty),+;)+) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($skip: u64,)* $($out: Out<$ty>),+) -> u32 {
                let _ = ($($skip,)*);
                $($out.put_if_wanted(0);)+
                0
            }
        )+
    };
}

sizes! {
    simgpu_size_2: a b => out: u64;
    simgpu_size_6: a b c d e f => out: u64;
    simgpu_size_9: a b c d e f g h i => out: u64;
    simgpu_size_10: a b c d e f g h i j => out: u64;
    simgpu_size_19: a b c d e f g h i j k l m n o p q r s => out: u64;
    simgpu_sizes_8: a b c d e f g h => device: u64, host: u64;
    simgpu_sizes_10: a b c d e f g h i j => device: u64, host: u64;
    simgpu_sizes_11: a b c d e f g h i j k => device: u64, host: u64;
    simgpu_sizes_17: a b c d e f g h i j k l m n o p q => device: u64, host: u64;
    simgpu_int_size_3: a b c => out: u32;
    simgpu_int_size_4: a b c d => out: u32;
    simgpu_int_size_5: a b c d e => out: u32;
    simgpu_int_size_7: a b c d e f g => out: u32;
    simgpu_int_size_11: a b c d e f g h i j k => out: u32;
    simgpu_int_size_12: a b c d e f g h i j k l => out: u32;
    simgpu_int_size_13: a b c d e f g h i j k l m => out: u32;
    simgpu_int_size_16: a b c d e f g h i j k l m n o p => out: u32;
}

#[unsafe(export_name = "simgpu_fn_cusparseGetErrorString")]
extern "C" fn sparse_error_text(code: u32) -> *const c_char {
    if code == 0 { c"success" } else { c"internal error" }.as_ptr()
}

#[unsafe(export_name = "simgpu_fn_cusparseGetErrorName")]
extern "C" fn sparse_error_name(code: u32) -> *const c_char {
    if code == 0 { c"CUSPARSE_STATUS_SUCCESS" } else { c"CUSPARSE_STATUS_INTERNAL_ERROR" }.as_ptr()
}
