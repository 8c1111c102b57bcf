//! The driver functions we record, one row each. Adding a function is adding a row.
//!
//! A row: exported name, base name and lowest version for `cuGetProcAddress`, stream variant, parameters, kind of event,
//! what of the event is known before the call (`draft`) and what after it (`event`, only when it succeeded).
//!
//! Source of names, versions and signatures: `cuda.h` / `cudaTypedefs.h` of CUDA 11.8 to 13. Results are plain `int`: a
//! driver newer than us may return a value that an enum of ours does not have. The 32-bit `cuMemAlloc` and `cuMemFree`
//! without suffix are other functions and are not touched.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUmemAllocationProp, CUmemoryPool, CUstream};
use gpumemtrace_format::{ApiId, EventKind};
use gpumemtrace_recorder::Draft;

use super::substitute::{proc_address_v1, proc_address_v2};
use super::wrapper::{Entry, NOT_INITIALIZED, Real, after, before};

/// Handle of physical memory.
type Handle = c_ulonglong;

macro_rules! entry_points {
    ($(
        $name:ident $c_name:literal = $base:literal since $since:literal $(, $stream:ident)? ;
        ($($arg:ident: $ty:ty),*) => $kind:ident
        $(, before |$draft:ident| $before:block)?
        $(, after |$event:ident| $after:block)?
    )*) => {
        #[allow(non_camel_case_types, reason = "the names are the driver's")]
        #[derive(Clone, Copy)]
        enum Api { $($name),* }

        /// Names by `ApiId`.
        pub(crate) static NAMES: &[&str] = &["-", $(stringify!($name)),*];

        $(
            /// The driver's function of this name, recorded.
            #[allow(non_snake_case, reason = "the name is the driver's")]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(super) unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
                let real = real::$name.get();
                if real.is_null() {
                    return NOT_INITIALIZED;
                }
                // SAFETY: the address was looked up under this name, whose signature is the row's.
                let real = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> c_int>(real) };
                #[allow(unused_mut, reason = "not every row knows something before the call")]
                let mut draft = Draft::new(EventKind::$kind, ApiId(Api::$name as u8 + 1));
                $({
                    let $draft = &mut draft;
                    $before
                })?
                let call = before(&mut draft);
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
        )*

        #[allow(non_upper_case_globals, reason = "the names are the driver's")]
        mod real {
            use super::Real;
            $(pub(super) static $name: Real = Real::new($c_name);)*
            pub(super) static cuGetProcAddress: Real = Real::new(c"cuGetProcAddress");
            pub(super) static cuGetProcAddress_v2: Real = Real::new(c"cuGetProcAddress_v2");
        }

        /// All rows.
        pub(crate) static ENTRIES: &[Entry] = &[
            $(Entry {
                name: stringify!($name),
                base: $base,
                since: $since,
                per_thread_stream: entry_points!(@stream $($stream)?),
                wrapper: || $name as *mut c_void,
                real: &real::$name,
            },)*
            Entry {
                name: "cuGetProcAddress",
                base: "cuGetProcAddress",
                since: 11_030,
                per_thread_stream: false,
                wrapper: || proc_address_v1 as *mut c_void,
                real: &real::cuGetProcAddress,
            },
            Entry {
                name: "cuGetProcAddress_v2",
                base: "cuGetProcAddress",
                since: 12_000,
                per_thread_stream: false,
                wrapper: || proc_address_v2 as *mut c_void,
                real: &real::cuGetProcAddress_v2,
            },
        ];
    };
    (@stream) => { false };
    (@stream per_thread_stream) => { true };
}

/// The real `cuGetProcAddress`.
pub(crate) fn real_proc_address_v1() -> *mut c_void {
    real::cuGetProcAddress.get()
}

/// The real `cuGetProcAddress_v2`.
pub(crate) fn real_proc_address_v2() -> *mut c_void {
    real::cuGetProcAddress_v2.get()
}

