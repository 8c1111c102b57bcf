//! The functions that PyTorch calls.
//!
//! Constraint: their forms are PyTorch's (`torch/csrc/cuda/CUDAPluggableAllocator.h`, 2.1 to 2.15), a panic must not reach
//! its frames, and an exception of its own must not meet ours with a lock held. Consequence: each is a few lines around the
//! allocator, caught, and what is refused is thrown after the lock is gone, from no frame of ours.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use gpumemtrace_format::EventKind;

use crate::cache::{Failure, OUT_OF_MEMORY};
use crate::driver::{NOT_INITIALIZED, driver};
use crate::filter::{StdFunction, copy};
use crate::refuse::{Leave, Refusal, exception};
use crate::totals::TOTALS;
use crate::{devices, mode, record};

/// Runs something of ours that must not panic into PyTorch; `None` if it did.
fn quietly<T>(act: impl FnOnce() -> T) -> Option<T> {
    let answer = catch_unwind(AssertUnwindSafe(act)).ok();
    if answer.is_none() {
        gpumemtrace_recorder::reset_hook_after_panic();
        gpumemtrace_recorder::print_diagnostic(&[
            "the allocator failed within: memory that it held stays held, and what comes next is served anew. ",
            "Please report it, with the program if you can.",
        ]);
    }
    answer
}

/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: c_int = 999;

/// Memory for a tensor. Zero bytes give null, as PyTorch expects; what cannot be had becomes PyTorch's own error.
///
/// An exception must not meet a frame of ours: the unwinder that walks it is that of the C++ runtime, and ours may be another one,
/// linked into the library. So all work is done in `serve`, which returns, and what is thrown is left for in a jump.
///
/// # Safety
/// Called by PyTorch.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    std::arch::naked_asm!(
        ".cfi_startproc",
        // An Answer, and the alignment that a call needs.
        "sub rsp, 56",
        ".cfi_def_cfa_offset 64",
        "mov rcx, rsp",
        "call {serve}",
        "mov rax, [rsp]",
        "mov r11, [rsp + 8]",
        "mov rdi, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "mov rdx, [rsp + 32]",
        "mov rcx, [rsp + 40]",
        "add rsp, 56",
        ".cfi_def_cfa_offset 8",
        "test r11, r11",
        "jnz 2f",
        "ret",
        "2:",
        "jmp r11",
        ".cfi_endproc",
        serve = sym serve,
    )
}

/// What [`serve`] leaves for the jump.
#[derive(Debug)]
#[repr(C)]
struct Answer {
    pointer: *mut c_void,
    leave: Leave,
}

unsafe extern "C" fn serve(size: isize, device: c_int, stream: *mut c_void, answer: *mut Answer) {
    let (mut pointer, mut leave) = (null_mut(), Leave::NOWHERE);
    if let Ok(bytes @ 1..) = u64::try_from(size) {
        let given = quietly(|| {
            if mode::is_caching() {
                alloc(bytes, device, stream as u64)
            } else {
                alloc_uncached(bytes, device)
            }
        });
        match given.unwrap_or_else(|| Err(Refusal::new(bytes, device, Failure(UNKNOWN)))) {
            Ok(addr) => pointer = addr as *mut c_void,
            Err(refusal) => leave = quietly(|| exception(&refusal)).unwrap_or(Leave::NOWHERE),
        }
    }
    // SAFETY: the caller's frame has room for it.
    unsafe { answer.write(Answer { pointer, leave }) };
}

fn alloc(bytes: u64, device: c_int, stream: u64) -> Result<u64, Refusal> {
    let answer = devices::with(device, |cache| {
        cache.alloc(bytes, stream).map_err(|failure| (failure, cache.held_bytes()))
    });
    let Err((failure, held)) = answer.unwrap_or(Err((Failure(NOT_INITIALIZED), (0, 0)))) else {
        return answer
            .map_or(Ok(0), |answer| answer.map_err(|_| Refusal::new(bytes, device, Failure(UNKNOWN))));
    };
    let memory = driver().and_then(|driver| driver.memory(device)).ok();
    if failure == OUT_OF_MEMORY {
        record::out_of_memory(device, bytes, stream, held, memory.map(|(free, _)| free));
    }
    Err(Refusal { held, memory, ..Refusal::new(bytes, device, failure) })
}

