//! Which caller of a look-up gets a hook instead of the driver's function.
//!
//! Many libraries have names that begin with "cu". One name of `cuGetProcAddress` stands for
//! several functions of different signatures, and a newer driver may add more of them. The real
//! look-up therefore runs first, and only a function of the recorded driver is replaced. One of
//! these must identify it: its exact exported name, the address of an exported name, or name,
//! version and stream variant up to [`LATEST_KNOWN_CUDA`]. Every other function that shares a base
//! name with a hook is passed through and counted ([`uncovered`]).

use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

use gpumemtrace_recorder::uninterrupted;

use super::driver_fn::{DriverFn, NOT_INITIALIZED};
use super::driver_lib::{AddressOwner, is_driver_code, owner_of_address};
use super::hooked_call::HookedFn;
use super::hooks;
use super::uncovered::{self, CountingStub};
use crate::loader::symbols::is_in_other_tool;
use crate::panic_guard::catch_panic;

/// The driver API's `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_DEFAULT_STREAM: c_ulonglong = 2;
/// The newest CUDA version that the hook tables cover, with all functions and signatures (13.5).
const LATEST_KNOWN_CUDA: c_int = 13_050;
/// Names of `cuGetProcAddress` that may return a function that the tables have under another name.
const OTHER_NAMES: &[(&str, &str)] = &[("cuGraphInstantiate", "cuGraphInstantiateWithFlags")];

/// `cuGetProcAddress` is replaced, but its calls are no events.
static RESOLVERS: [HookedFn; 2] = [
    HookedFn {
        name: "cuGetProcAddress",
        base: "cuGetProcAddress",
        since: 11_030,
        per_thread_stream: false,
        hook: || get_proc_address_v1 as *mut c_void,
        real: &GET_PROC_ADDRESS,
    },
    HookedFn {
        name: "cuGetProcAddress_v2",
        base: "cuGetProcAddress",
        since: 12_000,
        per_thread_stream: false,
        hook: || get_proc_address_v2 as *mut c_void,
        real: &GET_PROC_ADDRESS_V2,
    },
];
static GET_PROC_ADDRESS: DriverFn = DriverFn::new(c"cuGetProcAddress");
static GET_PROC_ADDRESS_V2: DriverFn = DriverFn::new(c"cuGetProcAddress_v2");

/// All functions that have a hook: the recorded ones and `cuGetProcAddress`.
pub(crate) fn hooked_functions() -> impl Iterator<Item = &'static HookedFn> + Clone {
    hooks::recorded_functions().chain(&RESOLVERS)
}

/// For `dlsym`: the address to return instead of `found`. `None` leaves `found` as it is.
pub(crate) fn replacement_for_name(
    name: &CStr,
    found: *mut c_void,
    caller: *const c_void,
) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let function = hooked_functions().find(|function| function.name == name);
    let stub = uncovered::stub_for_name(name);
    let has_hook = |base| hooked_functions().any(|function| function.base == base);
    let is_known = function.is_some() || stub.is_some() || has_hook(base_name(name));
    // A look-up by the driver itself (WSL has two of them) is part of a call that is recorded, and
    // so is one by another tool that the program calls.
    if !is_known || is_driver_code(caller) || is_in_other_tool(caller) {
        return None;
    }
    if let Some(function) = function
        && is_in_other_tool(found)
    {
        return Some(hook_in_place_of(function, found));
    }
    match (owner_of_address(found), function, stub) {
        (AddressOwner::Other, ..) => None,
        (AddressOwner::RecordedDriver, Some(function), _) => Some(hook_in_place_of(function, found)),
        (AddressOwner::RecordedDriver, None, Some(stub)) => Some(stub.forward_to(found)),
        (AddressOwner::RecordedDriver, None, None) | (AddressOwner::OtherDriver, ..) => {
            Some(uncovered::spare_stub_for(found))
        }
    }
}

/// The hook to return instead of `found`. The hook may call the other one of two functions: another
/// tool's and the driver's. The first may call the second, and must not get back to itself. So
/// `found` is then passed through and counted.
fn hook_in_place_of(function: &HookedFn, found: *mut c_void) -> *mut c_void {
    let known = function.real.set_once(found);
    let is_mixed = known != found && (is_in_other_tool(found) || is_in_other_tool(known));
    if is_mixed { uncovered::spare_stub_for(found) } else { (function.hook)() }
}

