//! The function of PyTorch's behind a name that we define too.
//!
//! Constraint: PyTorch's libraries are not in the scope that is searched after us (`RTLD_NEXT`), and a call that came to us must
//! reach them. Consequence: the function is asked of its library, found once by name; should that be called otherwise, of every
//! library there is.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader::symbols::{library_of, loaded_library, real_dlsym};

/// Instead of an address: looked for in vain. Who calls us has its libraries loaded, so it is not looked for again.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

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
        let mut address = self.find_in(self.library);
        if address.is_null() {
            let others = loaded_libraries();
            address = others
                .iter()
                .map(|library| self.find_in(library))
                .find(|at| !at.is_null())
                .unwrap_or(address);
        }
        self.address.store(if address.is_null() { MISSING } else { address }, Ordering::Release);
        address
    }

    fn find_in(&self, library: &CStr) -> *mut c_void {
        let handle = loaded_library(library);
        if handle.is_null() {
            return handle;
        }
        let mut address = real_dlsym(handle, self.name);
        if address.is_null() {
            crate::loader::symbols::forget_error();
        } else if is_our_own(address) {
            address = std::ptr::null_mut();
        }
        // SAFETY: only undoes the count that `loaded_library` added.
        unsafe { libc::dlclose(handle) };
        address
    }
}

/// Under whatever name we were loaded, and also where it was found through a library that is linked to us: the call would come back
/// to us for ever.
fn is_our_own(address: *mut c_void) -> bool {
    static HERE: u8 = 0;
    let base = |address| library_of(address).map(|library| library.base);
    base(address) == base((&raw const HERE).cast())
}

/// The files of all loaded libraries. They are only listed under the loader's lock: to open one takes another lock, which
/// other threads take first.
fn loaded_libraries() -> Vec<CString> {
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: the callback gets back what is passed here, and it lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut files).cast()) };
    files
}

unsafe extern "C" fn list(info: *mut libc::dl_phdr_info, _: usize, files: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a module, and our own list.
    let (info, files) = unsafe { (&*info, &mut *files.cast::<Vec<CString>>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: a NUL-terminated name that lives as long as the module.
        let file = unsafe { CStr::from_ptr(info.dlpi_name) };
        // Not the main program and the kernel's own.
        if file.to_bytes().contains(&b'/') {
            files.push(file.to_owned());
        }
    }
    0
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
        let nowhere = Original::new(c"libc.so.6", c"gpumemtrace_no_such_function");
        // The tests are their own library.
        assert!(is_our_own(is_our_own as *mut c_void) && !is_our_own(there.get()));
        for _ in 0..2 {
            assert!(nowhere.get().is_null(), "also when it is asked for again");
        }
    }
}
