//! PyTorch's capture filter: a C++ `std::function<bool(cudaStream_t)>`.
//!
//! PyTorch passes the address of a function object that does not outlive the call. It is copied
//! the way libstdc++ copies it. The layout of `std::function` in its ABI is unchanged since GCC
//! 4.8: sixteen bytes of functor, a manager that copies and destroys it, and an invoker.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use gpumemtrace_caching_allocator::CaptureFilter;

type FunctorStorage = [usize; 2];
/// `bool _M_manager(_Any_data &dest, const _Any_data &source, _Manager_operation)`.
type ManagerFn = unsafe extern "C" fn(*mut FunctorStorage, *const FunctorStorage, u32) -> bool;
/// `bool _M_invoker(const _Any_data &functor, cudaStream_t &&)`.
type InvokerFn = unsafe extern "C" fn(*const FunctorStorage, *const *mut c_void) -> bool;

const CLONE: u32 = 2;
const DESTROY: u32 = 3;

/// Layout of the caller's `std::function<bool(cudaStream_t)>` in libstdc++.
#[derive(Debug)]
#[repr(C)]
pub struct CppStreamPredicate {
    target: FunctorStorage,
    manager: Option<ManagerFn>,
    invoker: Option<InvokerFn>,
}

/// A copy owned by this library; destroyed on drop.
#[derive(Debug)]
struct OwnedPredicate {
    target: UnsafeCell<FunctorStorage>,
    manager: ManagerFn,
    invoker: InvokerFn,
}

// SAFETY: PyTorch's own allocator also keeps and calls these from any thread, one at a time. Here
// the lock of the device's allocator ensures that.
unsafe impl Send for OwnedPredicate {}

impl OwnedPredicate {
    fn matches(&self, stream: u64) -> bool {
        let stream = stream as *mut c_void;
        // SAFETY: the copy lives until `drop`.
        unsafe { (self.invoker)(self.target.get(), &raw const stream) }
    }
}

impl Drop for OwnedPredicate {
    fn drop(&mut self) {
        // SAFETY: the copy is destroyed only here, once.
        unsafe { (self.manager)(self.target.get(), std::ptr::null(), DESTROY) };
    }
}

/// Copies a function object. A null or empty one accepts every stream.
///
/// # Safety
/// `function` is null or the address of a `std::function<bool(cudaStream_t)>` of libstdc++.
pub(crate) unsafe fn copy_predicate(function: *const CppStreamPredicate) -> CaptureFilter {
    // SAFETY: the caller promises null or a valid function object.
    let Some(function) = (unsafe { function.as_ref() }) else { return Box::new(|_| true) };
    let (Some(manager), Some(invoker)) = (function.manager, function.invoker) else {
        return Box::new(|_| true);
    };
    let copied = OwnedPredicate { target: UnsafeCell::new([0; 2]), manager, invoker };
    // SAFETY: the manager belongs to the object that is copied.
    unsafe { manager(copied.target.get(), &raw const function.target, CLONE) };
    Box::new(move |stream| copied.matches(stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn manager(
        to: *mut FunctorStorage,
        from: *const FunctorStorage,
        operation: u32,
    ) -> bool {
        match operation {
            CLONE => {
                ALIVE.fetch_add(1, Ordering::Relaxed);
                // SAFETY: both point to functor storage.
                unsafe { *to = *from };
            }
            DESTROY => {
                ALIVE.fetch_sub(1, Ordering::Relaxed);
            }
            _ => panic!("unexpected operation"),
        }
        false
    }

    unsafe extern "C" fn invoker(target: *const FunctorStorage, stream: *const *mut c_void) -> bool {
        // SAFETY: the test passes valid pointers.
        unsafe { (*target)[0] == *stream as usize }
    }

    #[test]
    fn copied_predicate_outlives_the_original_and_is_destroyed_once() {
        let original =
            Box::new(CppStreamPredicate { target: [7, 0], manager: Some(manager), invoker: Some(invoker) });
        // SAFETY: `original` is alive and has the layout.
        let filter = unsafe { copy_predicate(&raw const *original) };
        drop(original);
        assert!(filter(7) && !filter(8));
        assert_eq!(ALIVE.load(Ordering::Relaxed), 1);
        drop(filter);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    }
}