/// A name without its version and stream suffixes.
fn base_name(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => base,
        _ => name,
    }
}

/// For `cuGetProcAddress`: the address to return instead of `found`.
fn replacement_for_address(
    symbol: &str,
    found: *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Option<*mut c_void> {
    let has_this_name = |function: &&HookedFn| {
        function.base == symbol
            || OTHER_NAMES.iter().any(|(name, other)| *name == symbol && *other == function.name)
    };
    // Most addresses belong to an exported function, which identifies the variant exactly.
    let is_exact = |function: &&HookedFn| function.real.get() == found;
    if !is_in_other_tool(found)
        && let Some(function) = hooked_functions().filter(has_this_name).find(is_exact)
    {
        return Some((function.hook)());
    }
    match resolve(symbol, version, flags) {
        Resolution::Hook(function) => Some(hook_in_place_of(function, found)),
        Resolution::Count(stub) => Some(stub.forward_to(found)),
        Resolution::UnknownVariant => Some(uncovered::spare_stub_for(found)),
        Resolution::Unrelated => None,
    }
}

/// The function that a name, a version and flags stand for.
#[derive(Clone, Copy, Debug)]
enum Resolution {
    Hook(&'static HookedFn),
    Count(&'static CountingStub),
    /// A variant of a hooked function, newer than the tables or of unknown signature.
    UnknownVariant,
    Unrelated,
}

/// Chooses as the driver does: the newest variant up to the requested version, and the per-thread
/// variant where requested and present.
fn resolve(symbol: &str, version: c_int, flags: c_ulonglong) -> Resolution {
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0;
    let candidates = hooked_functions().filter(|function| {
        function.base == symbol && function.since <= version && (per_thread || !function.per_thread_stream)
    });
    let newest = candidates.max_by_key(|function| (function.per_thread_stream == per_thread, function.since));
    let stub = uncovered::stub_for_base(symbol, version);
    let is_known =
        newest.is_some() || stub.is_some() || hooked_functions().any(|function| function.base == symbol);
    match (newest, stub) {
        _ if !is_known => Resolution::Unrelated,
        _ if version > LATEST_KNOWN_CUDA => Resolution::UnknownVariant,
        (Some(function), Some(stub)) if stub.since() > function.since => Resolution::Count(stub),
        (Some(function), _) => Resolution::Hook(function),
        (None, Some(stub)) => Resolution::Count(stub),
        (None, None) => Resolution::UnknownVariant,
    }
}

type GetProcAddressV1 =
    unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int;
type GetProcAddressV2 =
    unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int) -> c_int;

/// Replaces the address that a successful look-up left in `pfn`.
///
/// # Safety
/// The arguments of a `cuGetProcAddress` that has just returned 0.
unsafe fn replace_result(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: c_ulonglong) {
    if symbol.is_null() || pfn.is_null() {
        return;
    }
    // SAFETY: the driver has just read `symbol`, and written `pfn` or left it as the caller had it.
    let (found, symbol) = unsafe { (*pfn, CStr::from_ptr(symbol)) };
    if found.is_null() {
        return;
    }
    let replacement = catch_panic(|| {
        let symbol = symbol.to_str().ok()?;
        uninterrupted(|| replacement_for_address(symbol, found, version, flags))
    });
    if let Some(replacement) = replacement {
        // SAFETY: as above.
        unsafe { *pfn = replacement };
    }
}

/// The hook for `cuGetProcAddress` of CUDA 11.3.
unsafe extern "C-unwind" fn get_proc_address_v1(
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
    let real = unsafe { std::mem::transmute::<*mut c_void, GetProcAddressV1>(real) };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags) };
    if result == 0 {
        // SAFETY: the call has just succeeded with these arguments.
        unsafe { replace_result(symbol, pfn, version, flags) };
    }
    result
}

/// The hook for `cuGetProcAddress` of CUDA 12.
unsafe extern "C-unwind" fn get_proc_address_v2(
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
    let real = unsafe { std::mem::transmute::<*mut c_void, GetProcAddressV2>(real) };
    // SAFETY: the caller's own arguments.
    let result = unsafe { real(symbol, pfn, version, flags, status) };
    if result == 0 {
        // SAFETY: the call has just succeeded with these arguments.
        unsafe { replace_result(symbol, pfn, version, flags) };
    }
    result
}

