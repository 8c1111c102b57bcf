//! When a caller who looks up a driver function gets ours.
//!
//! Constraint: names that begin with "cu" belong to many libraries, one name of `cuGetProcAddress` stands for several
//! functions of different signatures, and a driver newer than us may have more of them. Consequence: the real look-up runs
//! first, and only a function of the recorded driver is replaced: by exact exported name, by an address that is known to be
//! an exported one's, or by name, version and stream variant up to the last CUDA version whose functions we know. Anything
//! else that goes by a name of ours passes untouched and is counted.

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use super::driver_lib::{Owner, is_driver_code, owner_of};
use super::hooked_call::{Entry, NOT_INITIALIZED};
use super::hooks::{GET_PROC_ADDRESS, GET_PROC_ADDRESS_V2, entries};
use super::uncovered::{self, Stub};
use crate::panic_guard::quietly;

/// `cuGetProcAddress` flag: variants for the per-thread default stream.
const PER_THREAD_DEFAULT_STREAM: c_ulonglong = 2;
/// The newest CUDA version whose functions and signatures the table was written for.
const LATEST_KNOWN: c_int = 13_050;
/// Names under which `cuGetProcAddress` may give a function that the table has under another.
const OTHER_NAMES: &[(&str, &str)] = &[("cuGraphInstantiate", "cuGraphInstantiateWithFlags")];

/// For `dlsym`: what the caller gets instead of `found`, if it is a function of the driver that goes by a name of ours.
pub(crate) fn replacement_for_name(
    name: &CStr,
    found: *mut c_void,
    caller: *const c_void,
) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let entry = entries().find(|entry| entry.name == name);
    let stub = uncovered::find(name);
    let is_ours = entry.is_some() || stub.is_some() || entries().any(|entry| entry.base == base_of(name));
    // What a driver looks up in a driver (there are two under WSL) is part of a call that is recorded already.
    if !is_ours || is_driver_code(caller) {
        return None;
    }
    match (owner_of(found), entry, stub) {
        (Owner::Else, ..) => None,
        (Owner::Driver, Some(entry), _) => {
            entry.real.learn(found);
            Some((entry.wrapper)())
        }
        (Owner::Driver, None, Some(stub)) => Some(stub.learn(found)),
        (Owner::Driver, None, None) | (Owner::OtherDriver, ..) => Some(uncovered::count_calls_of(found)),
    }
}

