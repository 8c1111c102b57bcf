//! Whether the program has memory left.
//!
//! A program at its memory limit may survive a failed allocation of its own, but Rust ends the
//! process after one of ours. So code that allocates on a thread of the program asks first.

use std::alloc::{GlobalAlloc as _, Layout, System};

/// More than any step takes that asks.
const WANTED_BYTES: usize = 1 << 20;

/// True if the system has a mebibyte for an allocation. Another thread may take it meanwhile.
pub(crate) fn has_memory_left() -> bool {
    let layout = const { Layout::new::<[u8; WANTED_BYTES]>() };
    // SAFETY: the layout has a size.
    let memory = unsafe { System.alloc(layout) };
    if memory.is_null() {
        return false;
    }
    // Otherwise the compiler may leave the pair of calls out.
    let memory = std::hint::black_box(memory);
    // SAFETY: allocated above.
    unsafe { System.dealloc(memory, layout) };
    true
}
