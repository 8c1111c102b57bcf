//! The driver functions we record, one row each, by family. Adding a function is adding a row.
//!
//! A row: the exported names that share it, each with the CUDA version that brought it (and `per_thread` for the variant that
//! takes the per-thread default stream); the name that `cuGetProcAddress` knows them by; parameters; kind of event; what of
//! the event is known before the call (`draft`) and what after it (`event`, only when it succeeded).
//!
//! Source of names, versions and signatures: `cuda.h` / `cudaTypedefs.h` of CUDA 12.9 and 13.5, which list the older ones
//! too. Results are plain `int`: a driver newer than us may return a value that an enum of ours does not have. Handles and
//! addresses are plain 64-bit numbers. The 32-bit functions of CUDA 2 have other signatures: see `uncovered`.

use std::ffi::{CStr, c_void};

use cudarc::driver::sys::CUdeviceptr;

use super::hooked_call::{Entry, Real};
use super::resolver::{proc_address_v1, proc_address_v2};

mod array;
mod context;
mod device;
mod graph;
mod host;
mod interop;
mod pool;
mod vmm;

pub(crate) use context::looked_up::cuDevicePrimaryCtxRetain;
pub(crate) use device::looked_up::{cuMemAlloc_v2, cuMemFree_v2};

/// A device address; handles are as wide, and are passed as such.
type Word = CUdeviceptr;

/// The families, in the order of their `ApiId`s.
static FAMILIES: [&[Entry]; 8] =
    [device::ROWS, host::ROWS, pool::ROWS, vmm::ROWS, array::ROWS, interop::ROWS, graph::ROWS, context::ROWS];
const LENGTHS: [usize; 8] = [
    device::COUNT,
    host::COUNT,
    pool::COUNT,
    vmm::COUNT,
    array::COUNT,
    interop::COUNT,
    graph::COUNT,
    context::COUNT,
];
const ROWS: usize = first_id(LENGTHS.len()) - 1;
/// An `ApiId` is a byte.
const _: () = assert!(ROWS < 255);

/// The `ApiId` of a family's first row; 0 is "no api".
const fn first_id(family: usize) -> usize {
    let (mut id, mut at) = (1, 0);
    while at < family {
        id += LENGTHS[at];
        at += 1;
    }
    id
}

/// Names by `ApiId`.
pub(crate) static NAMES: [&str; ROWS + 1] = {
    let mut names = ["-"; ROWS + 1];
    let (mut family, mut id) = (0, 1);
    while family < FAMILIES.len() {
        let mut at = 0;
        while at < FAMILIES[family].len() {
            names[id] = FAMILIES[family][at].name;
            id += 1;
            at += 1;
        }
        family += 1;
    }
    names
};

/// `cuGetProcAddress`, which is replaced but is no event.
static RESOLVERS: [Entry; 2] = [
    Entry {
        name: "cuGetProcAddress",
        base: "cuGetProcAddress",
        since: 11_030,
        per_thread_stream: false,
        wrapper: || proc_address_v1 as *mut c_void,
        real: &GET_PROC_ADDRESS,
    },
    Entry {
        name: "cuGetProcAddress_v2",
        base: "cuGetProcAddress",
        since: 12_000,
        per_thread_stream: false,
        wrapper: || proc_address_v2 as *mut c_void,
        real: &GET_PROC_ADDRESS_V2,
    },
];
pub(crate) static GET_PROC_ADDRESS: Real = Real::new(c"cuGetProcAddress");
pub(crate) static GET_PROC_ADDRESS_V2: Real = Real::new(c"cuGetProcAddress_v2");

/// All functions that are replaced.
pub(crate) fn entries() -> impl Iterator<Item = &'static Entry> + Clone {
    FAMILIES.into_iter().flatten().chain(&RESOLVERS)
}

/// The C form of a name that ends with a zero byte.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a zero byte"),
    }
}

