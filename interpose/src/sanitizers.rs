//! What we tell sanitizer runtimes about this library.

use std::ffi::{CStr, c_char};

/// ThreadSanitizer sees the calls of this library into the C library, but not the atomics that
/// order them, so it would report false races. The entries are in the format of its
/// [suppressions](https://github.com/google/sanitizers/wiki/ThreadSanitizerSuppressions).
const SUPPRESSIONS: &CStr = c"called_from_lib:libgpumemtrace.so\nrace:libgpumemtrace.so\n";

/// ThreadSanitizer's runtime asks for suppressions here
/// ([tsan_suppressions.cpp](https://github.com/llvm/llvm-project/blob/llvmorg-20.1.0/compiler-rt/lib/tsan/rtl/tsan_suppressions.cpp#L30)).
/// A definition of the program comes first.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn __tsan_default_suppressions() -> *const c_char {
    SUPPRESSIONS.as_ptr()
}
