//! The C functions that PyTorch calls.
//!
//! Their signatures are PyTorch's (`torch/csrc/cuda/CUDAPluggableAllocator.h`, 2.1 to 2.15). A
//! panic must not unwind into PyTorch's frames, so each function catches it. A C++ exception must
//! not unwind through ours, and no lock may be held when it is thrown: see [`gpumemtrace_malloc`].

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use gpumemtrace_format::EventKind;

use crate::driver::{NOT_INITIALIZED, driver};
use crate::live_bytes::LIVE_BYTES;
use crate::stream_predicate::{CppStreamPredicate, copy_predicate};
use crate::torch_exception::{AllocFailure, PendingThrow, build_exception};
use crate::{device_caches, mode, trace_events};
use gpumemtrace_caching_allocator::{CacheBackend, DriverError, OUT_OF_MEMORY};

/// Runs `act`, which may call the driver; `None` if it panicked. The calling thread cannot be
/// cancelled meanwhile: the allocator's lock would be released in the middle of a change.
fn catch_panic<T>(act: impl FnOnce() -> T) -> Option<T> {
    let result = gpumemtrace_recorder::without_cancellation(|| catch_unwind(AssertUnwindSafe(act)).ok());
    if result.is_none() {
        gpumemtrace_recorder::reset_hook_after_panic();
        gpumemtrace_recorder::print_diagnostic(&[
            "internal error in the allocator: the memory it holds is leaked, and a new allocator serves ",
            "later requests. Please report it, with the program if you can.",
        ]);
    }
    result
}

/// `CUDA_ERROR_UNKNOWN`, for a panic in the allocator.
const UNKNOWN: DriverError = DriverError(999);

/// Allocates memory for a tensor. Returns null for zero bytes, as PyTorch expects. A failed request
/// throws PyTorch's own error.
///
/// A C++ exception must not unwind through a frame of this library: the C++ runtime unwinds it, and
/// this library may have another unwinder linked in. So `serve_malloc` does all work and returns.
/// If an exception is due, this function restores the stack and jumps to the throwing function.
///
/// # Safety
/// PyTorch calls it with a valid device and stream.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    std::arch::naked_asm!(
        ".cfi_startproc",
        // Room for a MallocResult, and the stack alignment of a call.
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
        serve = sym serve_malloc,
    )
}

/// What [`serve_malloc`] returns to the assembly: the pointer, or the throw to jump to.
#[derive(Debug)]
#[repr(C)]
struct MallocResult {
    pointer: *mut c_void,
    throw: PendingThrow,
}

unsafe extern "C" fn serve_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
    result: *mut MallocResult,
) {
    let (mut pointer, mut throw) = (null_mut(), PendingThrow::NONE);
    if let Ok(bytes @ 1..) = u64::try_from(size) {
        let allocated = catch_panic(|| {
            if mode::is_caching() {
                alloc_cached(bytes, device, stream as u64)
            } else {
                alloc_uncached(bytes, device)
            }
        });
        match allocated.unwrap_or_else(|| Err(AllocFailure::new(bytes, device, UNKNOWN))) {
            Ok(addr) => pointer = addr as *mut c_void,
            Err(failure) => throw = catch_panic(|| build_exception(&failure)).unwrap_or(PendingThrow::NONE),
        }
    }
    // SAFETY: `gpumemtrace_malloc` made room for it in its frame.
    unsafe { result.write(MallocResult { pointer, throw }) };
}

fn alloc_cached(bytes: u64, device: c_int, stream: u64) -> Result<u64, AllocFailure> {
    let result = device_caches::with_cache(device, |cache| {
        cache.alloc(bytes, stream).map_err(|error| (error, cache.held_bytes()))
    });
    let Err((error, held_bytes)) = result.unwrap_or(Err((DriverError(NOT_INITIALIZED), (0, 0)))) else {
        return result.map_or(Ok(0), |result| result.map_err(|_| AllocFailure::new(bytes, device, UNKNOWN)));
    };
    let device_memory = driver().and_then(|driver| driver.memory(device)).ok();
    if error == OUT_OF_MEMORY {
        let free_bytes = device_memory.map(|(free, _)| free);
        trace_events::emit_out_of_memory(device, bytes, stream, held_bytes, free_bytes);
    }
    Err(AllocFailure { held_bytes, device_memory, ..AllocFailure::new(bytes, device, error) })
}

