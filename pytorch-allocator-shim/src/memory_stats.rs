//! `torch.cuda.memory_stats()` for our caching allocator, which PyTorch does not ask it for.
//!
//! Constraint: Python reads it without knowing our structures. Consequence: one text, a `name value` a line, into the
//! caller's buffer.

use std::ffi::{c_char, c_int};
use std::fmt::Write;

use crate::device_caches;
use crate::mode::{Mode, mode};

/// Writes all figures of a device, a `name value` a line, with the names of `torch.cuda.memory_stats()`, NUL-terminated and
/// cut at `capacity`. Answers the bytes that the whole text has, without the NUL; 0 if our cache is not in use.
///
/// # Safety
/// `buffer` has room for `capacity` bytes, or is null and `capacity` 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumemtrace_memory_stats(
    device: c_int,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    if mode() != Some(Mode::Caching) {
        return 0;
    }
    let Some(stats) = device_caches::with(device, |cache| cache.stats.clone()) else { return 0 };
    let mut text = String::new();
    stats.each(|name, value| {
        let _ = writeln!(text, "{name} {value}");
    });
    if capacity > 0 && !buffer.is_null() {
        let len = text.len().min(capacity - 1);
        // SAFETY: the caller's promise.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
            buffer.add(len).write(0);
        }
    }
    text.len()
}

/// Lets peaks begin again at what is now (`what` = 0), or sums and counts at 0 (`what` = 1).
#[unsafe(no_mangle)]
pub extern "C" fn gpumemtrace_reset_memory_stats(device: c_int, what: c_int) {
    device_caches::with(
        device,
        |cache| if what == 0 { cache.stats.reset_peaks() } else { cache.stats.reset_sums() },
    );
}
