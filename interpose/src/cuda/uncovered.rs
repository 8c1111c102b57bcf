//! Functions that allocate or free memory and are not recorded: their calls are counted.
//!
//! A CUDA runtime looks up every function of the driver, so a look-up does not mean a call. A
//! caller therefore gets a stub that increments a counter and jumps to the real function. The stub
//! leaves all argument registers and the stack untouched, so it works for any signature. "uncovered
//! calls: 0" in a report means that no call of such a function took place.
//!
//! Most of these functions cannot be listed in advance: they belong to a newer driver or to a
//! second copy of it. A fixed number of spare stubs serves them. When all spares are in use, the
//! look-up itself is counted.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::loader::symbols::describe_address;

/// A naked function that counts its calls and forwards them.
#[derive(Debug)]
pub(crate) struct CountingStub {
    /// Exported name; empty if the function has none of its own.
    name: &'static str,
    /// Name as `cuGetProcAddress` takes it; empty for a spare stub.
    base: &'static str,
    since: c_int,
    address: fn() -> *mut c_void,
    real: &'static AtomicPtr<c_void>,
    calls: &'static AtomicUsize,
}

/// Look-ups that found all spare stubs in use.
static LOOKUPS_WITHOUT_STUB: AtomicUsize = AtomicUsize::new(0);

impl CountingStub {
    /// The CUDA version that introduced the function.
    pub(crate) fn since(&self) -> c_int {
        self.since
    }

    /// Returns a stub that forwards to `real`: this one, or a spare one if this one already
    /// forwards to another function.
    pub(crate) fn forward_to(&self, real: *mut c_void) -> *mut c_void {
        self.try_forward_to(real).unwrap_or_else(|| spare_stub_for(real))
    }

    fn try_forward_to(&self, real: *mut c_void) -> Option<*mut c_void> {
        match self.real.compare_exchange(std::ptr::null_mut(), real, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some((self.address)()),
            Err(known) if known == real => Some((self.address)()),
            Err(_) => None,
        }
    }
}

/// A spare stub that forwards to `real`; `real` itself if none is left.
pub(crate) fn spare_stub_for(real: *mut c_void) -> *mut c_void {
    SPARE_STUBS.iter().find_map(|stub| stub.try_forward_to(real)).unwrap_or_else(|| {
        LOOKUPS_WITHOUT_STUB.fetch_add(1, Ordering::Relaxed);
        real
    })
}

/// Calls counted so far.
pub(crate) fn calls() -> u64 {
    let counted = NAMED_STUBS.iter().chain(SPARE_STUBS).map(|stub| stub.calls.load(Ordering::Relaxed) as u64);
    counted.sum::<u64>() + LOOKUPS_WITHOUT_STUB.load(Ordering::Relaxed) as u64
}

/// The called functions, each with its number of calls. Allocates: not for a hook.
pub(crate) fn names() -> Vec<String> {
    let describe = |stub: &CountingStub| {
        let calls = stub.calls.load(Ordering::Relaxed);
        let real = stub.real.load(Ordering::Acquire);
        (calls > 0).then(|| match stub.base {
            "" => format!("{} x{calls}", describe_address(real)),
            base => format!("{base} x{calls}"),
        })
    };
    let mut names: Vec<String> = NAMED_STUBS.iter().chain(SPARE_STUBS).filter_map(describe).collect();
    let lookups = LOOKUPS_WITHOUT_STUB.load(Ordering::Relaxed);
    if lookups > 0 {
        names.push(format!("{lookups} look-ups of other functions"));
    }
    names
}

/// The stub for an exported name.
pub(crate) fn stub_for_name(name: &str) -> Option<&'static CountingStub> {
    NAMED_STUBS.iter().find(|stub| stub.name == name && !name.is_empty())
}

/// The stub for a name and version of `cuGetProcAddress`.
pub(crate) fn stub_for_base(base: &str, version: c_int) -> Option<&'static CountingStub> {
    NAMED_STUBS.iter().filter(|stub| stub.base == base && stub.since <= version).max_by_key(|stub| stub.since)
}