fn alloc_uncached(bytes: u64, device: c_int) -> Result<u64, Refusal> {
    let answer = driver().and_then(|driver| driver.alloc(device, bytes as usize, false));
    let totals = TOTALS.device(device);
    match answer {
        Ok(addr) => {
            record::uncached(EventKind::BLOCK_ALLOC, device, addr, bytes, totals.add(bytes));
            Ok(addr)
        }
        Err(error) => {
            let (failure, live) = (Failure(error), totals.live());
            if failure == OUT_OF_MEMORY {
                record::uncached(EventKind::BLOCK_OOM, device, 0, bytes, live);
            }
            Err(Refusal { held: (live, live), ..Refusal::new(bytes, device, failure) })
        }
    }
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
    let (Ok(bytes), false) = (u64::try_from(size), pointer.is_null()) else { return };
    let addr = pointer as u64;
    quietly(|| {
        if mode::is_caching() {
            devices::with(device, |cache| cache.free(addr));
            return;
        }
        record::uncached(EventKind::BLOCK_FREE, device, addr, bytes, TOTALS.device(device).subtract(bytes));
        // A failure (the driver is shutting down) has no one to be told to; the call itself is in the trace.
        let _ = driver().and_then(|driver| driver.free(device, addr));
    });
}

/// Tensors come from our cache from now on: 1, or 0 if they already come from elsewhere. Whoever calls this has given, or
/// gives before the first tensor, the functions below to PyTorch: without [`gpumemtrace_record_stream`] a cache would hand out memory that
/// another stream still uses.
#[unsafe(no_mangle)]
pub extern "C" fn gpumemtrace_use_cache() -> c_int {
    c_int::from(mode::use_cache())
}

/// `set_record_stream_fn`: a stream uses a block that was made for another.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    quietly(|| {
        devices::find(|cache| {
            let is_its = cache.segment_of(pointer as u64).is_some();
            is_its.then(|| cache.record_stream(pointer as u64, stream as u64))
        })
    });
}

/// `set_reset_fn`: `torch.cuda.empty_cache()`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_empty_cache() {
    quietly(|| {
        devices::find(|cache| {
            cache.release_cached();
            None::<()>
        })
    });
}

/// `set_memory_fraction_fn`: no more than this part of the device's memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_set_memory_fraction(fraction: f64, device: c_int) {
    quietly(|| {
        let Ok((_, total)) = driver().and_then(|driver| driver.memory(device)) else { return };
        devices::with(device, |cache| cache.set_limit((fraction.clamp(0.0, 1.0) * total as f64) as u64));
    });
}

/// `set_base_alloc_fn`: the segment that a tensor lies in; `size`, if given, becomes its bytes.
///
/// # Safety
/// `size` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_base_alloc(
    pointer: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    let found = quietly(|| devices::find(|cache| cache.segment_of(pointer as u64))).flatten();
    let Some((addr, bytes)) = found else { return pointer };
    if !size.is_null() {
        // SAFETY: the caller's promise.
        unsafe { size.write(bytes as usize) };
    }
    addr as *mut c_void
}

/// `set_begin_allocate_to_pool`, torch 2.3 on: what the filter knows belongs to a pool.
///
/// # Safety
/// `filter` is null or the address of a `std::function<bool(cudaStream_t)>`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_begin_allocate_to_pool(
    device: c_int,
    first: u64,
    second: u64,
    filter: *const StdFunction,
) {
    quietly(|| {
        // SAFETY: the caller's promise.
        let filter = unsafe { copy(filter) };
        devices::with(device, |cache| cache.begin_pool((first, second), filter));
    });
}

/// `set_end_allocate_to_pool_fn`, torch 2.3 on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_end_allocate_to_pool(device: c_int, first: u64, second: u64) {
    quietly(|| devices::with(device, |cache| cache.end_pool((first, second))));
}