fn alloc_uncached(bytes: u64, device: c_int) -> Result<u64, AllocFailure> {
    let result = driver().and_then(|driver| driver.alloc(device, bytes as usize, false));
    let live_bytes = LIVE_BYTES.device(device);
    match result {
        Ok(addr) => {
            let after = live_bytes.add(bytes);
            trace_events::emit_uncached(EventKind::BLOCK_ALLOC, device, addr, bytes, after);
            Ok(addr)
        }
        Err(error) => {
            let (error, live) = (DriverError(error), live_bytes.live());
            if error == OUT_OF_MEMORY {
                trace_events::emit_uncached(EventKind::BLOCK_OOM, device, 0, bytes, live);
            }
            Err(AllocFailure { held_bytes: (live, live), ..AllocFailure::new(bytes, device, error) })
        }
    }
}

/// Frees a tensor's memory. Null is allowed.
///
/// # Safety
/// Called by PyTorch with a pointer from [`gpumemtrace_malloc`], and its size.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_free(
    pointer: *mut c_void,
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    let (Ok(bytes), false) = (u64::try_from(size), pointer.is_null()) else { return };
    let addr = pointer as u64;
    catch_panic(|| {
        if mode::is_caching() {
            device_caches::with_cache(device, |cache| cache.free(addr));
            return;
        }
        trace_events::emit_uncached(
            EventKind::BLOCK_FREE,
            device,
            addr,
            bytes,
            LIVE_BYTES.device(device).subtract(bytes),
        );
        // An error (the driver is shutting down) has no receiver; the trace has the driver call.
        let _ = driver().and_then(|driver| driver.free(device, addr));
    });
}

/// Enables the caching allocator. Returns 1, or 0 if tensors already come from another mode.
///
/// The caller must install the functions below in PyTorch before the first tensor. Without
/// [`gpumemtrace_record_stream`], the cache would reuse memory that another stream still uses.
#[unsafe(no_mangle)]
pub extern "C" fn gpumemtrace_use_cache() -> c_int {
    c_int::from(mode::enable_cache())
}

/// `set_record_stream_fn`: a stream uses a block that was allocated for another stream.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_record_stream(pointer: *mut c_void, stream: *mut c_void) {
    catch_panic(|| {
        device_caches::find_in_caches(|cache| {
            let is_owner = cache.segment_of(pointer as u64).is_some();
            is_owner.then(|| cache.record_stream(pointer as u64, stream as u64))
        })
    });
}

/// `set_reset_fn`: `torch.cuda.empty_cache()`. Frees all unused segments of all devices.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_empty_cache() {
    catch_panic(|| {
        device_caches::find_in_caches(|cache| {
            cache.release_cached();
            None::<()>
        })
    });
}

/// `set_memory_fraction_fn`: limits reserved bytes to a fraction of the device's memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_set_memory_fraction(fraction: f64, device: c_int) {
    catch_panic(|| {
        device_caches::with_cache(device, |cache| {
            if cache.backend.device_bytes() > 0 {
                cache.set_memory_fraction(fraction);
            }
        });
    });
}

/// `set_base_alloc_fn`: the address of the segment that contains `pointer`. Its size in bytes is
/// written to `size`. Returns `pointer` if no live block has this address.
///
/// # Safety
/// `size` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_base_alloc(
    pointer: *mut c_void,
    size: *mut usize,
) -> *mut c_void {
    let found =
        catch_panic(|| device_caches::find_in_caches(|cache| cache.segment_of(pointer as u64))).flatten();
    let Some((addr, bytes)) = found else { return pointer };
    if !size.is_null() {
        // SAFETY: not null, so the caller promises that it may be written.
        unsafe { size.write(bytes as usize) };
    }
    addr as *mut c_void
}

/// `set_begin_allocate_to_pool`, torch 2.3 on: allocations on streams that `filter` accepts belong
/// to a pool.
///
/// # Safety
/// `filter` is null or the address of a `std::function<bool(cudaStream_t)>`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_begin_allocate_to_pool(
    device: c_int,
    first: u64,
    second: u64,
    filter: *const CppStreamPredicate,
) {
    catch_panic(|| {
        // SAFETY: the caller promises null or a valid function object.
        let filter = unsafe { copy_predicate(filter) };
        device_caches::with_cache(device, |cache| cache.begin_pool((first, second), filter));
    });
}

/// `set_end_allocate_to_pool_fn`, torch 2.3 on.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_end_allocate_to_pool(device: c_int, first: u64, second: u64) {
    catch_panic(|| device_caches::with_cache(device, |cache| cache.end_pool((first, second))));
}

