//! Samples of PyTorch's own totals on Metal, which the Python package passes in at steps.
//!
//! PyTorch caches buffers that no tensor uses and does not report their reuse, so its totals add
//! information. Reading them before the program has used Metal would initialize it. The package
//! therefore asks first whether a sample is wanted. It is wanted while a recording runs, after the
//! program has created a heap, which PyTorch does at its first tensor.

use std::ffi::c_int;

use gpumemtrace_format::event::TORCH_MPS;
use gpumemtrace_format::{ApiId, EventKind, NO_DEVICE};
use gpumemtrace_recorder::{Draft, is_recording, record_event};

use crate::panic_guard::catch_panic;

/// `int gpumemtrace_mps_memory(const uint64_t totals[2])`: records a sample; returns 1 if samples
/// are wanted now, else 0 and records nothing.
///
/// `totals` is `torch.mps.current_allocated_memory()` and `driver_allocated_memory()`, 2^64 - 1
/// for an unknown value. A null pointer only asks.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_mps_memory(totals: *const u64) -> c_int {
    let is_wanted = catch_panic(|| {
        if !crate::metal::has_heaps() || !is_recording() {
            return None;
        }
        if !totals.is_null() {
            // SAFETY: two numbers, as documented, of unknown alignment.
            let [allocated, driver] = unsafe { [totals.read_unaligned(), totals.add(1).read_unaligned()] };
            record_event(&Draft {
                device: NO_DEVICE,
                size: allocated,
                aux: [driver, TORCH_MPS],
                ..Draft::new(EventKind::TORCH_MEMORY, ApiId::default())
            });
        }
        Some(())
    });
    c_int::from(is_wanted.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_samples_are_unwanted_before_the_first_heap() {
        // SAFETY: null, which is allowed, and two numbers.
        let answers =
            unsafe { [gpumemtrace_mps_memory(std::ptr::null()), gpumemtrace_mps_memory([1, 2].as_ptr())] };
        assert_eq!(answers, [0, 0]);
        assert!(!is_recording());
    }
}