/// `set_begin_allocate_stream_to_pool`, torch 2.1 and 2.2: what is made for a stream belongs to a pool.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_begin_allocate_stream_to_pool(
    device: c_int,
    stream: *mut c_void,
    first: u64,
    second: u64,
) {
    let stream = stream as u64;
    quietly(|| devices::with(device, |cache| cache.begin_stream(stream, (first, second))));
}

/// `set_end_allocate_stream_to_pool_fn`, torch 2.1 and 2.2.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_end_allocate_stream_to_pool(device: c_int, stream: *mut c_void) {
    quietly(|| devices::with(device, |cache| cache.end_stream(stream as u64)));
}

/// `set_release_pool`: a graph lets go of its pool.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_release_pool(device: c_int, first: u64, second: u64) {
    quietly(|| devices::with(device, |cache| cache.release_pool((first, second))));
}

/// A segment for PyTorch's own allocator, in a `torch.cuda.MemPool`. Null if the driver has no more: PyTorch then does what
/// it always does.
///
/// # Safety
/// Called by PyTorch.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_segment_malloc(
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let Ok(bytes @ 1..) = usize::try_from(size) else { return null_mut() };
    let answer = quietly(|| {
        mode::use_segments();
        driver().and_then(|driver| driver.alloc(device, bytes, true))
    });
    answer.and_then(Result::ok).map_or(null_mut(), |addr| addr as *mut c_void)
}

/// Takes a segment back.
///
/// # Safety
/// Called by PyTorch with a pointer that [`gpumemtrace_segment_malloc`] gave.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_segment_free(
    pointer: *mut c_void,
    _size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if !pointer.is_null() {
        quietly(|| driver().and_then(|driver| driver.free(device, pointer as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Driver, Error, install};

    #[derive(Debug)]
    struct Small;

    impl Driver for Small {
        fn alloc(&self, _: c_int, bytes: usize, _: bool) -> Result<u64, Error> {
            if bytes > 1 << 20 { Err(OUT_OF_MEMORY.0) } else { Ok(0x1000) }
        }
        fn free(&self, _: c_int, _: u64) -> Result<(), Error> {
            Ok(())
        }
        fn create_event(&self, _: c_int) -> Result<u64, Error> {
            unreachable!("nothing is kept without a cache")
        }
        fn record_event(&self, _: c_int, _: u64, _: u64) -> Result<(), Error> {
            unreachable!("nothing is kept without a cache")
        }
        fn query_event(&self, _: c_int, _: u64) -> Result<(), Error> {
            unreachable!("nothing is kept without a cache")
        }
        fn wait_for_event(&self, _: c_int, _: u64) -> Result<(), Error> {
            unreachable!("nothing is kept without a cache")
        }
        fn memory(&self, _: c_int) -> Result<(u64, u64), Error> {
            Ok((0, 1 << 20))
        }
    }

    #[test]
    fn without_the_other_hooks_each_tensor_is_a_call_of_the_driver() {
        // Nothing may be written by this test's process.
        // SAFETY: no other thread of this test binary reads the environment.
        unsafe { std::env::set_var("GPUMEMTRACE_OUTPUT", "/proc/none/run.trace") };
        install(&Small);
        let stream = null_mut();
        // SAFETY: a driver that touches no memory.
        unsafe {
            assert!(gpumemtrace_malloc(0, 0, stream).is_null());
            assert_eq!(mode(), None, "zero bytes are no use");
            let pointer = gpumemtrace_malloc(512, 0, stream);
            assert_eq!((pointer as u64, TOTALS.device(0).live()), (0x1000, 512));
            assert!(
                gpumemtrace_malloc(2 << 20, 0, stream).is_null(),
                "refused; without PyTorch there is no exception"
            );
            gpumemtrace_free(pointer, 512, 0, stream);
            gpumemtrace_free(null_mut(), 0, 0, stream);
        }
        assert_eq!(TOTALS.device(0).live(), 0);
        assert_eq!(mode(), Some(mode::Mode::Uncached));
        assert_eq!(gpumemtrace_use_cache(), 0, "what was made without a cache would be given back to it");
    }
}
