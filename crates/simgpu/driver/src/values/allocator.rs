//! Lets memory of PyTorch's allocator read as zeros when it is allocated again.
//!
//! `allocate` is the third function of every `c10::Allocator`, after two destructors. It returns a
//! `DataPtr`; its first word is the address:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/c10/core/Allocator.h>.
//!
//! Libraries such as Thrust take memory by `raw_alloc` and `raw_alloc_with_stream`, and copy
//! numbers of elements from it. These are the first two functions of `CUDAAllocator` after those
//! of the class that it extends:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/c10/cuda/CUDACachingAllocator.h>.

use std::sync::atomic::{AtomicU64, Ordering};

use super::known_bytes;
use super::loaded_library::{LoadedLibrary, replace_pointer};

/// The function that all memory of tensors comes from.
type Allocate = unsafe extern "C-unwind" fn(*mut [u64; 4], u64, u64) -> *mut [u64; 4];

type RawAlloc = unsafe extern "C-unwind" fn(u64, u64, u64) -> u64;

/// What [`allocate`], [`raw_alloc`] and [`raw_alloc_with_stream`] stand in for.
static ALLOCATE: AtomicU64 = AtomicU64::new(0);
static RAW_ALLOC: AtomicU64 = AtomicU64::new(0);
static RAW_ALLOC_WITH_STREAM: AtomicU64 = AtomicU64::new(0);

/// Hooks the allocator that PyTorch uses.
pub(crate) fn hook() {
    const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
    let Some(library) = LoadedLibrary::find("libc10_cuda.so") else { return };
    let Some(&variable) = library.symbols(|name| name == ALLOCATOR).get(ALLOCATOR) else { return };
    // SAFETY: a pointer to an object; its first word points to its table of functions.
    unsafe {
        let object = *(variable as *const u64);
        if object != 0 {
            let put = |slot: u64, original: &AtomicU64, hook: u64| {
                let place = *(object as *const u64) + slot * 8;
                original.store(*(place as *const u64), Ordering::Release);
                replace_pointer(place, hook);
            };
            put(2, &ALLOCATE, allocate as *const () as u64);
            if let Some(slot) = inherited_functions(&library) {
                put(slot, &RAW_ALLOC, raw_alloc as *const () as u64);
                put(slot + 1, &RAW_ALLOC_WITH_STREAM, raw_alloc_with_stream as *const () as u64);
            }
        }
    }
}

/// The number of virtual functions of the class that `CUDAAllocator` extends. Its table has two
/// words more.
fn inherited_functions(cuda: &LoadedLibrary) -> Option<u64> {
    let class = ["N3c1015DeviceAllocatorE", "N3c109AllocatorE"]
        .into_iter()
        .find(|class| cuda.mentions(&format!("_ZTI{class}")))?;
    let table = LoadedLibrary::find("libc10.so")?.size_of(&format!("_ZTV{class}"))?;
    (table / 8).checked_sub(2)
}

unsafe extern "C-unwind" fn allocate(result: *mut [u64; 4], allocator: u64, bytes: u64) -> *mut [u64; 4] {
    // SAFETY: the function that this one stands in for, with its arguments; it has stored a
    // `DataPtr`, and nothing uses the memory yet.
    unsafe {
        let original = std::mem::transmute::<u64, Allocate>(ALLOCATE.load(Ordering::Acquire));
        let returned = original(result, allocator, bytes);
        let addr = (*result)[0];
        if addr != 0 && bytes > 0 {
            known_bytes::on_allocated(addr, bytes);
        }
        returned
    }
}

unsafe extern "C-unwind" fn raw_alloc(allocator: u64, bytes: u64, unused: u64) -> u64 {
    // SAFETY: the arguments of the function that this one stands in for; it ignores the third.
    unsafe { cleared(&RAW_ALLOC, allocator, bytes, unused) }
}

unsafe extern "C-unwind" fn raw_alloc_with_stream(allocator: u64, bytes: u64, stream: u64) -> u64 {
    // SAFETY: the arguments of the function that this one stands in for.
    unsafe { cleared(&RAW_ALLOC_WITH_STREAM, allocator, bytes, stream) }
}

/// Calls a function that returns the address of memory, and clears it.
///
/// # Safety
///
/// The arguments are those of the function.
unsafe fn cleared(function: &AtomicU64, allocator: u64, bytes: u64, stream: u64) -> u64 {
    // SAFETY: by the contract of this function; nothing uses the memory yet.
    unsafe {
        let original = std::mem::transmute::<u64, RawAlloc>(function.load(Ordering::Acquire));
        let addr = original(allocator, bytes, stream);
        if addr != 0 && bytes > 0 {
            known_bytes::on_allocated(addr, bytes);
        }
        addr
    }
}
