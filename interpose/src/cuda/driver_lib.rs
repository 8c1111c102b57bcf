//! Which loaded copy of libcuda is recorded.
//!
//! A hook caches the address of its real function. That address would become stale if the program
//! reloaded libcuda, or wrong if it used a second copy. The first driver that a look-up or a call
//! reaches is therefore the recorded one. It stays loaded for the life of the process, and
//! functions of other copies are never mixed with its own.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader::symbols::{
    clear_dlerror, is_in_library, library_at, loaded_library, look_up_or_null, real_dlsym,
};

/// Prefix of the file names of the driver's library.
const DRIVER_FILE_PREFIX: &str = "libcuda.so";

/// Load address of the recorded driver; null until there is one.
static BASE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Our own `dlopen` handle of the recorded driver.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The kind of library that an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressOwner {
    RecordedDriver,
    /// Another copy of the driver.
    OtherDriver,
    /// No driver, or no library at all.
    Other,
}

/// Classifies an address. The first driver that is classified becomes the recorded one.
pub(crate) fn owner_of_address(address: *const c_void) -> AddressOwner {
    let Some(library) = library_at(address) else { return AddressOwner::Other };
    if !library.has_file_name_prefix(DRIVER_FILE_PREFIX) {
        return AddressOwner::Other;
    }
    match BASE.compare_exchange(std::ptr::null_mut(), library.base, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the loader's own name of a loaded library; only reference count and flags
            // change.
            let handle = unsafe {
                libc::dlopen(library.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE)
            };
            if handle.is_null() {
                clear_dlerror();
            }
            HANDLE.store(handle, Ordering::Release);
            AddressOwner::RecordedDriver
        }
        Err(base) if base == library.base => AddressOwner::RecordedDriver,
        Err(_) => AddressOwner::OtherDriver,
    }
}

/// True if the address lies in any copy of the driver.
pub(crate) fn is_driver_code(address: *const c_void) -> bool {
    is_in_library(address, DRIVER_FILE_PREFIX)
}

/// The recorded driver's own function of this name; null if there is none.
pub(crate) fn driver_symbol(name: &CStr) -> *mut c_void {
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return look_up_or_null(known, name);
    }
    let library = loaded_library(c"libcuda.so.1");
    if library.is_null() {
        return std::ptr::null_mut();
    }
    let found = look_up_or_null(library, name);
    let is_recorded = !found.is_null() && owner_of_address(found) == AddressOwner::RecordedDriver;
    // SAFETY: drops the reference of `loaded_library`; the recorded driver has one of its own.
    unsafe { libc::dlclose(library) };
    if is_recorded { found } else { std::ptr::null_mut() }
}

/// The definition that a caller linked to this name would reach without us.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    let found = real_dlsym(libc::RTLD_NEXT, name);
    if found.is_null() {
        // The driver is not in the global scope: the caller's own local scope holds it.
        clear_dlerror();
        return driver_symbol(name);
    }
    found
}

/// True if a driver is loaded.
pub(crate) fn is_driver_loaded() -> bool {
    let library = loaded_library(c"libcuda.so.1");
    if library.is_null() {
        return false;
    }
    // SAFETY: drops the reference of `loaded_library`.
    unsafe { libc::dlclose(library) };
    true
}

/// True once a look-up or a call has reached a driver.
pub(crate) fn is_recorded_driver_known() -> bool {
    !BASE.load(Ordering::Acquire).is_null()
}