/// A name without the suffixes for version and stream variant.
fn base_of(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// For `cuGetProcAddress` of the recorded driver: our function for an address it gave.
fn replacement_for_address(
    symbol: &str,
    found: *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Option<*mut c_void> {
    let under_this_name = |entry: &&Entry| {
        entry.base == symbol
            || OTHER_NAMES.iter().any(|(name, other)| *name == symbol && *other == entry.name)
    };
    // Most addresses are those of exported functions, which says exactly which variant they are.
    let exact = entries().filter(under_this_name).find(|entry| entry.real.get() == found);
    if let Some(entry) = exact {
        return Some((entry.wrapper)());
    }
    match choose(symbol, version, flags) {
        Choice::Entry(entry) => {
            entry.real.learn(found);
            Some((entry.wrapper)())
        }
        Choice::Stub(stub) => Some(stub.learn(found)),
        Choice::Unknown => Some(uncovered::count_calls_of(found)),
        Choice::NotOurs => None,
    }
}

/// What a name, a version and flags stand for.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Entry(&'static Entry),
    Stub(&'static Stub),
    /// A variant of one of our functions that is newer than we are, or whose signature the name does not say.
    Unknown,
    NotOurs,
}

/// The newest variant not newer than asked for, with the stream variant if there is one; as the driver itself chooses.
fn choose(symbol: &str, version: c_int, flags: c_ulonglong) -> Choice {
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0;
    let fitting = entries().filter(|entry| {
        entry.base == symbol && entry.since <= version && (per_thread || !entry.per_thread_stream)
    });
    let entry = fitting.max_by_key(|entry| (entry.per_thread_stream == per_thread, entry.since));
    let stub = uncovered::find_by_base(symbol, version);
    let known = entry.is_some() || stub.is_some() || entries().any(|entry| entry.base == symbol);
    match (entry, stub) {
        _ if !known => Choice::NotOurs,
        _ if version > LATEST_KNOWN => Choice::Unknown,
        (Some(entry), Some(stub)) if stub.since() > entry.since => Choice::Stub(stub),
        (Some(entry), _) => Choice::Entry(entry),
        (None, Some(stub)) => Choice::Stub(stub),
        (None, None) => Choice::Unknown,
    }
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
    let real = GET_PROC_ADDRESS.get();
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
    let real = GET_PROC_ADDRESS_V2.get();
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

    fn chosen(base: &str, version: c_int, flags: c_ulonglong) -> Result<&'static str, &'static str> {
        match choose(base, version, flags) {
            Choice::Entry(entry) => Ok(entry.name),
            Choice::Stub(_) => Err("counted"),
            Choice::Unknown => Err("unknown"),
            Choice::NotOurs => Err("not ours"),
        }
    }

    #[test]
    fn version_and_flags_choose_the_variant_as_the_driver_does() {
        assert_eq!(chosen("cuMemAlloc", 3_020, 0), Ok("cuMemAlloc_v2"));
        assert_eq!(chosen("cuMemAllocAsync", 11_020, 0), Ok("cuMemAllocAsync"));
        assert_eq!(chosen("cuMemAllocAsync", 12_000, 1), Ok("cuMemAllocAsync"));
        assert_eq!(chosen("cuMemAllocAsync", 12_000, 2), Ok("cuMemAllocAsync_ptsz"));
        assert_eq!(chosen("cuMemAlloc", 12_000, 2), Ok("cuMemAlloc_v2"), "no such variant: the plain one");
        assert_eq!(chosen("cuGraphAddNode", 12_020, 0), Ok("cuGraphAddNode"));
        assert_eq!(chosen("cuGraphAddNode", 12_030, 0), Ok("cuGraphAddNode_v2"));
        assert_eq!(chosen("cuMulticastBindMem", 13_000, 0), Ok("cuMulticastBindMem"));
        assert_eq!(chosen("cuMulticastBindMem", 13_010, 0), Ok("cuMulticastBindMem_v2"));
        assert_eq!(chosen("cuCtxCreate", 12_040, 0), Ok("cuCtxCreate_v3"));
        assert_eq!(chosen("cuGetProcAddress", 11_030, 0), Ok("cuGetProcAddress"));
        assert_eq!(chosen("cuGetProcAddress", 12_000, 0), Ok("cuGetProcAddress_v2"));
        assert_eq!(chosen("cuMemcpy", 12_000, 0), Err("not ours"));
    }

    #[test]
    fn what_we_cannot_know_is_never_wrapped() {
        assert_eq!(chosen("cuMemAlloc", 2_000, 0), Err("counted"), "the 32-bit function is another one");
        assert_eq!(
            chosen("cuMemAlloc", LATEST_KNOWN + 10, 0),
            Err("unknown"),
            "it may be a variant of the future"
        );
        assert_eq!(chosen("cuGraphInstantiate", 12_000, 0), Err("counted"), "one name, two signatures");
        assert_eq!(chosen("cuGraphInstantiate", 11_000, 0), Ok("cuGraphInstantiate_v2"));
    }

    #[test]
    fn suffixes_come_off_in_the_right_order() {
        assert_eq!(base_of("cuMemAllocAsync_v3_ptsz"), "cuMemAllocAsync");
        assert_eq!(base_of("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_of("cudnnConvolutionForward_v8x"), "cudnnConvolutionForward_v8x");
    }

    #[test]
    fn a_name_found_in_another_library_is_left_alone() {
        let elsewhere = a_name_found_in_another_library_is_left_alone as *mut c_void;
        assert_eq!(replacement_for_name(c"cuMemAlloc_v2", elsewhere, elsewhere), None);
        assert_eq!(replacement_for_name(c"cudnnCreate", elsewhere, elsewhere), None);
    }
}