macro_rules! stubs {
    ($list:ident: $($name:ident $exported:literal as $base:literal since $since:literal;)*) => {
        $(
            mod $name {
                use super::{AtomicPtr, AtomicUsize, c_void};

                pub(super) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                pub(super) static CALLS: AtomicUsize = AtomicUsize::new(0);

                /// Counts the call and jumps to the real function; works for any signature.
                #[unsafe(naked)]
                pub(super) unsafe extern "C" fn stub() {
                    core::arch::naked_asm!(
                        "lock inc qword ptr [rip + {calls}]",
                        "jmp qword ptr [rip + {real}]",
                        calls = sym CALLS,
                        real = sym REAL,
                    )
                }
            }
        )*

        static $list: &[CountingStub] = &[$(CountingStub {
            name: $exported,
            base: $base,
            since: $since,
            address: || $name::stub as *mut c_void,
            real: &$name::REAL,
            calls: &$name::CALLS,
        },)*];
    };
}

macro_rules! spare_stubs {
    ($($name:ident)*) => { stubs! { SPARE_STUBS: $($name "" as "" since 0;)* } };
}

// Source: cuda.h of CUDA 13. The 32-bit functions of CUDA 2 differ in signature from today's
// functions of the same name. A checkpoint moves all device memory to the host. From CUDA 11.4 on,
// `cuGraphInstantiate` names functions of two signatures. Whether memory that is bound to a logical
// endpoint lives on after `cuMemRelease` is not documented (cuda.h of CUDA 13.5).
stubs! { NAMED_STUBS:
    alloc_32 "cuMemAlloc" as "cuMemAlloc" since 2_000;
    alloc_pitch_32 "cuMemAllocPitch" as "cuMemAllocPitch" since 2_000;
    alloc_host_32 "cuMemAllocHost" as "cuMemAllocHost" since 2_000;
    free_32 "cuMemFree" as "cuMemFree" since 2_000;
    array_32 "cuArrayCreate" as "cuArrayCreate" since 2_000;
    array_3d_32 "cuArray3DCreate" as "cuArray3DCreate" since 2_000;
    mapped_pointer_32 "cuGraphicsResourceGetMappedPointer" as "cuGraphicsResourceGetMappedPointer" since 3_000;
    checkpoint "cuCheckpointProcessCheckpoint" as "cuCheckpointProcessCheckpoint" since 12_080;
    restore "cuCheckpointProcessRestore" as "cuCheckpointProcessRestore" since 12_080;
    instantiate "" as "cuGraphInstantiate" since 11_040;
    endpoint_bind_address "cuLogicalEndpointBindAddr" as "cuLogicalEndpointBindAddr" since 13_030;
    endpoint_bind_memory "cuLogicalEndpointBindMem" as "cuLogicalEndpointBindMem" since 13_030;
    endpoint_unbind "cuLogicalEndpointUnbind" as "cuLogicalEndpointUnbind" since 13_030;
    endpoint_destroy "cuLogicalEndpointDestroy" as "cuLogicalEndpointDestroy" since 13_030;
}
spare_stubs! { s00 s01 s02 s03 s04 s05 s06 s07 s08 s09 s10 s11 s12 s13 s14 s15 s16 s17 s18 s19 s20 s21 s22 s23 s24 s25 s26 s27 s28 s29 s30 s31 }

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn add(a: u64, b: u64) -> u64 {
        a + b
    }

    extern "C" fn subtract(a: u64, b: u64) -> u64 {
        a - b
    }

    fn call(address: *mut c_void, a: u64, b: u64) -> u64 {
        // SAFETY: the stubs of this test forward to functions of this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64, u64) -> u64>(address) };
        function(a, b)
    }

    #[test]
    fn counted_call_reaches_real_function_with_its_arguments() {
        let before = calls();
        let stub = stub_for_name("cuCheckpointProcessCheckpoint").unwrap();
        let first = stub.forward_to(add as *mut c_void);
        let second = stub.forward_to(subtract as *mut c_void);
        assert_ne!(first, second, "another real function gets another stub");
        assert_eq!(second, stub.forward_to(subtract as *mut c_void), "and keeps it");
        assert_eq!((call(first, 2, 3), call(second, 5, 3), calls() - before), (5, 2, 2));
        assert_eq!(names()[0], "cuCheckpointProcessCheckpoint x1");
        assert!(names()[1].ends_with(" x1"), "an address in this program: {:?}", names());
    }

    #[test]
    fn stub_for_base_respects_version() {
        assert_eq!(stub_for_base("cuArrayCreate", 2_000).map(|stub| stub.name), Some("cuArrayCreate"));
        assert!(stub_for_base("cuArrayCreate", 1_000).is_none());
        assert!(stub_for_base("cuMulticast", 13_000).is_none());
        assert!(stub_for_name("").is_none());
    }
}