/// `set_begin_allocate_stream_to_pool`, torch 2.1 and 2.2: allocations on one stream belong to a
/// pool.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_begin_allocate_stream_to_pool(
    device: c_int,
    stream: *mut c_void,
    first: u64,
    second: u64,
) {
    let stream = stream as u64;
    catch_panic(|| device_caches::with_cache(device, |cache| cache.begin_stream(stream, (first, second))));
}

/// `set_end_allocate_stream_to_pool_fn`, torch 2.1 and 2.2.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_end_allocate_stream_to_pool(device: c_int, stream: *mut c_void) {
    catch_panic(|| device_caches::with_cache(device, |cache| cache.end_stream(stream as u64)));
}

/// `set_release_pool`: a user of the pool is gone, for example a destroyed graph.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn gpumemtrace_release_pool(device: c_int, first: u64, second: u64) {
    catch_panic(|| device_caches::with_cache(device, |cache| cache.release_pool((first, second))));
}

/// Allocates a segment for PyTorch's own allocator, in a `torch.cuda.MemPool`. Returns null if the
/// driver is out of memory; PyTorch then frees cached segments and retries.
///
/// # Safety
/// PyTorch calls it with a valid device and stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_segment_malloc(
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let Ok(bytes @ 1..) = usize::try_from(size) else { return null_mut() };
    let answer = catch_panic(|| {
        mode::note_segment_request();
        driver().and_then(|driver| driver.alloc(device, bytes, true))
    });
    answer.and_then(Result::ok).map_or(null_mut(), |addr| addr as *mut c_void)
}

/// Frees a segment.
///
/// # Safety
/// Called by PyTorch with a pointer from [`gpumemtrace_segment_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn gpumemtrace_segment_free(
    pointer: *mut c_void,
    _size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if !pointer.is_null() {
        catch_panic(|| driver().and_then(|driver| driver.free(device, pointer as u64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::current_mode;
    use crate::driver::{CuResult, DriverApi, install_driver};

    #[derive(Debug)]
    struct SmallDriver;

    impl DriverApi for SmallDriver {
        fn alloc(&self, _: c_int, bytes: usize, _: bool) -> Result<u64, CuResult> {
            if bytes > 1 << 20 { Err(OUT_OF_MEMORY.0) } else { Ok(0x1000) }
        }
        fn free(&self, _: c_int, _: u64) -> Result<(), CuResult> {
            Ok(())
        }
        fn create_event(&self, _: c_int) -> Result<u64, CuResult> {
            unreachable!("the uncached mode needs no events")
        }
        fn record_event(&self, _: c_int, _: u64, _: u64) -> Result<(), CuResult> {
            unreachable!("the uncached mode needs no events")
        }
        fn query_event(&self, _: c_int, _: u64) -> Result<(), CuResult> {
            unreachable!("the uncached mode needs no events")
        }
        fn wait_for_event(&self, _: c_int, _: u64) -> Result<(), CuResult> {
            unreachable!("the uncached mode needs no events")
        }
        fn memory(&self, _: c_int) -> Result<(u64, u64), CuResult> {
            Ok((0, 1 << 20))
        }
    }

    #[test]
    fn uncached_mode_calls_the_driver_for_each_tensor() {
        // The output folder does not exist, so this test writes no trace.
        // SAFETY: no other thread of this test binary reads the environment.
        unsafe { std::env::set_var("GPUMEMTRACE_OUTPUT", "/proc/none/run.trace") };
        install_driver(&SmallDriver);
        let stream = null_mut();
        // SAFETY: `SmallDriver` touches no memory.
        unsafe {
            assert!(gpumemtrace_malloc(0, 0, stream).is_null());
            assert_eq!(current_mode(), None, "a request of zero bytes does not fix the mode");
            let pointer = gpumemtrace_malloc(512, 0, stream);
            assert_eq!((pointer as u64, LIVE_BYTES.device(0).live()), (0x1000, 512));
            assert!(
                gpumemtrace_malloc(2 << 20, 0, stream).is_null(),
                "out of memory; without PyTorch there is no exception to throw"
            );
            gpumemtrace_free(pointer, 512, 0, stream);
            gpumemtrace_free(null_mut(), 0, 0, stream);
        }
        assert_eq!(LIVE_BYTES.device(0).live(), 0);
        assert_eq!(current_mode(), Some(mode::AllocatorMode::Uncached));
        assert_eq!(gpumemtrace_use_cache(), 0, "the cache cannot free uncached blocks");
    }
}
