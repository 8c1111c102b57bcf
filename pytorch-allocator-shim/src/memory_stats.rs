//! `torch.cuda.memory_stats()` for the caching allocator of this crate.
//!
//! PyTorch refuses `memory_stats()` under a pluggable allocator and has no hook for it. The Python
//! package calls these functions through ctypes; to keep Rust structures out of that interface,
//! the values are passed as text.

use std::ffi::{c_char, c_int};
use std::fmt::Write;

use crate::device_caches;
use crate::mode::{AllocatorMode, current_mode};

/// Writes the statistics of a device as text, one `name value` pair a line, with the names of
/// `torch.cuda.memory_stats()`. The text is NUL-terminated and truncated to `capacity` bytes.
///
/// Returns the length of the whole text in bytes, without the NUL; 0 if the cache is not in use.
///
/// # Safety
/// `buffer` has room for `capacity` bytes, or is null and `capacity` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpumemtrace_memory_stats(
    device: c_int,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    if current_mode() != Some(AllocatorMode::Caching) {
        return 0;
    }
    let stats =
        device_caches::with_cache(device, |cache| (cache.stats.clone(), cache.settings().max_split_bytes));
    let Some((stats, max_split_bytes)) = stats else { return 0 };
    let mut text = String::new();
    // A signed number in PyTorch: -1 without a limit.
    let _ = writeln!(text, "max_split_size {}", max_split_bytes as i64);
    stats.for_each(|name, value| {
        let _ = writeln!(text, "{name} {value}");
    });
    if capacity > 0 && !buffer.is_null() {
        let len = text.len().min(capacity - 1);
        // SAFETY: the caller promises room for `capacity` bytes, and `len` is less.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), len);
            buffer.add(len).write(0);
        }
    }
    text.len()
}

/// Resets statistics of a device: the peaks to the current values (`what` = 0), or the accumulated
/// sums and counts to 0 (any other `what`).
#[unsafe(no_mangle)]
pub extern "C" fn gpumemtrace_reset_memory_stats(device: c_int, what: c_int) {
    device_caches::with_cache(device, |cache| {
        if what == 0 { cache.stats.reset_peaks() } else { cache.stats.reset_sums() }
    });
}
