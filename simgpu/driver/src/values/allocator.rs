//! Lets memory of PyTorch's allocator read as zeros when it is allocated again.
//!
//! `allocate` is the third function of every `c10::Allocator`, after two destructors. It returns a
//! `DataPtr`; its first word is the address:
//! <https://github.com/pytorch/pytorch/blob/v2.9.1/c10/core/Allocator.h>.

use std::sync::atomic::{AtomicU64, Ordering};

use super::known_bytes;
use super::loaded_library::{LoadedLibrary, replace_pointer};

/// The function that all memory of tensors comes from.
type Allocate = unsafe extern "C-unwind" fn(*mut [u64; 4], u64, u64) -> *mut [u64; 4];

/// What [`allocate`] stands in for.
static ALLOCATE: AtomicU64 = AtomicU64::new(0);

/// Hooks the allocator that PyTorch uses.
pub(crate) fn hook() {
    const ALLOCATOR: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
    let Some(library) = LoadedLibrary::find("libc10_cuda.so") else { return };
    let Some(&variable) = library.symbols(|name| name == ALLOCATOR).get(ALLOCATOR) else { return };
    // SAFETY: a pointer to an object; its first word points to its table of functions.
    unsafe {
        let object = *(variable as *const u64);
        if object != 0 {
            let place = *(object as *const u64) + 2 * 8;
            ALLOCATE.store(*(place as *const u64), Ordering::Release);
            replace_pointer(place, allocate as *const () as u64);
        }
    }
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
