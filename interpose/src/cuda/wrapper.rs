//! What a row of the table becomes: a function that records around the real one.
//!
//! Constraint: the real function must be called exactly once, with the caller's arguments, whatever happens to us.
//! Consequence: our part before and after it is caught separately, and an out-parameter is only read when the call
//! succeeded.
//!
//! A caller that is linked to the driver's name must reach whatever stands behind us in the loader's order (perhaps another
//! library that forwards); a caller that looked the name up in the driver must reach the driver. Consequence: a row has two
//! entries, which differ in where the real function comes from and in nothing else.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};
use gpumemtrace_recorder::{CallGuard, Draft, begin_call};

use super::library::{driver_symbol, next_symbol, was_met};
use super::questions::current_device;
use super::sample;
use crate::guard::quietly;

/// `CUresult` of a driver that is not there.
pub(crate) const NOT_INITIALIZED: c_int = 3;

/// In place of an address: the driver has no such function.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

/// A real function, looked up once.
#[derive(Debug)]
pub(crate) struct Real {
    name: &'static CStr,
    find: fn(&CStr) -> *mut c_void,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// The recorded driver's function of this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, find: driver_symbol, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// What stands behind our exported function of this name.
    pub(crate) const fn next(name: &'static CStr) -> Self {
        Self { name, find: next_symbol, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Remembers an address that a look-up gave; the first one stays.
    pub(crate) fn learn(&self, address: *mut c_void) {
        let keep = |known: *mut c_void| (known.is_null() || known == MISSING).then_some(address);
        let _ = self.address.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep);
    }

    /// The address; looked up if nobody asked for it before. Null without a driver.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() || address == MISSING { self.find(address) } else { address }
    }

    /// Looks it up, once: the driver stays loaded, so what an older one lacks it will always lack.
    #[cold]
    fn find(&self, known: *mut c_void) -> *mut c_void {
        if known == MISSING {
            return std::ptr::null_mut();
        }
        let address = (self.find)(self.name);
        if !address.is_null() {
            self.learn(address);
        } else if was_met() {
            self.learn(MISSING);
        }
        address
    }
}

/// Functions of the driver that are called on our own account, past our hooks.
macro_rules! real_functions {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[allow(non_snake_case, reason = "the name is the driver's")]
        fn $name($($arg: $ty),*) -> std::ffi::c_int {
            static REAL: $crate::cuda::wrapper::Real =
                $crate::cuda::wrapper::Real::new($crate::cuda::table::c_name(concat!(stringify!($name), "\0")));
            let real = REAL.get();
            if real.is_null() {
                return $crate::cuda::wrapper::NOT_INITIALIZED;
            }
            // SAFETY: the address was looked up under this name, whose signature this is.
            let real = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>(real)
            };
            // SAFETY: callers pass handles that the driver gave, and places of their own for the answers.
            unsafe { real($($arg),*) }
        }
    )*};
}
pub(super) use real_functions;

/// Our part before the call. `fill` adds what is known by then, or makes it no event at all.
#[inline]
pub(crate) fn before(mut draft: Draft, fill: impl FnOnce(&mut Draft)) -> Option<CallGuard> {
    quietly(|| {
        draft.device = current_device();
        fill(&mut draft);
        if draft.kind == EventKind::NONE {
            return None;
        }
        crate::torch::before_driver_alloc(draft.kind, draft.size);
        begin_call(&draft)
    })
}

/// Our part after the call. `fill` runs only if it succeeded.
#[inline]
pub(crate) fn after(call: Option<CallGuard>, result: c_int, fill: impl FnOnce(&mut Event)) {
    if let Some(call) = call {
        quietly(|| {
            let mut sample = None;
            call.complete(result as u16, |event| {
                if result == 0 {
                    fill(event);
                    sample = sample::after(event);
                }
            });
            if let Some(sample) = sample {
                gpumemtrace_recorder::record_event(&sample);
            }
            Some(())
        });
    }
}

/// An entry of the table, for look-ups.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Exported name.
    pub name: &'static str,
    /// Name without version suffix, as `cuGetProcAddress` takes it.
    pub base: &'static str,
    /// Lowest version for which `cuGetProcAddress` answers this variant (CUDA 11.2 is 11020).
    pub since: c_int,
    /// True for the variant that takes the per-thread default stream.
    pub per_thread_stream: bool,
    /// Our function.
    pub wrapper: fn() -> *mut c_void,
    /// The real one.
    pub real: &'static Real,
}

/// What a successful call left in an out-parameter. Callers must pass one, but a null pointer must not crash *us*.
pub(crate) fn out<T: Copy + Default>(pointer: *const T) -> T {
    // SAFETY: the driver has just written through the same pointer and reported success.
    if pointer.is_null() { T::default() } else { unsafe { pointer.read_unaligned() } }
}

/// A field of a struct that the caller passes in, or that a successful call filled.
pub(crate) fn field<T: Copy + Default>(structure: *const c_void, offset: usize) -> T {
    if structure.is_null() {
        return T::default();
    }
    // SAFETY: the interface asks the caller for a struct that has this field; the driver reads it too.
    unsafe { structure.byte_add(offset).cast::<T>().read_unaligned() }
}

/// A `CUmemLocation` inside a struct: `type | id << 32`, and the device ordinal if it is on one.
pub(crate) fn location(structure: *const c_void, offset: usize) -> (u64, u8) {
    const DEVICE: u32 = 1;
    const DEVICE_LOCALITY_DOMAIN: u32 = 6;
    let (kind, id) = (field::<u32>(structure, offset), field::<u32>(structure, offset + 4));
    let device = match kind {
        DEVICE => u8::try_from(id).unwrap_or(NO_DEVICE),
        // Two bytes: the device, and which part of it.
        DEVICE_LOCALITY_DOMAIN => id as u8,
        _ => NO_DEVICE,
    };
    (u64::from(kind) | u64::from(id) << 32, device)
}
