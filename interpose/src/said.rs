//! What the program says of itself: where a step begins, and which part of it is what.
//!
//! Constraint: a training script finds these functions by name (`ctypes`, or the Python package), with or without a GPU, and must
//! run the same where nothing is recorded. Consequence: they take no more than a name, return nothing, and never begin a
//! recording.

use std::ffi::{CStr, c_char};

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, event, is_recording, named_event};

use crate::guard::quietly;

/// `void gpumemtrace_step(void)`: a step begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_step() {
    quietly(|| {
        if is_recording() {
            event(&Draft { aux: [MARK_STEP, 0], ..Draft::new(EventKind::MARK, ApiId::default()) });
        }
        Some(())
    });
}

/// `void gpumemtrace_phase_begin(const char *name)`: what follows, on all threads, is part of this, until
/// [`gpumemtrace_phase_end`]. Phases may lie in one another. Numbers in the name are one name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_phase_begin(name: *const c_char) {
    quietly(|| {
        if is_recording() && !name.is_null() {
            // SAFETY: a NUL-terminated string, as documented.
            let name = unsafe { CStr::from_ptr(name) };
            named_event(&Draft::new(EventKind::PHASE_BEGIN, ApiId::default()), name.to_bytes());
        }
        Some(())
    });
}

/// `void gpumemtrace_phase_end(void)`: the phase that this thread began last ends.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn gpumemtrace_phase_end() {
    quietly(|| {
        if is_recording() {
            event(&Draft::new(EventKind::PHASE_END, ApiId::default()));
        }
        Some(())
    });
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
        }
        gpumemtrace_phase_end();
        assert!(!is_recording());
    }
}