/// Makes a family of rows. `PER_THREAD` is there for the rows' own code: true in the per-thread variant.
macro_rules! entry_points {
    (family $family:literal; $(
        $($name:ident since $since:literal $($stream:ident)?),+ = $base:literal
        $args:tt => $kind:ident $hooks:tt
    )*) => {
        #[allow(non_camel_case_types, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        enum Row { $($($name,)+)* }

        /// The rows' functions: the call, recorded, of the real function that is passed last.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        mod recorded {
            #[allow(clippy::wildcard_imports, reason = "the rows' code is written for the family's file")]
            use super::*;

            $($($crate::cuda::hooks::entry_points! {
                @recorded $name $args family $family kind $kind stream ($($stream)?) $hooks
            })+)*
        }

        /// What callers get who look the name up.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        pub(crate) mod looked_up {
            #[allow(clippy::wildcard_imports, reason = "the rows' types are the family's")]
            use super::*;

            $($($crate::cuda::hooks::entry_points! {
                @entry $name $args real #[doc = "The driver's function, recorded."]
            })+)*
        }

        /// What callers get who are linked to the name.
        #[cfg(not(test))]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        mod linked {
            #[allow(clippy::wildcard_imports, reason = "the rows' types are the family's")]
            use super::*;

            $($($crate::cuda::hooks::entry_points! {
                @entry $name $args next #[unsafe(no_mangle)]
            })+)*
        }

        #[allow(non_upper_case_globals, reason = "the names are the driver's")]
        mod real {
            use $crate::cuda::hooked_call::Real;
            $($(pub(super) static $name: Real =
                Real::new($crate::cuda::hooks::c_name(concat!(stringify!($name), "\0")));)+)*
        }

        #[cfg(not(test))]
        #[allow(non_upper_case_globals, reason = "the names are the driver's")]
        mod next {
            use $crate::cuda::hooked_call::Real;
            $($(pub(super) static $name: Real =
                Real::next($crate::cuda::hooks::c_name(concat!(stringify!($name), "\0")));)+)*
        }

        /// The rows.
        pub(super) static ROWS: &[$crate::cuda::hooked_call::Entry] = &[$($($crate::cuda::hooked_call::Entry {
            name: stringify!($name),
            base: $base,
            since: $since,
            per_thread_stream: $crate::cuda::hooks::entry_points!(@stream $($stream)?),
            wrapper: || looked_up::$name as *mut std::ffi::c_void,
            real: &real::$name,
        },)+)*];
        /// How many there are.
        pub(super) const COUNT: usize = [$($(stringify!($name)),+),*].len();
    };
    (@recorded $name:ident ($($arg:ident: $ty:ty),* $(,)?)
        family $family:literal kind $kind:ident stream ($($stream:ident)?)
        { $(before |$draft:ident| $before:block)? $(after |$event:ident| $after:block)? }
    ) => {
        pub(super) unsafe fn $name($($arg: $ty,)* real: *mut std::ffi::c_void) -> std::ffi::c_int {
            #[allow(dead_code, reason = "most rows have one variant")]
            const PER_THREAD: bool = $crate::cuda::hooks::entry_points!(@stream $($stream)?);
            const API: ApiId = ApiId((first_id($family) + Row::$name as usize) as u8);
            if real.is_null() {
                return NOT_INITIALIZED;
            }
            // SAFETY: the address was looked up under this name, whose signature is the row's.
            let real = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>(real)
            };
            let call = before(Draft::new(EventKind::$kind, API), |_draft| {
                $(
                    let $draft = _draft;
                    $before
                )?
            });
            // SAFETY: the caller's own arguments.
            let result = unsafe { real($($arg),*) };
            after(call, result, |_event| {
                $(
                    let $event = _event;
                    $after
                )?
            });
            result
        }
    };
    (@entry $name:ident ($($arg:ident: $ty:ty),* $(,)?) $source:ident #[$attribute:meta]) => {
        #[$attribute]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            // SAFETY: the caller's own arguments, and a function of this name.
            unsafe { recorded::$name($($arg,)* $source::$name.get()) }
        }
    };
    (@stream) => { false };
    (@stream per_thread) => { true };
}
use entry_points;

#[cfg(test)]
mod tests;
