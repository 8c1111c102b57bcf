//! Saying no in PyTorch's own words.
//!
//! Constraint: PyTorch does not test the pointer it gets; null becomes a tensor without memory. Consequence: a refusal is
//! thrown, through c10's own function for failed checks, with the text that tools look for ("CUDA out of memory").

use std::ffi::{CString, c_char, c_int, c_void};

/// `c10::detail::torchCheckFail(const char* func, const char* file, uint32_t line, const char* msg)`; throws.
type TorchCheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char);

/// Throws c10's error. Returns only if there is no PyTorch in this process.
///
/// # Safety
/// Must be called from a function that C++ code called and that lets exceptions through.
pub(crate) unsafe fn raise(size: usize, live: u64, result: c_int) {
    // SAFETY: NUL-terminated names; with NOLOAD nothing is loaded.
    let function = unsafe {
        let library = libc::dlopen(c"libc10.so".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return;
        }
        libc::dlsym(library, c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_".as_ptr())
    };
    if function.is_null() {
        return;
    }
    // SAFETY: the symbol is this function in torch 2.0 to 2.15.
    let fail = unsafe { std::mem::transmute::<*mut c_void, TorchCheckFail>(function) };
    let what = if result == crate::OUT_OF_MEMORY { "CUDA out of memory." } else { "CUDA error." };
    let message = format!(
        "{what} gpumemtrace's allocator tried to allocate {size} bytes with {live} bytes allocated; \
         the driver answered {result}"
    );
    let message = CString::new(message).unwrap_or_default();
    // The exception leaves through this frame without running destructors of ours that matter: the text is leaked first.
    let message = message.into_raw();
    // SAFETY: NUL-terminated texts that outlive the call.
    unsafe { fail(c"gpumemtrace_malloc".as_ptr(), c"gpumemtrace".as_ptr(), 0, message) };
}
