//! The recorded driver functions, one row each, by family. To add a function, add a row.
//!
//! A row has these parts:
//!
//! * the exported names that share it, each with the CUDA version that introduced it;
//! * `per_thread` after a name for the variant that uses the per-thread default stream;
//! * the base name that `cuGetProcAddress` takes;
//! * the parameters and the kind of event;
//! * `before`, which fills the event from the arguments, and `after`, which fills it from the
//!   results of a successful call.
//!
//! Source of names, versions and signatures: `cuda.h` and `cudaTypedefs.h` of CUDA 12.9 and 13.5,
//! which list the older variants too. Results are plain `int`, since a newer driver may return a
//! value that no enum of ours has. Handles and addresses are plain 64-bit numbers. The 32-bit
//! functions of CUDA 2 have other signatures: see `uncovered`.

use super::hooked_call::HookedFn;

mod array;
mod context;
mod device;
mod graph;
mod host;
mod interop;
mod managed;
mod pool;
mod vmm;

pub(crate) use context::looked_up::cuDevicePrimaryCtxRetain;
pub(crate) use device::looked_up::{cuMemAlloc_v2, cuMemFree_v2};

/// The families, in the order of their `ApiId`s.
static FAMILIES: [&[HookedFn]; 9] = [
    device::HOOKS,
    host::HOOKS,
    pool::HOOKS,
    vmm::HOOKS,
    array::HOOKS,
    interop::HOOKS,
    graph::HOOKS,
    context::HOOKS,
    managed::HOOKS,
];
const FAMILY_LENGTHS: [usize; 9] = [
    device::HOOK_COUNT,
    host::HOOK_COUNT,
    pool::HOOK_COUNT,
    vmm::HOOK_COUNT,
    array::HOOK_COUNT,
    interop::HOOK_COUNT,
    graph::HOOK_COUNT,
    context::HOOK_COUNT,
    managed::HOOK_COUNT,
];
const TOTAL_HOOKS: usize = first_api_id(FAMILY_LENGTHS.len()) - 1;
// An `ApiId` is one byte.
const _: () = assert!(TOTAL_HOOKS < 255);

/// The `ApiId` of a family's first row; 0 is "no api".
const fn first_api_id(family: usize) -> usize {
    let (mut id, mut at) = (1, 0);
    while at < family {
        id += FAMILY_LENGTHS[at];
        at += 1;
    }
    id
}

/// Exported names by `ApiId`.
pub(crate) static API_NAMES: [&str; TOTAL_HOOKS + 1] = {
    let mut names = ["-"; TOTAL_HOOKS + 1];
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

/// All recorded functions, in the order of their `ApiId`s.
pub(crate) fn recorded_functions() -> impl Iterator<Item = &'static HookedFn> + Clone {
    FAMILIES.into_iter().flatten()
}

/// Turns the rows of a family into hooks.
///
/// Each row becomes one recorded call with two entry points, which differ only in the real
/// function they call. `looked_up` serves callers that looked the name up and calls the driver.
/// `linked` serves callers that are linked to the name and calls the next definition in the
/// loader's order. The code of a row may use `PER_THREAD`, which is true in the per-thread variant.
macro_rules! driver_hooks {
    (family $family:literal; $(
        $($name:ident since $since:literal $($stream:ident)?),+ = $base:literal
        $args:tt => $kind:ident $hooks:tt
    )*) => {
        #[allow(non_camel_case_types, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        enum HookIndex { $($($name,)+)* }

        /// The recorded calls. Their last argument is the real function.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        mod recorded {
            #[allow(clippy::wildcard_imports, reason = "the rows' code is written for the family's file")]
            use super::*;

            $($($crate::cuda::hooks::driver_hooks! {
                @recorded $name $args family $family kind $kind stream ($($stream)?) $hooks
            })+)*
        }

        /// Entry points for callers that looked the name up.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        pub(crate) mod looked_up {
            #[allow(clippy::wildcard_imports, reason = "the rows' types are the family's")]
            use super::*;

            $($($crate::cuda::hooks::driver_hooks! {
                @entry $name $args real #[doc = "The driver's function, recorded."]
            })+)*
        }

        /// Entry points for callers that are linked to the name.
        #[cfg(not(test))]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "they are the driver's")]
        mod linked {
            #[allow(clippy::wildcard_imports, reason = "the rows' types are the family's")]
            use super::*;

            $($($crate::cuda::hooks::driver_hooks! {
                @entry $name $args next #[unsafe(no_mangle)]
            })+)*
        }

        #[allow(non_upper_case_globals, reason = "the names are the driver's")]
        mod real {
            use $crate::cuda::driver_fn::{DriverFn, c_name};
            $($(pub(super) static $name: DriverFn =
                DriverFn::new(c_name(concat!(stringify!($name), "\0")));)+)*
        }

        #[cfg(not(test))]
        #[allow(non_upper_case_globals, reason = "the names are the driver's")]
        mod next {
            use $crate::cuda::driver_fn::{DriverFn, c_name};
            $($(pub(super) static $name: DriverFn =
                DriverFn::next(c_name(concat!(stringify!($name), "\0")));)+)*
        }

        /// The hooks of this family.
        pub(super) static HOOKS: &[$crate::cuda::hooked_call::HookedFn] =
            &[$($($crate::cuda::hooked_call::HookedFn {
                name: stringify!($name),
                base: $base,
                since: $since,
                per_thread_stream: $crate::cuda::hooks::driver_hooks!(@stream $($stream)?),
                hook: || looked_up::$name as *mut std::ffi::c_void,
                real: &real::$name,
            },)+)*];
        /// Number of hooks in this family.
        pub(super) const HOOK_COUNT: usize = [$($(stringify!($name)),+),*].len();
    };
    (@recorded $name:ident ($($arg:ident: $ty:ty),* $(,)?)
        family $family:literal kind $kind:ident stream ($($stream:ident)?)
        { $(before |$draft:ident| $before:block)? $(after |$event:ident| $after:block)? }
    ) => {
        pub(super) unsafe fn $name($($arg: $ty,)* real: *mut std::ffi::c_void) -> std::ffi::c_int {
            #[allow(dead_code, reason = "most rows have one variant")]
            const PER_THREAD: bool = $crate::cuda::hooks::driver_hooks!(@stream $($stream)?);
            const API: ApiId =
                ApiId(($crate::cuda::hooks::first_api_id($family) + HookIndex::$name as usize) as u8);
            if real.is_null() {
                return $crate::cuda::driver_fn::NOT_INITIALIZED;
            }
            // SAFETY: the address was looked up under this name, which has the row's signature.
            let real = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C-unwind" fn($($ty),*) -> std::ffi::c_int>(real)
            };
            let mark = gpumemtrace_recorder::StackMark::here();
            let call = $crate::cuda::hooked_call::pre_call(mark, Draft::new(EventKind::$kind, API), |_draft| {
                $(
                    let $draft = _draft;
                    $before
                )?
            });
            let unwinding = gpumemtrace_recorder::UnwindGuard::new(call.as_ref());
            // SAFETY: the caller's own arguments. A cancelled thread or a C++ exception unwinds
            // through here ("C-unwind").
            let result = unsafe { real($($arg),*) };
            unwinding.disarm();
            $crate::cuda::hooked_call::post_call(call, result, |_event| {
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
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> std::ffi::c_int {
            // SAFETY: the caller's own arguments, and a function of this name.
            unsafe { recorded::$name($($arg,)* $source::$name.get()) }
        }
    };
    (@stream) => { false };
    (@stream per_thread) => { true };
}
use driver_hooks;

#[cfg(test)]
mod tests;
