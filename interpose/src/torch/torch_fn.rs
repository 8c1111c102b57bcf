//! PyTorch's own function behind a name that we export too.
//!
//! PyTorch's libraries are not in the scope that `RTLD_NEXT` searches, and a hooked call must reach
//! them. The function is looked up once, in its library by name. If that library has another name,
//! all loaded libraries are searched.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpumemtrace_recorder::uninterrupted;

use crate::loader::symbols::{library_at, loaded_library, look_up_or_null};

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
        let address = uninterrupted(|| {
            let address = self.find_in(self.library);
            if !address.is_null() {
                return address;
            }
            let others = loaded_library_files();
            others.iter().map(|library| self.find_in(library)).find(|at| !at.is_null()).unwrap_or(address)
        });
        self.address.store(if address.is_null() { MISSING } else { address }, Ordering::Release);
        address
    }

    fn find_in(&self, library: &CStr) -> *mut c_void {
        let handle = loaded_library(library);
        if handle.is_null() {
            return handle;
        }
        let mut address = look_up_or_null(handle, self.name);
        if !address.is_null() && is_in_this_library(address) {
            address = std::ptr::null_mut();
        }
        // SAFETY: drops the reference of `loaded_library`.
        unsafe { libc::dlclose(handle) };
        address
    }
}

/// True if the address is our own hook, whatever file name we were loaded by. A search through a
/// library that is linked to us finds it; calling it would recurse without end.
fn is_in_this_library(address: *mut c_void) -> bool {
    static HERE: u8 = 0;
    let base = |address| library_at(address).map(|library| library.base);
    base(address) == base((&raw const HERE).cast())
}

/// The files of all loaded libraries. The callback only lists them: it runs under one of the
/// loader's locks, and `dlopen` takes another one, which other threads take first.
fn loaded_library_files() -> Vec<CString> {
    let mut files: Vec<CString> = Vec::new();
    // SAFETY: the callback gets back what is passed here, and it lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(push_file), (&raw mut files).cast()) };
    files
}

unsafe extern "C" fn push_file(info: *mut libc::dl_phdr_info, _: usize, files: *mut c_void) -> c_int {
    // SAFETY: the loader's description of a module, and our own list.
    let (info, files) = unsafe { (&*info, &mut *files.cast::<Vec<CString>>()) };
    if !info.dlpi_name.is_null() {
        // SAFETY: a NUL-terminated name that lives as long as the module.
        let file = unsafe { CStr::from_ptr(info.dlpi_name) };
        // The main program and the vDSO have no path.
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
    fn function_is_found_in_its_library_or_any_other() {
        let there = TorchFn::new(c"libc.so.6", c"getenv");
        let elsewhere = TorchFn::new(c"libno_such_library.so", c"getenv");
        assert!(!there.get().is_null());
        assert_eq!(there.get(), elsewhere.get());
        let nowhere = TorchFn::new(c"libc.so.6", c"gpumemtrace_no_such_function");
        // The test binary stands for our library.
        assert!(is_in_this_library(is_in_this_library as *mut c_void) && !is_in_this_library(there.get()));
        for _ in 0..2 {
            assert!(nowhere.get().is_null(), "also at the second call");
        }
    }
}
