//! Functions that allocate and that we do not record yet: counted when they are *called*.
//!
//! Constraint: a CUDA runtime asks for every function there is, so asking says nothing. Consequence: the caller gets a stub
//! that adds one to a counter and jumps on to the real function with everything untouched. A report that begins with
//! "uncovered calls: 0" has seen all device memory there is.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::wrapper::CallCount;

/// A counted function.
#[derive(Debug)]
pub(crate) struct Stub {
    name: &'static str,
    since: c_int,
    entry: fn() -> *mut c_void,
    real: &'static AtomicPtr<c_void>,
    calls: &'static CallCount,
}

impl Stub {
    /// Remembers the real function and gives the stub for it; the real one if another address was counted before (two
    /// drivers in one process), because a stub can only jump to one.
    pub(crate) fn learn(&self, found: *mut c_void) -> *mut c_void {
        match self.real.compare_exchange(std::ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => (self.entry)(),
            Err(known) if known == found => (self.entry)(),
            Err(_) => found,
        }
    }
}

/// Calls counted so far.
pub(crate) fn calls() -> u64 {
    STUBS.iter().map(|stub| stub.calls.load(Ordering::Relaxed) as u64).sum()
}

/// The stub for an exported name.
pub(crate) fn find(name: &str) -> Option<&'static Stub> {
    STUBS.iter().find(|stub| stub.name == name)
}

/// The stub for a name and version of `cuGetProcAddress`.
pub(crate) fn find_by_base(base: &str, version: c_int) -> Option<&'static Stub> {
    let same = STUBS
        .iter()
        .filter(|stub| stub.name.strip_prefix(base).is_some_and(|rest| ["", "_v2"].contains(&rest)));
    same.filter(|stub| stub.since <= version).max_by_key(|stub| stub.since)
}

macro_rules! stubs {
    ($($name:ident $exported:literal since $since:literal;)*) => {
        $(
            mod $name {
                use super::{AtomicPtr, CallCount, c_void};

                pub(super) static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                pub(super) static CALLS: CallCount = CallCount::new(0);

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

        static STUBS: &[Stub] = &[$(Stub {
            name: $exported,
            since: $since,
            entry: || $name::stub as *mut c_void,
            real: &$name::REAL,
            calls: &$name::CALLS,
        },)*];
    };
}

// Source: cuda.h of CUDA 13; each of these makes or takes over memory of the device, or pins host memory.
stubs! {
    array_create "cuArrayCreate_v2" since 3_020;
    array_3d_create "cuArray3DCreate_v2" since 3_020;
    mipmapped_array_create "cuMipmappedArrayCreate" since 5_000;
    host_register "cuMemHostRegister_v2" since 6_050;
    ipc_open "cuIpcOpenMemHandle_v2" since 11_000;
    external_import "cuImportExternalMemory" since 10_000;
    handle_import "cuMemImportFromShareableHandle" since 10_020;
    handle_retain "cuMemRetainAllocationHandle" since 11_000;
    pool_create "cuMemPoolCreate" since 11_020;
    pool_import "cuMemPoolImportFromShareableHandle" since 11_020;
    graph_alloc_node "cuGraphAddMemAllocNode" since 11_040;
    multicast_create "cuMulticastCreate" since 12_010;
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn add(a: u64, b: u64) -> u64 {
        a + b
    }

    #[test]
    fn a_counted_call_reaches_the_real_function_with_its_arguments() {
        let stub = find("cuMulticastCreate").unwrap();
        let address = stub.learn(add as *mut c_void);
        // SAFETY: the stub jumps to `add`, which has this signature.
        let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64, u64) -> u64>(address) };
        assert_eq!((function(2, 3), function(4, 5), calls()), (5, 9, 2));
        let other = a_counted_call_reaches_the_real_function_with_its_arguments as *mut c_void;
        assert_eq!(stub.learn(other), other, "a second real function is not sent to the first");
    }

    #[test]
    fn versions_are_respected() {
        assert_eq!(find_by_base("cuArrayCreate", 11_000).map(|stub| stub.name), Some("cuArrayCreate_v2"));
        assert!(find_by_base("cuArrayCreate", 3_000).is_none());
        assert!(find_by_base("cuMulticast", 13_000).is_none());
    }
}
