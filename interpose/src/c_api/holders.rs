//! Results of the Python package's search for the references that keep blocks alive.
//!
//! Only the interpreter knows these references, and hooks never call it. The Python package does
//! the search (`python/gpumemtrace/_holders/`) and passes its results here
//! as texts, which become events of the trace.

use std::ffi::{CStr, c_char, c_int};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, is_recording, record_text_event};

use crate::panic_guard::catch_panic;

/// `void gpumemtrace_holders(const char *text)`: a search has taken place; `text` describes it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_holders(text: *const c_char) {
    // SAFETY: null or NUL-terminated, as documented.
    unsafe { record_text(Draft::new(EventKind::HOLDERS, ApiId::default()), text) };
}

/// `void gpumemtrace_holder(const char *text, int device, uint64_t address, uint64_t bytes,
/// uint64_t blocks)`: `text` names the references to `blocks` blocks of one call site, `bytes` in
/// total; `address` is that of one of them.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_holder(
    text: *const c_char,
    device: c_int,
    address: u64,
    bytes: u64,
    blocks: u64,
) {
    let Ok(device) = u8::try_from(device) else { return };
    let draft = Draft {
        device,
        addr: address,
        size: bytes,
        aux: [0, blocks],
        ..Draft::new(EventKind::HOLDER, ApiId::default())
    };
    // SAFETY: null or NUL-terminated, as documented.
    unsafe { record_text(draft, text) };
}

/// Records an event with a text, while a recording runs.
///
/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn record_text(draft: Draft, text: *const c_char) {
    catch_panic(|| {
        if is_recording() && !text.is_null() {
            // SAFETY: not null, so NUL-terminated by the caller's promise.
            record_text_event(&draft, unsafe { CStr::from_ptr(text) }.to_bytes());
        }
        Some(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_do_nothing_without_a_recording() {
        // SAFETY: NUL-terminated strings, and null, which is allowed.
        unsafe {
            gpumemtrace_holders(c"{}".as_ptr());
            gpumemtrace_holders(std::ptr::null());
            gpumemtrace_holder(c"{}".as_ptr(), 0, 512, 512, 1);
            gpumemtrace_holder(c"{}".as_ptr(), -1, 512, 512, 1);
        }
        assert!(!is_recording());
    }
}
