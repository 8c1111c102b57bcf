//! When a caller who looks up a driver function gets ours.
//!
//! Constraint: names that begin with "cu" belong to many libraries, and one name of `cuGetProcAddress` stands for several
//! functions of different signatures. Consequence: the real look-up runs first; only an exact name whose result lies inside
//! libcuda, or an address that we know to be one of libcuda's exported ones, is replaced. An address that is neither is
//! judged by name, version and stream variant. Anything else passes untouched.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::table::{ENTRIES, real_proc_address_v1, real_proc_address_v2};
use super::uncovered;
use super::wrapper::{Entry, NOT_INITIALIZED};
use crate::dynamic::is_in_library;
use crate::guard::quietly;

/// `cuGetProcAddress` flag: variants for the per-thread default stream.
const PER_THREAD_DEFAULT_STREAM: c_ulonglong = 2;

/// For `dlsym`: our function for a name that was found, if there is one and it is libcuda's.
pub(crate) fn replacement_for_name(name: &CStr, found: *mut c_void) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let entry = ENTRIES.iter().find(|entry| entry.name == name);
    let stub = uncovered::find(name);
    if entry.is_none() && stub.is_none() || !is_in_library(found, "libcuda.so") {
        return None;
    }
    if let Some(entry) = entry {
        entry.real.learn(found);
        return Some((entry.wrapper)());
    }
    stub.map(|stub| stub.learn(found))
}

/// For `cuGetProcAddress`: our function for an address it gave.
fn replacement_for_address(
    symbol: &str,
    found: *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Option<*mut c_void> {
    let same_base = || ENTRIES.iter().filter(|entry| entry.base == symbol);
    // Most addresses are those of exported functions, which says exactly which variant they are.
    let exact = same_base().find(|entry| entry.real.get() == found);
    let entry = exact.or_else(|| choose(same_base(), version, flags));
    if let Some(entry) = entry {
        entry.real.learn(found);
        return Some((entry.wrapper)());
    }
    uncovered::find_by_base(symbol, version).map(|stub| stub.learn(found))
}

/// The variant that these arguments mean: the newest not newer than asked for, with the stream variant if there is one.
fn choose<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    version: c_int,
    flags: c_ulonglong,
) -> Option<&'a Entry> {
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0;
    let old_enough =
        entries.filter(|entry| entry.since <= version && (per_thread || !entry.per_thread_stream));
    old_enough.max_by_key(|entry| (entry.per_thread_stream == per_thread, entry.since))
}

type ProcAddressV1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int;
type ProcAddressV2 =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int) -> c_int;

/// Replaces what a successful look-up left in `pfn`.
///
/// # Safety
/// The arguments of a `cuGetProcAddress` that has just returned 0.
unsafe fn replace(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: c_ulonglong) {
    if symbol.is_null() || pfn.is_null() {
        return;
    }
    // SAFETY: the driver has just written through `pfn` (or left it as the caller had it) and read `symbol`.
    let (found, symbol) = unsafe { (*pfn, CStr::from_ptr(symbol)) };
    if found.is_null() {
        return;
    }
    let replacement = quietly(|| replacement_for_address(symbol.to_str().ok()?, found, version, flags));
    if let Some(replacement) = replacement {
        // SAFETY: as above.
        unsafe { *pfn = replacement };
    }
}

/// `cuGetProcAddress` of CUDA 11.3.
pub(crate) unsafe extern "C" fn proc_address_v1(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> c_int {
    let real = real_proc_address_v1();
    if real.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: looked up under this name, which has this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, ProcAddressV1>(real) };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags) };
    if result == 0 {
        // SAFETY: they have just been used successfully.
        unsafe { replace(symbol, pfn, version, flags) };
    }
    result
}

/// `cuGetProcAddress` of CUDA 12.
pub(crate) unsafe extern "C" fn proc_address_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> c_int {
    let real = real_proc_address_v2();
    if real.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: looked up under this name, which has this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, ProcAddressV2>(real) };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags, status) };
    if result == 0 {
        // SAFETY: they have just been used successfully.
        unsafe { replace(symbol, pfn, version, flags) };
    }
    result
}

#[cfg(not(test))]
#[allow(non_snake_case, reason = "the names are the driver's")]
mod exported {
    use super::{c_char, c_int, c_ulonglong, c_void, proc_address_v1, proc_address_v2};

    /// For callers that are linked to libcuda.
    ///
    /// # Safety
    /// As the real one.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn cuGetProcAddress(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
    ) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { proc_address_v1(symbol, pfn, version, flags) }
    }

    /// For callers that are linked to libcuda.
    ///
    /// # Safety
    /// As the real one.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
        status: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { proc_address_v2(symbol, pfn, version, flags, status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(base: &str, version: c_int, flags: c_ulonglong) -> Option<&'static str> {
        choose(ENTRIES.iter().filter(|entry| entry.base == base), version, flags).map(|entry| entry.name)
    }

    #[test]
    fn version_and_flags_choose_the_variant_as_the_driver_does() {
        assert_eq!(chosen("cuMemAlloc", 3_020, 0), Some("cuMemAlloc_v2"));
        assert_eq!(chosen("cuMemAlloc", 2_000, 0), None, "the 32-bit function is another one");
        assert_eq!(chosen("cuMemAllocAsync", 11_020, 0), Some("cuMemAllocAsync"));
        assert_eq!(chosen("cuMemAllocAsync", 12_000, 1), Some("cuMemAllocAsync"));
        assert_eq!(chosen("cuMemAllocAsync", 12_000, 2), Some("cuMemAllocAsync_ptsz"));
        assert_eq!(chosen("cuMemAlloc", 12_000, 2), Some("cuMemAlloc_v2"), "no such variant: the plain one");
        assert_eq!(chosen("cuGetProcAddress", 11_030, 0), Some("cuGetProcAddress"));
        assert_eq!(chosen("cuGetProcAddress", 12_000, 0), Some("cuGetProcAddress_v2"));
        assert_eq!(chosen("cuMemcpy", 12_000, 0), None);
    }

    #[test]
    fn a_name_found_in_another_library_is_left_alone() {
        let elsewhere = a_name_found_in_another_library_is_left_alone as *mut c_void;
        assert_eq!(replacement_for_name(c"cuMemAlloc_v2", elsewhere), None);
        assert_eq!(replacement_for_name(c"cudnnCreate", elsewhere), None);
    }
}
