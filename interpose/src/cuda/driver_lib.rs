//! The one driver library that is recorded.
//!
//! Constraint: a wrapper calls an address that it learned once. A program may unload libcuda and load it again, or hold two
//! copies of it, and the address would be the wrong one or none. Consequence: the first driver that is met is the one we
//! record; it is kept loaded for ever, and functions of any other copy are never taken for its own.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader::symbols::{forget_error, is_in_library, library_of, loaded_library, real_dlsym};

/// How the file names of the driver's library begin.
const DRIVER: &str = "libcuda.so";

/// Where the recorded driver is mapped; null until one is met.
static BASE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Our reference to it.
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whose function an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The driver that is recorded.
    Driver,
    /// Another copy of the driver.
    OtherDriver,
    /// No driver.
    Else,
}

/// Says whose function an address is; the first driver that is met becomes the recorded one.
pub(crate) fn owner_of(address: *const c_void) -> Owner {
    let Some(library) = library_of(address) else { return Owner::Else };
    if !library.is_named(DRIVER) {
        return Owner::Else;
    }
    match BASE.compare_exchange(std::ptr::null_mut(), library.base, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the loader's own name of a library that is loaded: only its reference count and flags change.
            let handle = unsafe {
                libc::dlopen(library.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE)
            };
            if handle.is_null() {
                forget_error();
            }
            HANDLE.store(handle, Ordering::Release);
            Owner::Driver
        }
        Err(base) if base == library.base => Owner::Driver,
        Err(_) => Owner::OtherDriver,
    }
}

/// True if the code at an address belongs to a driver, whichever: what it looks up is its own business.
pub(crate) fn is_driver_code(address: *const c_void) -> bool {
    is_in_library(address, DRIVER)
}

/// A function of the recorded driver, past our hooks; null if there is none.
pub(crate) fn driver_symbol(name: &CStr) -> *mut c_void {
    let known = HANDLE.load(Ordering::Acquire);
    if !known.is_null() {
        return look_up(known, name);
    }
    let library = loaded_library(c"libcuda.so.1");
    if library.is_null() {
        return std::ptr::null_mut();
    }
    let found = look_up(library, name);
    let ours = !found.is_null() && owner_of(found) == Owner::Driver;
    // SAFETY: only undoes the count that `loaded_library` added; the recorded driver has one of its own.
    unsafe { libc::dlclose(library) };
    if ours { found } else { std::ptr::null_mut() }
}

fn look_up(library: *mut c_void, name: &CStr) -> *mut c_void {
    let found = real_dlsym(library, name);
    if found.is_null() {
        forget_error();
    }
    found
}

/// What a caller that is linked to a driver function would have got without us: the next definition after ours.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    let found = real_dlsym(libc::RTLD_NEXT, name);
    if found.is_null() {
        // The driver is not in the global scope: the caller brought it along in its own.
        forget_error();
        return driver_symbol(name);
    }
    found
}

/// True if a driver is loaded.
pub(crate) fn is_loaded() -> bool {
    let library = loaded_library(c"libcuda.so.1");
    if library.is_null() {
        return false;
    }
    // SAFETY: only undoes the count that `loaded_library` added.
    unsafe { libc::dlclose(library) };
    true
}

/// True once a driver has been met, by a look-up or by a call.
pub(crate) fn was_met() -> bool {
    !BASE.load(Ordering::Acquire).is_null()
}
