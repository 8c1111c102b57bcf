//! Memory for the library itself.
//!
//! Constraint: Rust ends the process where an allocation fails, and a program that runs at its limit (`ulimit -v`, a full memory
//! cgroup without the killer) may go on well when one of its own does. Consequence: where memory for the writer thread is
//! refused, recording ends and that thread waits until the process has ended. The hooks allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::session;

/// The system's allocator, and what we do where it has nothing left.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: every call is the system allocator's own; one that fails is answered with null, or not at all.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        granted(unsafe { System.alloc(layout) })
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        granted(unsafe { System.alloc_zeroed(layout) })
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        granted(unsafe { System.realloc(old, layout, new_bytes) })
    }

    #[inline]
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's own arguments.
        unsafe { System.dealloc(old, layout) }
    }
}

#[inline]
fn granted(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        refused();
    }
    memory
}

#[cold]
fn refused() {
    if let Some(session) = session::written() {
        session.stay_without_memory();
    }
}