/// What a successful call left in an out-parameter. Callers must pass one, but a null pointer must not crash *us*.
fn out<T: Copy + Default>(pointer: *const T) -> T {
    // SAFETY: the driver has just written through the same pointer and reported success.
    if pointer.is_null() { T::default() } else { unsafe { *pointer } }
}

/// Type and id of the place that an allocation is asked for, and the device ordinal if it is a device.
fn location(prop: *const CUmemAllocationProp) -> (u32, u32, Option<u8>) {
    const DEVICE: u32 = 1;
    if prop.is_null() {
        return (0, 0, None);
    }
    let at = std::mem::offset_of!(CUmemAllocationProp, location);
    // SAFETY: the caller passes a whole CUmemAllocationProp; the two numbers are read as plain words because a newer driver
    // may use values that the enum in our binding does not have.
    let (kind, id) = unsafe {
        let [kind, id] = prop.byte_add(at).cast::<[u32; 2]>().read();
        (kind, id)
    };
    (kind, id, (kind == DEVICE).then(|| u8::try_from(id).ok()).flatten())
}

entry_points! {
    cuMemAlloc_v2 c"cuMemAlloc_v2" = "cuMemAlloc" since 3_020;
    (dptr: *mut CUdeviceptr, size: usize) => DEVICE_ALLOC,
        before |draft| { draft.size = size as u64 },
        after |event| { event.addr = out(dptr) }

    cuMemAllocPitch_v2 c"cuMemAllocPitch_v2" = "cuMemAllocPitch" since 3_020;
    (dptr: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => DEVICE_ALLOC,
        before |draft| { draft.size = (width as u64).saturating_mul(height as u64) },
        after |event| { event.addr = out(dptr); event.size = (out(pitch) as u64).saturating_mul(height as u64) }

    cuMemAllocManaged c"cuMemAllocManaged" = "cuMemAllocManaged" since 6_000;
    (dptr: *mut CUdeviceptr, size: usize, flags: c_uint) => MANAGED_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux[0] = u64::from(flags) },
        after |event| { event.addr = out(dptr) }

    cuMemFree_v2 c"cuMemFree_v2" = "cuMemFree" since 3_020;
    (dptr: CUdeviceptr) => DEVICE_FREE,
        before |draft| { draft.addr = dptr }

    cuMemAllocHost_v2 c"cuMemAllocHost_v2" = "cuMemAllocHost" since 3_020;
    (pointer: *mut usize, size: usize) => HOST_ALLOC,
        before |draft| { draft.size = size as u64 },
        after |event| { event.addr = out(pointer) as u64 }

    cuMemHostAlloc c"cuMemHostAlloc" = "cuMemHostAlloc" since 2_020;
    (pointer: *mut usize, size: usize, flags: c_uint) => HOST_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux[0] = u64::from(flags) },
        after |event| { event.addr = out(pointer) as u64 }

    cuMemFreeHost c"cuMemFreeHost" = "cuMemFreeHost" since 2_000;
    (pointer: usize) => HOST_FREE,
        before |draft| { draft.addr = pointer as u64 }

    cuMemAllocAsync c"cuMemAllocAsync" = "cuMemAllocAsync" since 11_020;
    (dptr: *mut CUdeviceptr, size: usize, stream: CUstream) => ASYNC_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux[0] = stream as u64 },
        after |event| { event.addr = out(dptr) }

    cuMemAllocAsync_ptsz c"cuMemAllocAsync_ptsz" = "cuMemAllocAsync" since 11_020, per_thread_stream;
    (dptr: *mut CUdeviceptr, size: usize, stream: CUstream) => ASYNC_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux[0] = stream as u64 },
        after |event| { event.addr = out(dptr) }

    cuMemAllocFromPoolAsync c"cuMemAllocFromPoolAsync" = "cuMemAllocFromPoolAsync" since 11_020;
    (dptr: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream) => ASYNC_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux = [stream as u64, pool as u64] },
        after |event| { event.addr = out(dptr) }

    cuMemAllocFromPoolAsync_ptsz c"cuMemAllocFromPoolAsync_ptsz" = "cuMemAllocFromPoolAsync" since 11_020, per_thread_stream;
    (dptr: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream) => ASYNC_ALLOC,
        before |draft| { draft.size = size as u64; draft.aux = [stream as u64, pool as u64] },
        after |event| { event.addr = out(dptr) }

    cuMemFreeAsync c"cuMemFreeAsync" = "cuMemFreeAsync" since 11_020;
    (dptr: CUdeviceptr, stream: CUstream) => ASYNC_FREE,
        before |draft| { draft.addr = dptr; draft.aux[0] = stream as u64 }

    cuMemFreeAsync_ptsz c"cuMemFreeAsync_ptsz" = "cuMemFreeAsync" since 11_020, per_thread_stream;
    (dptr: CUdeviceptr, stream: CUstream) => ASYNC_FREE,
        before |draft| { draft.addr = dptr; draft.aux[0] = stream as u64 }

    cuMemAddressReserve c"cuMemAddressReserve" = "cuMemAddressReserve" since 10_020;
    (dptr: *mut CUdeviceptr, size: usize, alignment: usize, hint: CUdeviceptr, flags: c_ulonglong) => VA_RESERVE,
        before |draft| { draft.size = size as u64 },
        after |event| { event.addr = out(dptr) }

    cuMemAddressFree c"cuMemAddressFree" = "cuMemAddressFree" since 10_020;
    (dptr: CUdeviceptr, size: usize) => VA_FREE,
        before |draft| { draft.addr = dptr; draft.size = size as u64 }

    cuMemCreate c"cuMemCreate" = "cuMemCreate" since 10_020;
    (handle: *mut Handle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong) => PHYS_CREATE,
        before |draft| {
            let (kind, id, device) = location(prop);
            draft.size = size as u64;
            draft.aux[1] = u64::from(kind) | u64::from(id) << 32;
            draft.device = device.unwrap_or(draft.device);
        },
        after |event| { event.aux[0] = out(handle) }

    cuMemRelease c"cuMemRelease" = "cuMemRelease" since 10_020;
    (handle: Handle) => PHYS_RELEASE,
        before |draft| { draft.aux[0] = handle }

    cuMemMap c"cuMemMap" = "cuMemMap" since 10_020;
    (dptr: CUdeviceptr, size: usize, offset: usize, handle: Handle, flags: c_ulonglong) => MAP,
        before |draft| { draft.addr = dptr; draft.size = size as u64; draft.aux = [handle, offset as u64] }

    cuMemUnmap c"cuMemUnmap" = "cuMemUnmap" since 10_020;
    (dptr: CUdeviceptr, size: usize) => UNMAP,
        before |draft| { draft.addr = dptr; draft.size = size as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_its_base_with_a_suffix_and_stands_once() {
        for entry in ENTRIES {
            let suffix = entry.name.strip_prefix(entry.base).unwrap();
            assert!(["", "_v2", "_ptsz"].contains(&suffix), "{}", entry.name);
            assert_eq!(entry.per_thread_stream, suffix == "_ptsz", "{}", entry.name);
            assert_eq!(ENTRIES.iter().filter(|other| other.name == entry.name).count(), 1);
        }
        assert_eq!(NAMES.len(), ENTRIES.len() - 2 + 1, "every recorded row has a name, plus the empty one");
    }

    #[test]
    fn the_layout_of_an_allocations_properties_is_the_drivers() {
        assert_eq!(std::mem::offset_of!(CUmemAllocationProp, location), 8);
        assert_eq!(size_of::<CUmemAllocationProp>(), 32);
    }

    #[test]
    fn without_a_driver_a_call_fails_as_the_driver_would() {
        let mut pointer = 0;
        // SAFETY: a valid out-parameter; there is no driver in the test process.
        assert_eq!(unsafe { cuMemAlloc_v2(&raw mut pointer, 512) }, NOT_INITIALIZED);
        assert_eq!(pointer, 0);
    }
}
