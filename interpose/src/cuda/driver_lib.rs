//! Which loaded copy of libcuda is recorded.
//!
//! A hook caches the address of its real function. That address would become stale if the program
//! reloaded libcuda, or wrong if it used a second copy. The first driver that a look-up or a call
//! reaches is therefore the recorded one. It is kept loaded from the first call that may take the
//! loader's lock ([`keep_loaded`]), and functions of other copies are never mixed with its own.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use gpumemtrace_recorder::elf::find_module;

use crate::loader::symbols::{is_in_library, is_loaded, library_at};

/// The name by which programs load the driver.
const DRIVER: &CStr = c"libcuda.so.1";
/// Prefix of the file names of the driver's library.
const DRIVER_FILE_PREFIX: &str = "libcuda.so";

/// Load address of the recorded driver; null until there is one.
static BASE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Set once the recorded driver cannot be unloaded any more.
static IS_KEPT: AtomicBool = AtomicBool::new(false);
/// Number of modules that were loaded when the process started; 0 if we came later. They are the
/// first ones of the loader's list, and a caller that is linked to a name finds it there in order.
static STARTUP_MODULES: AtomicUsize = AtomicUsize::new(0);

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
    if is_recorded(library.base) { AddressOwner::RecordedDriver } else { AddressOwner::OtherDriver }
}

/// True if the driver at this address is the recorded one. The first driver becomes it.
fn is_recorded(base: *mut c_void) -> bool {
    match BASE.compare_exchange(std::ptr::null_mut(), base, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(recorded) => recorded == base,
    }
}

/// Keeps the recorded driver loaded from now on, if there is one. Takes the loader's lock, so it
/// may only be called where the program takes that lock itself, and on a thread that may be stuck.
pub(crate) fn keep_loaded() {
    let base = BASE.load(Ordering::Acquire);
    if base.is_null() || IS_KEPT.load(Ordering::Acquire) {
        return;
    }
    // While this thread waits for the lock, another one may unload the driver and its name.
    let mut path = [0; 1024];
    let is_copied = find_module(|module| {
        let name = module.path.to_bytes_with_nul();
        (module.start() == base as usize && name.len() <= path.len())
            .then(|| path[..name.len()].copy_from_slice(name))
    });
    if is_copied.is_none() {
        return;
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: a NUL-terminated name; only reference count and flags of a loaded library change.
    let handle = unsafe { libc::dlopen(path.as_ptr().cast(), flags) };
    if handle.is_null() {
        // The program's next `dlerror` must not show an error of ours.
        // SAFETY: returns and clears the calling thread's own message.
        unsafe { libc::dlerror() };
        return;
    }
    // Not before: another thread that is about to unload the driver must not rely on this one.
    IS_KEPT.store(true, Ordering::Release);
}

/// True if the address lies in any copy of the driver.
pub(crate) fn is_driver_code(address: *const c_void) -> bool {
    is_in_library(address, DRIVER_FILE_PREFIX)
}

/// The recorded driver's own function of this name; null if there is none.
pub(crate) fn driver_symbol(name: &CStr) -> *mut c_void {
    let base = BASE.load(Ordering::Acquire);
    let found = find_module(|module| {
        let is_driver =
            if base.is_null() { module.is_named(DRIVER) } else { module.start() == base as usize };
        is_driver.then(|| module.symbol(name).filter(|_| is_recorded(module.start() as *mut c_void)))
    });
    pointer(found.flatten())
}

/// The definition that a caller linked to this name would reach without us.
pub(crate) fn next_symbol(name: &CStr) -> *mut c_void {
    static HERE: u8 = 0;
    let here = (&raw const HERE) as usize;
    let mut left = STARTUP_MODULES.load(Ordering::Acquire);
    let mut is_after_us = false;
    let found = find_module(|module| {
        let is_startup = left > 0;
        left = left.saturating_sub(1);
        let next = if is_startup && is_after_us { module.symbol(name) } else { None };
        is_after_us |= module.contains(here, 1);
        next
    });
    // Otherwise the driver was loaded later, into the scope of its caller or of the program.
    found.map_or_else(|| driver_symbol(name), |address| pointer(Some(address)))
}

fn pointer(address: Option<usize>) -> *mut c_void {
    address.map_or(std::ptr::null_mut(), |address| address as *mut c_void)
}

/// Notes the modules that are loaded now as those of the process's start. For the constructor of a
/// preloaded library.
pub(crate) fn note_startup_modules() {
    let mut count = 0;
    find_module(|_| {
        count += 1;
        None::<()>
    });
    STARTUP_MODULES.store(count, Ordering::Release);
}

/// True if a driver is loaded.
pub(crate) fn is_driver_loaded() -> bool {
    is_loaded(DRIVER)
}

/// True once a look-up or a call has reached a driver.
pub(crate) fn is_recorded_driver_known() -> bool {
    !BASE.load(Ordering::Acquire).is_null()
}
