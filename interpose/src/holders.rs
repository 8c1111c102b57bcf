//! What the program's own Python has found out about who holds its blocks.
//!
//! Constraint: who holds a tensor only the interpreter knows, and nothing of ours may call it. Consequence: the Python package looks
//! (`pytorch-allocator-shim/python/gpumemtrace/_holders/`), and what it found comes here as texts, to become events of the trace.

use std::ffi::{CStr, c_char, c_int};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, is_recording, record_text_event};

use crate::guard::quietly;

/// `void gpumemtrace_holders(const char *text)`: the program has looked who holds its blocks; what there is to say of the look.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_holders(text: *const c_char) {
    // SAFETY: the caller's promise.
    unsafe { say(Draft::new(EventKind::HOLDERS, ApiId::default()), text) };
}

/// `void gpumemtrace_holder(const char *text, int device, uint64_t address, uint64_t bytes, uint64_t blocks)`: so many blocks of
/// one site, of which one has this address, are held by whom the text tells.
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
    // SAFETY: the caller's promise.
    unsafe { say(draft, text) };
}

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn say(draft: Draft, text: *const c_char) {
    quietly(|| {
        if is_recording() && !text.is_null() {
            // SAFETY: the caller's promise.
            record_text_event(&draft, unsafe { CStr::from_ptr(text) }.to_bytes());
        }
        Some(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_recording_nothing_happens() {
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
