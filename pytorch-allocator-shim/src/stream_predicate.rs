//! PyTorch's way of saying which allocations belong to a capture: a C++ `std::function<bool(cudaStream_t)>`.
//!
//! Constraint: it is passed by the address of the caller's own, which is gone after the call. Consequence: it is copied the
//! way libstdc++ copies it (layout of `std::function` in its ABI, unchanged since GCC 4.8): sixteen bytes for the target, then a function that copies and destroys it, then the one
//! that calls it.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use crate::cache::Filter;

type Storage = [usize; 2];
/// `bool _M_manager(_Any_data &dest, const _Any_data &source, _Manager_operation)`.
type Manager = unsafe extern "C" fn(*mut Storage, *const Storage, u32) -> bool;
/// `bool _M_invoker(const _Any_data &functor, cudaStream_t &&)`.
type Invoker = unsafe extern "C" fn(*const Storage, *const *mut c_void) -> bool;

const CLONE: u32 = 2;
const DESTROY: u32 = 3;

/// The caller's function object.
#[derive(Debug)]
#[repr(C)]
pub struct StdFunction {
    target: Storage,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

/// Our copy.
#[derive(Debug)]
struct Copied {
    target: UnsafeCell<Storage>,
    manager: Manager,
    invoker: Invoker,
}

// SAFETY: PyTorch's own allocator keeps and calls these from any thread too, one at a time, as we do under our lock.
unsafe impl Send for Copied {}

impl Copied {
    fn knows(&self, stream: u64) -> bool {
        let stream = stream as *mut c_void;
        // SAFETY: a copy that has not been destroyed.
        unsafe { (self.invoker)(self.target.get(), &raw const stream) }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: once.
        unsafe { (self.manager)(self.target.get(), std::ptr::null(), DESTROY) };
    }
}

/// A copy of a function object; an empty one knows every stream.
///
/// # Safety
/// `function` is null or the address of a `std::function<bool(cudaStream_t)>` of libstdc++.
pub(crate) unsafe fn copy(function: *const StdFunction) -> Filter {
    // SAFETY: the caller's promise.
    let Some(function) = (unsafe { function.as_ref() }) else { return Box::new(|_| true) };
    let (Some(manager), Some(invoker)) = (function.manager, function.invoker) else {
        return Box::new(|_| true);
    };
    let copied = Copied { target: UnsafeCell::new([0; 2]), manager, invoker };
    // SAFETY: the manager of this very object.
    unsafe { manager(copied.target.get(), &raw const function.target, CLONE) };
    Box::new(move |stream| copied.knows(stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ALIVE: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn manager(to: *mut Storage, from: *const Storage, operation: u32) -> bool {
        match operation {
            CLONE => {
                ALIVE.fetch_add(1, Ordering::Relaxed);
                // SAFETY: both are storages.
                unsafe { *to = *from };
            }
            DESTROY => {
                ALIVE.fetch_sub(1, Ordering::Relaxed);
            }
            _ => panic!("not asked for"),
        }
        false
    }

    unsafe extern "C" fn invoker(target: *const Storage, stream: *const *mut c_void) -> bool {
        // SAFETY: both are what the caller made.
        unsafe { (*target)[0] == *stream as usize }
    }

    #[test]
    fn the_copy_answers_after_the_original_has_gone_and_is_destroyed_once() {
        let original =
            Box::new(StdFunction { target: [7, 0], manager: Some(manager), invoker: Some(invoker) });
        // SAFETY: made above.
        let filter = unsafe { copy(&raw const *original) };
        drop(original);
        assert!(filter(7) && !filter(8));
        assert_eq!(ALIVE.load(Ordering::Relaxed), 1);
        drop(filter);
        assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
    }
}
