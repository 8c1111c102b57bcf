//! The global allocator of the library.
//!
//! Rust ends the process after a failed allocation. But a program at its memory limit (`ulimit -v`,
//! a full cgroup without the OOM killer) may survive a failed allocation of its own. So if an
//! allocation of the writer thread fails, the recording ends and that thread blocks until the
//! process exits. The thread that starts the recording gets memory from a small reserve instead, so
//! that the start can fail in order. Hooks allocate nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::platform;
use crate::session::writer_session;

/// The system allocator, with a reserve for the start. It parks the writer thread when an
/// allocation fails.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

// SAFETY: every call is the system allocator's own, or concerns memory of the reserve, which is
// given out once. A failed call returns null; on the writer thread it does not return.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments.
        check_granted(unsafe { System.alloc(layout) }, layout)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own arguments. The reserve is given out once, so it is zero, too.
        check_granted(unsafe { System.alloc_zeroed(layout) }, layout)
    }

    #[inline]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        if !RESERVE.contains(old) {
            // SAFETY: the caller's own arguments.
            let memory = unsafe { System.realloc(old, layout, new_bytes) };
            if !memory.is_null() {
                return memory;
            }
        }
        // SAFETY: the size is the caller's, and the alignment is valid already.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_bytes, layout.align()) };
        let memory = if RESERVE.contains(old) {
            // SAFETY: the caller's own arguments.
            unsafe { self.alloc(new_layout) }
        } else {
            handle_refusal(new_layout)
        };
        if !memory.is_null() {
            // SAFETY: two blocks of at least this length, which do not overlap.
            unsafe { ptr::copy_nonoverlapping(old, memory, layout.size().min(new_bytes)) };
            // SAFETY: the caller gives the old block up.
            unsafe { self.dealloc(old, layout) };
        }
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        if !RESERVE.contains(old) {
            // SAFETY: the caller's own arguments.
            unsafe { System.dealloc(old, layout) }
        }
    }
}

#[inline]
fn check_granted(memory: *mut u8, layout: Layout) -> *mut u8 {
    if memory.is_null() { handle_refusal(layout) } else { memory }
}

#[cold]
fn handle_refusal(layout: Layout) -> *mut u8 {
    if let Some(session) = writer_session() {
        session.park_writer_without_memory();
    }
    RESERVE.take(layout)
}

/// What the start of a recording may need until it finds that there is no memory.
const RESERVE_BYTES: usize = 128 << 10;

static RESERVE: Reserve = Reserve {
    memory: UnsafeCell::new([0; RESERVE_BYTES]),
    used: AtomicUsize::new(0),
    thread: AtomicU32::new(0),
};

/// Memory that lies in the library itself. It is given out once and never taken back.
#[repr(C, align(64))]
struct Reserve {
    memory: UnsafeCell<[u8; RESERVE_BYTES]>,
    used: AtomicUsize,
    /// The thread that may use it; 0 for none.
    thread: AtomicU32,
}

// SAFETY: each byte is given out once.
unsafe impl Sync for Reserve {}

impl Reserve {
    #[inline]
    fn contains(&self, memory: *const u8) -> bool {
        (memory as usize).wrapping_sub(self.memory.get() as usize) < RESERVE_BYTES
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        if self.thread.load(Ordering::Relaxed) != platform::this_thread() {
            return ptr::null_mut();
        }
        // Only this thread changes the number.
        let used = self.used.load(Ordering::Relaxed);
        let begin = used.next_multiple_of(layout.align());
        match begin.checked_add(layout.size()).filter(|end| *end <= RESERVE_BYTES && layout.align() <= 64) {
            Some(end) => {
                self.used.store(end, Ordering::Relaxed);
                // SAFETY: inside the memory.
                unsafe { self.memory.get().cast::<u8>().add(begin) }
            }
            None => ptr::null_mut(),
        }
    }
}

/// Runs `body`, in which allocations of the calling thread come from the reserve if the system has
/// no memory. Only one thread does this at a time.
pub(crate) fn with_reserve<R>(body: impl FnOnce() -> R) -> R {
    RESERVE.thread.store(platform::this_thread(), Ordering::Relaxed);
    let result = body();
    RESERVE.thread.store(0, Ordering::Relaxed);
    result
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_given_to_one_thread_and_never_twice() {
        let layout = Layout::new::<[u64; 5]>();
        assert!(RESERVE.take(layout).is_null(), "no thread starts a recording");
        let (first, second, large) = with_reserve(|| {
            let other = std::thread::spawn(move || RESERVE.take(layout) as usize).join().unwrap();
            assert_eq!(other, 0);
            let large = Layout::new::<[u8; RESERVE_BYTES + 1]>();
            (RESERVE.take(layout), RESERVE.take(layout), RESERVE.take(large))
        });
        assert!(RESERVE.contains(first) && RESERVE.contains(second) && large.is_null());
        assert!(second as usize - first as usize >= 40 && (second as usize).is_multiple_of(8));
        // SAFETY: a block of the reserve.
        let grown = unsafe {
            first.write(7);
            Allocator.realloc(first, layout, 80)
        };
        // SAFETY: a block of 80 bytes.
        assert_eq!(unsafe { grown.read() }, 7);
        assert!(!RESERVE.contains(grown));
        // SAFETY: as above.
        unsafe { Allocator.dealloc(grown, Layout::from_size_align(80, 8).unwrap()) };
    }
}
