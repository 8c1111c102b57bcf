//! Steps, phases and marks of the program, and the path of its trace.
//!
//! A training script must run the same with and without a recording. Markers therefore never begin
//! one: markers that precede the first GPU call are kept until the recording begins.

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt as _;

use gpumemtrace_recorder::trace_path;

use crate::panic_guard::catch_panic;

/// `void gpumemtrace_step(void)`: a step begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_step() {
    catch_panic(|| {
        gpumemtrace_recorder::begin_step();
        Some(())
    });
}

/// `void gpumemtrace_phase_begin(const char *name)`: a phase begins, on all threads, until
/// [`gpumemtrace_phase_end`]. Phases may be nested. Names that differ only in numbers are one name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_phase_begin(name: *const c_char) {
    catch_panic(|| {
        if !name.is_null() {
            // SAFETY: a NUL-terminated string, as documented.
            gpumemtrace_recorder::begin_phase(unsafe { CStr::from_ptr(name) }.to_bytes());
        }
        Some(())
    });
}

/// `void gpumemtrace_phase_end(void)`: ends the phase that this thread began last.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_phase_end() {
    catch_panic(|| {
        gpumemtrace_recorder::end_phase();
        Some(())
    });
}

/// `void gpumemtrace_mark(const char *name)`: names a point in time, for snapshots. Numbers in the
/// name are kept.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_mark(name: *const c_char) {
    catch_panic(|| {
        if !name.is_null() {
            // SAFETY: a NUL-terminated string, as documented.
            gpumemtrace_recorder::record_mark(unsafe { CStr::from_ptr(name) }.to_bytes());
        }
        Some(())
    });
}

/// `size_t gpumemtrace_trace(char *buffer, size_t bytes)`: the length of the path of the trace that
/// this process is writing; 0 if it writes none. Copies the path and a NUL into `buffer` if `bytes`
/// suffices for both, and nothing otherwise.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_trace(buffer: *mut c_char, bytes: usize) -> usize {
    let length = catch_panic(|| {
        let path = trace_path()?.as_os_str().as_bytes();
        if !buffer.is_null() && path.len() < bytes {
            // SAFETY: the caller provides a buffer of `bytes` bytes for its exclusive use.
            unsafe {
                buffer.cast::<u8>().copy_from_nonoverlapping(path.as_ptr(), path.len());
                buffer.add(path.len()).write(0);
            }
        }
        Some(path.len())
    });
    length.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_do_nothing_without_a_recording() {
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
        // SAFETY: the buffer has the passed length.
        assert_eq!(unsafe { gpumemtrace_trace(buffer.as_mut_ptr(), buffer.len()) }, 0);
        assert!(!gpumemtrace_recorder::is_recording() && buffer == [1; 8]);
    }
}
