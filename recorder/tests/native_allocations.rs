//! A capture allocates nothing: neither one that only compares, nor one that walks, nor one that reads unwind tables.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use gpumemtrace_format::NodeId;
use gpumemtrace_recorder::internals::{self as native, NativeStack};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's own promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's own promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[inline(never)]
fn look(stack: &mut NativeStack, ids: &mut u32) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    let found = stack.find(|_, _| {
        *ids += 1;
        Some(NodeId(*ids))
    });
    assert!(found.node != NodeId::NONE && !found.is_truncated && !stack.was_slow());
    ALLOCATIONS.with(Cell::get) - before
}

fn deeper(levels: u32, stack: &mut NativeStack, ids: &mut u32) -> usize {
    let here = look(stack, ids);
    here + if levels == 0 { 0 } else { std::hint::black_box(deeper(levels - 1, stack, ids)) }
}

#[test]
fn a_capture_allocates_nothing() {
    native::prepare();
    // SAFETY: zero bytes are the documented empty state, and the layout is its own.
    let mut stack: Box<NativeStack> =
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(Layout::new::<NativeStack>()).cast()) };
    let mut ids = 0;
    let mut allocations = 0;
    for turn in 0..50 {
        allocations += deeper(40, &mut stack, &mut ids);
        if turn % 10 == 0 {
            // All tables are read again.
            native::note_module_unload();
        }
    }
    assert_eq!(allocations, 0);
    assert!(ids > 40, "there was something to define");
}
