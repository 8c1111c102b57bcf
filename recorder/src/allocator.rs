//! The global allocator of the library.
//!
//! Rust ends the process after a failed allocation. But a program at its memory limit (`ulimit -v`,
//! a full cgroup without the OOM killer) may survive a failed allocation of its own. So if an
//! allocation of the writer thread fails, the recording ends and that thread blocks until the
//! process exits. Hooks allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::session::writer_session;

/// The system allocator, which parks the writer thread when an allocation fails.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: every call is the system allocator's own. A failed one returns null; on the writer thread
// it does not return.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        check_granted(unsafe { System.alloc(layout) })
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        check_granted(unsafe { System.alloc_zeroed(layout) })
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        check_granted(unsafe { System.realloc(old, layout, new_bytes) })
    }

    #[inline]
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's own arguments.
        unsafe { System.dealloc(old, layout) }
    }
}

#[inline]
fn check_granted(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        handle_refusal();
    }
    memory
}

#[cold]
fn handle_refusal() {
    if let Some(session) = writer_session() {
        session.park_writer_without_memory();
    }
}
