//! Runs code on a stack of our own.
//!
//! A hook runs on whatever stack the program calls the driver from: a thread of 16 KiB, an
//! alternate signal stack, a coroutine. Starting a recording takes 40 KiB of stack, and reading
//! unwind tables 12 KiB. Both happen rarely, so they switch to a stack of ours. All signals must be
//! blocked meanwhile: a handler of the program would run on that stack, too.
//!
//! `tests/suite/capture/test_stack_use.py` measures how much of the program's stack is left.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Memory that serves as a stack. All zero bytes are a valid value.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SideStack<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: `run` may be called by one thread at a time only.
unsafe impl<const BYTES: usize> Sync for SideStack<BYTES> {}

impl<const BYTES: usize> SideStack<BYTES> {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([0; BYTES]))
    }

    /// Runs `body` on this stack. A panic continues on the caller's stack.
    ///
    /// # Safety
    ///
    /// No other code may use this stack before the call returns, and all signals must be blocked.
    pub(crate) unsafe fn run<R>(&self, body: impl FnOnce() -> R) -> R {
        let mut call = Call { body: Some(body), result: Err(Box::new(())) };
        let function = entry_of(&call);
        let data = (&raw mut call).cast::<c_void>();
        // SAFETY: the end of the memory, which is aligned as the ABI requires.
        let top = unsafe { self.0.get().cast::<u8>().add(BYTES / 64 * 64) };
        // SAFETY: by the caller's promise the stack is free. `enter` gets its own data and never
        // unwinds.
        unsafe { call_on(data, function, top) };
        call.result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

struct Call<R, F> {
    body: Option<F>,
    result: std::thread::Result<R>,
}

/// The function that makes a call of this type.
fn entry_of<R, F: FnOnce() -> R>(_: &Call<R, F>) -> unsafe extern "C" fn(*mut c_void) {
    enter::<R, F>
}

unsafe extern "C" fn enter<R, F: FnOnce() -> R>(data: *mut c_void) {
    // SAFETY: the call of `run`, which waits for this function.
    let call = unsafe { &mut *data.cast::<Call<R, F>>() };
    if let Some(body) = call.body.take() {
        call.result = catch_unwind(AssertUnwindSafe(body));
    }
}

/// Calls `function(data)` with the stack pointer at `top`.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#[unsafe(naked)]
unsafe extern "C" fn call_on(data: *mut c_void, function: unsafe extern "C" fn(*mut c_void), top: *mut u8) {
    // The frame pointer leads debuggers and unwinders back to the caller's stack.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// On other systems the caller's stack is used.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
unsafe fn call_on(data: *mut c_void, function: unsafe extern "C" fn(*mut c_void), _: *mut u8) {
    // SAFETY: the caller's own arguments.
    unsafe { function(data) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_runs_on_the_stack_and_returns_its_result() {
        let stack = Box::new(SideStack::<16384>::new());
        let here = std::ptr::from_ref(&*stack) as usize;
        // SAFETY: only this test uses the stack; it has no signal handlers.
        let (at, sum) = unsafe {
            stack.run(|| {
                let local = std::hint::black_box([1u8; 256]);
                (local.as_ptr() as usize, local.iter().map(|byte| u32::from(*byte)).sum::<u32>())
            })
        };
        assert_eq!(sum, 256);
        if cfg!(all(target_arch = "x86_64", target_os = "linux", not(miri))) {
            assert!((here..here + 16384).contains(&at));
        }
    }

    #[test]
    fn panic_continues_on_the_callers_stack() {
        let stack = Box::new(SideStack::<65536>::new());
        // SAFETY: as above.
        let caught = catch_unwind(AssertUnwindSafe(|| unsafe { stack.run(|| resume_unwind(Box::new(7))) }));
        assert_eq!(caught.err().and_then(|panic| panic.downcast::<i32>().ok()), Some(Box::new(7)));
    }
}
