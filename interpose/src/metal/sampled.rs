//! What PyTorch says of its own memory on Metal, handed over by the package at steps.
//!
//! Constraint: PyTorch keeps buffers that no tensor uses, and tells nobody when it gives them to another; asked before it has used
//! Metal, it would begin to. Consequence: who wants to ask it asks here first. The answer is yes once the program has made a heap, which is
//! what PyTorch does at its first tensor, and while a recording runs; what is said is recorded as a sample, and never begins one.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use gpumemtrace_format::event::TORCH_MPS;
use gpumemtrace_format::{ApiId, EventKind, NO_DEVICE};
use gpumemtrace_recorder::{Draft, is_recording, record_event};

use super::HAS_HEAPS;
use crate::guard::quietly;

/// `int gpumemtrace_mps_memory(const uint64_t said[2])`: whether what `torch.mps` says is recorded at this moment. `said` is
/// `current_allocated_memory()` and `driver_allocated_memory()`, 2^64 - 1 for one that is not known; a null pointer only asks.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gpumemtrace_mps_memory(said: *const u64) -> c_int {
    let is_wanted = quietly(|| {
        if !HAS_HEAPS.load(Ordering::Acquire) || !is_recording() {
            return None;
        }
        if !said.is_null() {
            // SAFETY: two numbers, as documented; nothing is known of their alignment.
            let [tensors, driver] = unsafe { [said.read_unaligned(), said.add(1).read_unaligned()] };
            record_event(&Draft {
                device: NO_DEVICE,
                size: tensors,
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
    fn before_the_first_heap_nobody_is_asked() {
        // SAFETY: null, which is allowed, and two numbers.
        let answers =
            unsafe { [gpumemtrace_mps_memory(std::ptr::null()), gpumemtrace_mps_memory([1, 2].as_ptr())] };
        assert_eq!(answers, [0, 0]);
        assert!(!is_recording());
    }
}
