//! Our part of a hooked driver call: what runs before it and after it.
//!
//! The real function runs exactly once, with the caller's arguments, even if our part fails. The
//! parts before and after it are therefore caught separately ([`catch_panic`]), and out-parameters
//! are read only after a successful call.

use std::ffi::{c_int, c_void};

use gpumemtrace_format::{Event, EventKind, FLAG_HOST, FLAG_MANAGED, NO_DEVICE};
use gpumemtrace_recorder::{CallGuard, Draft, StackMark, begin_call_at};

use super::driver_fn::DriverFn;
use super::meminfo_sampler;
use super::queries::current_device;
use crate::panic_guard::catch_panic;

/// A driver function that has a hook.
#[derive(Debug)]
pub(crate) struct HookedFn {
    /// The name that the driver exports.
    pub name: &'static str,
    /// Name without version suffix, as `cuGetProcAddress` takes it.
    pub base: &'static str,
    /// Lowest version for which `cuGetProcAddress` returns this variant (CUDA 11.2 is 11020).
    pub since: c_int,
    /// True for the variant that uses the per-thread default stream.
    pub per_thread_stream: bool,
    /// Address of the hook.
    pub hook: fn() -> *mut c_void,
    /// The driver's own function.
    pub real: &'static DriverFn,
}

/// Begins the event before the call. `fill` adds the arguments; it drops the event by setting
/// its kind to `NONE`. Returns `None` if nothing is recorded. `mark` is of the function that makes
/// the call.
#[inline]
pub(crate) fn pre_call(
    mark: StackMark,
    mut draft: Draft,
    fill: impl FnOnce(&mut Draft),
) -> Option<CallGuard> {
    catch_panic(|| {
        draft.device = current_device();
        fill(&mut draft);
        if draft.kind == EventKind::NONE {
            return None;
        }
        crate::torch::before_driver_alloc(draft.kind, draft.size);
        begin_call_at(mark, &draft)
    })
}

/// Completes the event after the call. `fill` adds the results, and runs only after success.
#[inline]
pub(crate) fn post_call(call: Option<CallGuard>, result: c_int, fill: impl FnOnce(&mut Event)) {
    if let Some(call) = call {
        catch_panic(|| {
            let mut sample = None;
            call.complete(result as u16, |event| {
                if result == 0 {
                    fill(event);
                    sample = meminfo_sampler::sample_after(event);
                }
            });
            if let Some(sample) = sample {
                gpumemtrace_recorder::record_event(&sample);
            }
            Some(())
        });
    }
}

/// The value that a successful call left in an out-parameter; zero for a null pointer. The driver
/// requires the pointer, but a caller's mistake must not crash our code.
pub(crate) fn read_out<T: Copy + Default>(pointer: *const T) -> T {
    // SAFETY: the driver has just written through the same pointer and reported success.
    if pointer.is_null() { T::default() } else { unsafe { pointer.read_unaligned() } }
}

/// A field of a struct that the caller passed in, or that a successful call filled; zero for a
/// null pointer.
pub(crate) fn read_field<T: Copy + Default>(structure: *const c_void, offset: usize) -> T {
    if structure.is_null() {
        return T::default();
    }
    // SAFETY: the interface asks the caller for a struct that has this field; the driver reads it
    // too.
    unsafe { structure.byte_add(offset).cast::<T>().read_unaligned() }
}

/// Where the memory of a pool or an allocation node lies, in the form that events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolLocation {
    /// `location type | allocation type << 16 | id << 32`.
    pub packed: u64,
    /// Device ordinal, or `NO_DEVICE`.
    pub device: u8,
    /// [`FLAG_HOST`], [`FLAG_MANAGED`], or 0 for device memory.
    pub flags: u8,
}

/// The place of pool memory by the `CUmemLocation` at an offset and its `CUmemAllocationType`.
pub(crate) fn read_pool_location(
    structure: *const c_void,
    offset: usize,
    allocation_type: u32,
) -> PoolLocation {
    const MANAGED: u32 = 2;
    let (location, device) = read_location(structure, offset);
    let flags = match (allocation_type, location as u32) {
        (MANAGED, _) => FLAG_MANAGED,
        // `CU_MEM_LOCATION_TYPE_HOST`, `_HOST_NUMA` and `_HOST_NUMA_CURRENT`.
        (_, 2..=4) => FLAG_HOST,
        _ => 0,
    };
    PoolLocation { packed: location | u64::from(allocation_type as u16) << 16, device, flags }
}

/// A `CUmemLocation` inside a struct: `type | id << 32`, and the device ordinal or `NO_DEVICE`.
pub(crate) fn read_location(structure: *const c_void, offset: usize) -> (u64, u8) {
    const DEVICE: u32 = 1;
    const DEVICE_LOCALITY_DOMAIN: u32 = 6;
    let (kind, id) = (read_field::<u32>(structure, offset), read_field::<u32>(structure, offset + 4));
    let device = match kind {
        DEVICE => u8::try_from(id).unwrap_or(NO_DEVICE),
        // Two bytes: the device ordinal and the domain within it.
        DEVICE_LOCALITY_DOMAIN => id as u8,
        _ => NO_DEVICE,
    };
    (u64::from(kind) | u64::from(id) << 32, device)
}
