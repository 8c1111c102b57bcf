//! Functions that give out or take back memory and that we do not record: counted when they are *called*.
//!
//! Constraint: a CUDA runtime asks for every function there is, so asking says nothing. Consequence: the caller gets a stub
//! that adds one to a counter and jumps on to the real function with everything untouched, whatever its signature. A report
//! that begins with "uncovered calls: 0" has seen all device memory there is.
//!
//! Most of these functions cannot be named in advance: those of a driver newer than us, and those of a second copy of the
//! driver. A number of spare stubs is kept for them; when all are taken, the look-up itself is counted.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::loader::symbols::describe;

/// A counted function.
#[derive(Debug)]
pub(crate) struct Stub {
    /// Exported name; empty for one that has none of its own.
    name: &'static str,
    base: &'static str,
    since: c_int,
    entry: fn() -> *mut c_void,
    real: &'static AtomicPtr<c_void>,
    calls: &'static AtomicUsize,
}

/// Look-ups for which there was no stub left.
static WITHOUT_STUB: AtomicUsize = AtomicUsize::new(0);

impl Stub {
    /// The CUDA version that brought the function.
    pub(crate) fn since(&self) -> c_int {
        self.since
    }

    /// Remembers the real function and gives the stub for it; another one's if this one jumps elsewhere already.
    pub(crate) fn learn(&self, found: *mut c_void) -> *mut c_void {
        self.try_learn(found).unwrap_or_else(|| count_calls_of(found))
    }

    fn try_learn(&self, found: *mut c_void) -> Option<*mut c_void> {
        match self.real.compare_exchange(std::ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some((self.entry)()),
            Err(known) if known == found => Some((self.entry)()),
            Err(_) => None,
        }
    }
}

/// A stub for a function that nobody could name in advance.
pub(crate) fn count_calls_of(found: *mut c_void) -> *mut c_void {
    SPARE.iter().find_map(|stub| stub.try_learn(found)).unwrap_or_else(|| {
        WITHOUT_STUB.fetch_add(1, Ordering::Relaxed);
        found
    })
}

/// Calls counted so far.
pub(crate) fn calls() -> u64 {
    let counted = STUBS.iter().chain(SPARE).map(|stub| stub.calls.load(Ordering::Relaxed) as u64);
    counted.sum::<u64>() + WITHOUT_STUB.load(Ordering::Relaxed) as u64
}

/// The functions that were called, each with how often. Walks the loader's list, so not for a hook.
pub(crate) fn names() -> Vec<String> {
    let named = |stub: &Stub| {
        let calls = stub.calls.load(Ordering::Relaxed);
        let real = stub.real.load(Ordering::Acquire);
        (calls > 0).then(|| match stub.base {
            "" => format!("{} x{calls}", describe(real)),
            base => format!("{base} x{calls}"),
        })
    };
    let mut names: Vec<String> = STUBS.iter().chain(SPARE).filter_map(named).collect();
    let rest = WITHOUT_STUB.load(Ordering::Relaxed);
    if rest > 0 {
        names.push(format!("{rest} functions more, looked up"));
    }
    names
}

/// The stub for an exported name.
pub(crate) fn find(name: &str) -> Option<&'static Stub> {
    STUBS.iter().find(|stub| stub.name == name && !name.is_empty())
}

/// The stub for a name and version of `cuGetProcAddress`.
pub(crate) fn find_by_base(base: &str, version: c_int) -> Option<&'static Stub> {
    STUBS.iter().filter(|stub| stub.base == base && stub.since <= version).max_by_key(|stub| stub.since)
}

macro_rules! stubs {
    ($list:ident: $($name:ident $exported:literal as $base:literal since $since:literal;)*) => {
        $(
            mod $name {
                use super::{AtomicPtr, AtomicUsize, c_void};

                pub(super) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                pub(super) static CALLS: AtomicUsize = AtomicUsize::new(0);

                /// Counts and jumps: any signature, any number of arguments.
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

        static $list: &[Stub] = &[$(Stub {
            name: $exported,
            base: $base,
            since: $since,
            entry: || $name::stub as *mut c_void,
            real: &$name::REAL,
            calls: &$name::CALLS,
        },)*];
    };
}

macro_rules! spare {
    ($($name:ident)*) => { stubs! { SPARE: $($name "" as "" since 0;)* } };
}

// Source: cuda.h of CUDA 13. The 32-bit functions of CUDA 2 are other functions than those of the same name today; a
// checkpoint moves all device memory away; and from CUDA 11.4 on `cuGraphInstantiate` names functions of two signatures.
stubs! { STUBS:
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
}
spare! { s00 s01 s02 s03 s04 s05 s06 s07 s08 s09 s10 s11 s12 s13 s14 s15 s16 s17 s18 s19 s20 s21 s22 s23 s24 s25 s26 s27 s28 s29 s30 s31 }

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
        // SAFETY: the stubs below jump to functions of this type.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64, u64) -> u64>(address) };
        function(a, b)
    }

    #[test]
    fn a_counted_call_reaches_the_real_function_with_its_arguments() {
        let before = calls();
        let stub = find("cuCheckpointProcessCheckpoint").unwrap();
        let first = stub.learn(add as *mut c_void);
        let second = stub.learn(subtract as *mut c_void);
        assert_ne!(first, second, "a second real function is not sent to the first");
        assert_eq!(second, stub.learn(subtract as *mut c_void), "and keeps its stub");
        assert_eq!((call(first, 2, 3), call(second, 5, 3), calls() - before), (5, 2, 2));
        assert_eq!(names()[0], "cuCheckpointProcessCheckpoint x1");
        assert!(names()[1].ends_with(" x1"), "an address of this program: {:?}", names());
    }

    #[test]
    fn versions_are_respected() {
        assert_eq!(find_by_base("cuArrayCreate", 2_000).map(|stub| stub.name), Some("cuArrayCreate"));
        assert!(find_by_base("cuArrayCreate", 1_000).is_none());
        assert!(find_by_base("cuMulticast", 13_000).is_none());
        assert!(find("").is_none());
    }
}
