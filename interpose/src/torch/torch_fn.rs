//! PyTorch's own function behind a name that we export too.
//!
//! PyTorch's libraries are not in the scope that `RTLD_NEXT` searches, and a hooked call must reach
//! them. The function is looked up once, in its library by name. If it is not there, all loaded
//! libraries are searched.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpumemtrace_recorder::elf::{ElfModule, find_module};
use gpumemtrace_recorder::uninterrupted;

/// Stored instead of an address after a failed search. The caller of a hook has its libraries
/// loaded, so the search is not repeated.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

/// A function of one of PyTorch's libraries.
pub(super) struct TorchFn {
    library: &'static CStr,
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl TorchFn {
    pub(super) const fn new(library: &'static CStr, name: &'static CStr) -> Self {
        Self { library, name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The address, looked up at the first call; null if there is no such function.
    #[inline]
    pub(super) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() {
            self.find()
        } else if address == MISSING {
            std::ptr::null_mut()
        } else {
            address
        }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // A search that finds our own hook would recurse without end, whatever file name we were
        // loaded by.
        let symbol = |module: &ElfModule<'_>| {
            if is_this_library(module) { None } else { module.symbol(self.name) }
        };
        let by_name =
            |module: &ElfModule<'_>| module.is_named(self.library).then(|| symbol(module)).flatten();
        let found = uninterrupted(|| find_module(by_name).or_else(|| find_module(symbol)));
        let address = found.map_or(std::ptr::null_mut(), |address| address as *mut c_void);
        self.address.store(if address.is_null() { MISSING } else { address }, Ordering::Release);
        address
    }
}

fn is_this_library(module: &ElfModule<'_>) -> bool {
    static HERE: u8 = 0;
    module.contains((&raw const HERE) as usize, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_is_found_in_its_library_or_any_other() {
        let there = TorchFn::new(c"libc.so.6", c"getenv");
        let elsewhere = TorchFn::new(c"libno_such_library.so", c"getenv");
        assert!(!there.get().is_null());
        assert_eq!(there.get(), elsewhere.get());
        let nowhere = TorchFn::new(c"libc.so.6", c"gpumemtrace_no_such_function");
        // The test binary stands for our library.
        let own = find_module(|module| is_this_library(module).then(|| module.start()));
        assert!(own.is_some_and(|start| start < is_this_library as *const () as usize));
        for _ in 0..2 {
            assert!(nowhere.get().is_null(), "also at the second call");
        }
    }
}