#[cfg(not(test))]
#[allow(non_snake_case, reason = "the names are the driver's")]
mod exported {
    use super::{c_char, c_int, c_ulonglong, c_void, get_proc_address_v1, get_proc_address_v2};

    /// For callers that are linked to libcuda.
    ///
    /// # Safety
    /// As the driver's function.
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn cuGetProcAddress(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
    ) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { get_proc_address_v1(symbol, pfn, version, flags) }
    }

    /// For callers that are linked to libcuda.
    ///
    /// # Safety
    /// As the driver's function.
    #[unsafe(no_mangle)]
    unsafe extern "C-unwind" fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
        status: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe { get_proc_address_v2(symbol, pfn, version, flags, status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(base: &str, version: c_int, flags: c_ulonglong) -> Result<&'static str, &'static str> {
        match resolve(base, version, flags) {
            Resolution::Hook(function) => Ok(function.name),
            Resolution::Count(_) => Err("counted"),
            Resolution::UnknownVariant => Err("unknown"),
            Resolution::Unrelated => Err("unrelated"),
        }
    }

    #[test]
    fn get_proc_address_variant_follows_version_and_stream_flag() {
        assert_eq!(resolved("cuMemAlloc", 3_020, 0), Ok("cuMemAlloc_v2"));
        assert_eq!(resolved("cuMemAllocAsync", 11_020, 0), Ok("cuMemAllocAsync"));
        assert_eq!(resolved("cuMemAllocAsync", 12_000, 1), Ok("cuMemAllocAsync"));
        assert_eq!(resolved("cuMemAllocAsync", 12_000, 2), Ok("cuMemAllocAsync_ptsz"));
        assert_eq!(
            resolved("cuMemAlloc", 12_000, 2),
            Ok("cuMemAlloc_v2"),
            "no per-thread variant: the plain one"
        );
        assert_eq!(resolved("cuGraphAddNode", 12_020, 0), Ok("cuGraphAddNode"));
        assert_eq!(resolved("cuGraphAddNode", 12_030, 0), Ok("cuGraphAddNode_v2"));
        assert_eq!(resolved("cuMulticastBindMem", 13_000, 0), Ok("cuMulticastBindMem"));
        assert_eq!(resolved("cuMulticastBindMem", 13_010, 0), Ok("cuMulticastBindMem_v2"));
        assert_eq!(resolved("cuCtxCreate", 12_040, 0), Ok("cuCtxCreate_v3"));
        assert_eq!(resolved("cuGetProcAddress", 11_030, 0), Ok("cuGetProcAddress"));
        assert_eq!(resolved("cuGetProcAddress", 12_000, 0), Ok("cuGetProcAddress_v2"));
        assert_eq!(resolved("cuMemcpy", 12_000, 0), Err("unrelated"));
    }

    #[test]
    fn unknown_variants_are_counted_and_never_hooked() {
        assert_eq!(
            resolved("cuMemAlloc", 2_000, 0),
            Err("counted"),
            "the 32-bit function has another signature"
        );
        assert_eq!(
            resolved("cuMemAlloc", LATEST_KNOWN_CUDA + 10, 0),
            Err("unknown"),
            "possibly a future variant"
        );
        assert_eq!(resolved("cuGraphInstantiate", 12_000, 0), Err("counted"), "one name with two signatures");
        assert_eq!(resolved("cuGraphInstantiate", 11_000, 0), Ok("cuGraphInstantiate_v2"));
    }

    #[test]
    fn base_name_strips_stream_suffix_then_version() {
        assert_eq!(base_name("cuMemAllocAsync_v3_ptsz"), "cuMemAllocAsync");
        assert_eq!(base_name("cuMemAlloc_v2"), "cuMemAlloc");
        assert_eq!(base_name("cudnnConvolutionForward_v8x"), "cudnnConvolutionForward_v8x");
    }

    #[test]
    fn function_of_another_library_is_not_replaced() {
        let elsewhere = function_of_another_library_is_not_replaced as *mut c_void;
        assert_eq!(replacement_for_name(c"cuMemAlloc_v2", elsewhere, elsewhere), None);
        assert_eq!(replacement_for_name(c"cudnnCreate", elsewhere, elsewhere), None);
    }
}
