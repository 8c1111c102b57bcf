//! Checks that a native capture does not allocate: when it compares, when it walks, and when it
//! reads unwind tables.

use std::alloc::Layout;
use std::cell::Cell;

use gpumemtrace_format::NodeId;
use gpumemtrace_recorder::internals::{NativeStack, prepare};

use crate::ALLOCATIONS;

#[inline(never)]
fn count_allocations(stack: &mut NativeStack, ids: &mut u32) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    let found = stack.capture(|_, _| {
        *ids += 1;
        Some(NodeId(*ids))
    });
    assert!(found.node != NodeId::NONE && !found.is_truncated && !stack.used_fallback());
    ALLOCATIONS.with(Cell::get) - before
}

fn capture_at_each_depth(levels: u32, stack: &mut NativeStack, ids: &mut u32) -> usize {
    let here = count_allocations(stack, ids);
    here + if levels == 0 { 0 } else { std::hint::black_box(capture_at_each_depth(levels - 1, stack, ids)) }
}

#[test]
fn capture_does_not_allocate() {
    prepare();
    // SAFETY: zero bytes are the documented empty state, and the layout is its own.
    let mut stack: Box<NativeStack> =
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(Layout::new::<NativeStack>()).cast()) };
    let mut ids = 0;
    let mut allocations = 0;
    for turn in 0..50 {
        allocations += capture_at_each_depth(40, &mut stack, &mut ids);
        if turn % 10 == 0 {
            // Makes the next capture read all tables again.
            gpumemtrace_recorder::note_module_unload();
        }
    }
    assert_eq!(allocations, 0);
    assert!(ids > 40, "frames were defined");
}
