//! `gpumemtrace_malloc` and `gpumemtrace_free`: gpumemtrace as PyTorch's pluggable allocator.
//!
//! ```python
//! allocator = torch.cuda.memory.CUDAPluggableAllocator("libgpumemtrace.so", "gpumemtrace_malloc", "gpumemtrace_free")
//! torch.cuda.memory.change_current_allocator(allocator)   # before the first CUDA tensor
//! ```
//!
//! Constraint: PyTorch calls these two functions for every tensor and keeps nothing of its own allocator: no cache, no
//! statistics. Consequence: each tensor is one call of the driver, recorded with the line that made it; nothing is cached
//! here, so a program runs as fast as its driver allocates. What a trace says about fragmentation then is about this
//! allocator, not about PyTorch's: the header names the mode, and preloading is the way to study the native one.
//!
//! The driver's functions are given to this crate by the hooks ([`install`]); it looks nothing up itself.

mod refuse;
mod totals;

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::{Draft, event};

use totals::TOTALS;

/// The recorded driver functions.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// `cuMemAlloc` on a device, whatever the thread's context: (device, out, bytes) -> `CUresult`.
    pub alloc: unsafe extern "C" fn(c_int, *mut u64, usize) -> c_int,
    /// `cuMemFree` on a device: (device, pointer) -> `CUresult`.
    pub free: unsafe extern "C" fn(c_int, u64) -> c_int,
}

const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;

static DRIVER: OnceLock<Driver> = OnceLock::new();
static USED: AtomicBool = AtomicBool::new(false);

/// Gives the driver's functions. Later calls change nothing.
pub fn install(driver: Driver) {
    let _ = DRIVER.set(driver);
}

/// True once PyTorch has asked for memory here: the trace's mode is "pluggable".
pub fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Allocates for a tensor. Zero bytes give null, as PyTorch expects; what the driver refuses becomes PyTorch's own error.
///
/// # Safety
/// Called by PyTorch, with the device's context current.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_malloc(
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let Ok(size) = usize::try_from(size) else { return std::ptr::null_mut() };
    if size == 0 {
        return std::ptr::null_mut();
    }
    USED.store(true, Ordering::Relaxed);
    let mut pointer = 0u64;
    // SAFETY: the out-parameter is ours.
    let alloc = |driver: &Driver| unsafe { (driver.alloc)(device, &raw mut pointer, size) };
    let result = DRIVER.get().map_or(NOT_INITIALIZED, alloc);
    let totals = TOTALS.device(device);
    if result != 0 {
        let live = totals.live();
        if result == OUT_OF_MEMORY {
            record(EventKind::BLOCK_OOM, device, 0, size, live);
        }
        // SAFETY: called from PyTorch, whose frames expect its exceptions.
        unsafe { refuse::raise(size, live, result) };
        return std::ptr::null_mut();
    }
    record(EventKind::BLOCK_ALLOC, device, pointer, size, totals.add(size as u64));
    pointer as *mut c_void
}

/// Takes a tensor's memory back. Null is allowed.
///
/// # Safety
/// Called by PyTorch with a pointer that [`gpumemtrace_malloc`] gave, and its size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_free(
    pointer: *mut c_void,
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    let (Ok(size), false) = (usize::try_from(size), pointer.is_null()) else { return };
    let live = TOTALS.device(device).subtract(size as u64);
    record(EventKind::BLOCK_FREE, device, pointer as u64, size, live);
    if let Some(driver) = DRIVER.get() {
        // A failure (the driver is shutting down) has no one to be told to; the call itself is in the trace.
        // SAFETY: the caller's promise.
        unsafe { (driver.free)(device, pointer as u64) };
    }
}

fn record(kind: EventKind, device: c_int, addr: u64, size: usize, live: u64) {
    let mut draft = Draft::new(kind, ApiId::default());
    draft.device = u8::try_from(device).unwrap_or(draft.device);
    draft.addr = addr;
    draft.size = size as u64;
    // Nothing is cached, so what is handed out is all that is held.
    draft.aux = [live, live];
    // A panic must not reach PyTorch's frames.
    if std::panic::catch_unwind(|| event(&draft)).is_err() {
        gpumemtrace_recorder::leave_after_panic();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn alloc(_: c_int, out: *mut u64, size: usize) -> c_int {
        if size > 1 << 20 {
            return 2;
        }
        // SAFETY: the caller's out-parameter.
        unsafe { *out = 0x1000 };
        0
    }

    unsafe extern "C" fn free(_: c_int, _: u64) -> c_int {
        0
    }

    #[test]
    fn what_pytorch_asks_is_passed_on_and_counted() {
        // Nothing may be written by this test's process.
        // SAFETY: no other thread of this test binary reads the environment.
        unsafe { std::env::set_var("GPUMEMTRACE_OUTPUT", "/proc/none/run.trace") };
        install(Driver { alloc, free });
        let stream = std::ptr::null_mut();
        // SAFETY: a driver that touches no memory.
        unsafe {
            assert!(gpumemtrace_malloc(0, 0, stream).is_null());
            assert!(!is_used(), "zero bytes are no use");
            let pointer = gpumemtrace_malloc(512, 0, stream);
            assert_eq!((pointer as u64, TOTALS.device(0).live()), (0x1000, 512));
            assert!(
                gpumemtrace_malloc(2 << 20, 0, stream).is_null(),
                "refused; without PyTorch there is no exception"
            );
            gpumemtrace_free(pointer, 512, 0, stream);
            gpumemtrace_free(std::ptr::null_mut(), 0, 0, stream);
        }
        assert_eq!(TOTALS.device(0).live(), 0);
        assert!(is_used());
    }
}
