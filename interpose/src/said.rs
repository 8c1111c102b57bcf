//! What the program says of itself: where a step begins, which part of it is what, and moments with names.
//!
//! Constraint: a training script finds these functions by name (`ctypes`, or the Python package), with or without a GPU, and must
//! run the same where nothing is recorded. Consequence: they take no more than a name and never begin a recording (what is said
//! before that waits for it); what they return says at most where the trace is.

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt as _;

use gpumemtrace_recorder::trace_path;

use crate::guard::quietly;

/// `void gpumemtrace_step(void)`: a step begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_step() {
    quietly(|| {
        gpumemtrace_recorder::begin_step();
        Some(())
    });
}

/// `void gpumemtrace_phase_begin(const char *name)`: what follows, on all threads, is part of this, until
/// [`gpumemtrace_phase_end`]. Phases may lie in one another. Numbers in the name are one name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_phase_begin(name: *const c_char) {
    quietly(|| {
        if !name.is_null() {
            // SAFETY: a NUL-terminated string, as documented.
            gpumemtrace_recorder::begin_phase(unsafe { CStr::from_ptr(name) }.to_bytes());
        }
        Some(())
    });
}

/// `void gpumemtrace_phase_end(void)`: the phase that this thread began last ends.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_phase_end() {
    quietly(|| {
        gpumemtrace_recorder::end_phase();
        Some(())
    });
}

/// `void gpumemtrace_mark(const char *name)`: a moment that can be asked for by this name. Numbers in it are kept.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_mark(name: *const c_char) {
    quietly(|| {
        if !name.is_null() {
            // SAFETY: a NUL-terminated string, as documented.
            gpumemtrace_recorder::record_mark(unsafe { CStr::from_ptr(name) }.to_bytes());
        }
        Some(())
    });
}

/// `size_t gpumemtrace_trace(char *buffer, size_t bytes)`: the bytes of the name of the trace that this process is writing, 0 if it
/// is writing none. The name goes into `buffer`, with a NUL behind it, if `bytes` are room enough for both; otherwise nothing does.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_trace(buffer: *mut c_char, bytes: usize) -> usize {
    let length = quietly(|| {
        let name = trace_path()?.as_os_str().as_bytes();
        if !buffer.is_null() && name.len() < bytes {
            // SAFETY: the caller says that so many bytes may be written, and they are nobody else's meanwhile.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len());
                buffer.add(name.len()).write(0);
            }
        }
        Some(name.len())
    });
    length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_recording_nothing_happens() {
        gpumemtrace_step();
        // SAFETY: a NUL-terminated string, and null, which is allowed.
        unsafe {
            gpumemtrace_phase_begin(c"eval".as_ptr());
            gpumemtrace_phase_begin(std::ptr::null());
            gpumemtrace_mark(c"here".as_ptr());
            gpumemtrace_mark(std::ptr::null());
        }
        gpumemtrace_phase_end();
        let mut buffer = [1; 8];
        // SAFETY: so many bytes are there.
        assert_eq!(unsafe { gpumemtrace_trace(buffer.as_mut_ptr(), buffer.len()) }, 0);
        assert!(!gpumemtrace_recorder::is_recording() && buffer == [1; 8]);
    }
}
