//! The function of PyTorch's behind a name that we define too.
//!
//! Constraint: PyTorch's libraries are not in the scope that is searched after us (`RTLD_NEXT`), and a call that came to us must
//! reach them. Consequence: the function is asked of its library, found once by name; should that be called otherwise, of every
//! library there is.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::dynamic::{loaded_library, real_dlsym};

/// A function of one of PyTorch's libraries.
pub(super) struct Original {
    library: &'static CStr,
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Original {
    pub(super) const fn new(library: &'static CStr, name: &'static CStr) -> Self {
        Self { library, name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if there is none.
    #[inline]
    pub(super) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let mut address = self.find_in(self.library);
        if address.is_null() {
            let mut search = Search { original: self, found: std::ptr::null_mut() };
            // SAFETY: the callback gets back what is passed here, and it lives as long as the call.
            unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
            address = search.found;
        }
        self.address.store(address, Ordering::Release);
        address
    }

    fn find_in(&self, library: &CStr) -> *mut c_void {
        let handle = loaded_library(library);
        if handle.is_null() {
            return handle;
        }
        let address = real_dlsym(handle, self.name);
        if address.is_null() {
            crate::dynamic::forget_error();
        }
        // SAFETY: only undoes the count that `loaded_library` added.
        unsafe { libc::dlclose(handle) };
        address
    }
}

struct Search<'a> {
    original: &'a Original,
    found: *mut c_void,
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a module, and our own `Search`.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    if info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: a NUL-terminated name that lives as long as the module.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) };
    let name = path.to_bytes();
    // The main program, the kernel's own, and we ourselves.
    if !name.contains(&b'/') || name.windows(14).any(|part| part == b"libgpumemtrace") {
        return 0;
    }
    search.found = search.original.find_in(path);
    c_int::from(!search.found.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_its_library_or_in_another_one() {
        let there = Original::new(c"libc.so.6", c"getenv");
        let elsewhere = Original::new(c"libno_such_library.so", c"getenv");
        assert!(!there.get().is_null());
        assert_eq!(there.get(), elsewhere.get());
        assert!(Original::new(c"libc.so.6", c"gpumemtrace_no_such_function").get().is_null());
    }
}
