//! What a row of the table becomes: an exported function that records around the real one.
//!
//! Constraint: the real function must be called exactly once, with the caller's arguments, whatever happens to us.
//! Consequence: our part before and after it is caught separately, and an out-parameter is only read when the call
//! succeeded.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use gpumemtrace_format::{Event, NO_DEVICE};
use gpumemtrace_recorder::{Call, Draft, begin};

use crate::dynamic::{loaded_library, real_dlsym};
use crate::guard::quietly;

/// `CUresult` of a driver that is not there.
pub(crate) const NOT_INITIALIZED: c_int = 3;

/// The real function behind a row.
#[derive(Debug)]
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Remembers an address that a look-up gave; the first one stays.
    pub(crate) fn learn(&self, address: *mut c_void) {
        let _ =
            self.address.compare_exchange(std::ptr::null_mut(), address, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The address; looked up if nobody asked for it before (a caller that is linked to libcuda). Null without a driver.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        let address = driver_symbol(self.name);
        self.learn(address);
        address
    }
}

/// A function of the loaded driver library, past our hooks; null if there is none.
pub(crate) fn driver_symbol(name: &CStr) -> *mut c_void {
    let library = loaded_library(c"libcuda.so.1");
    if library.is_null() {
        return std::ptr::null_mut();
    }
    let found = real_dlsym(library, name);
    // SAFETY: only undoes the count that `loaded_library` added; whoever loaded the driver keeps it.
    unsafe { libc::dlclose(library) };
    found
}

/// Device ordinal of the calling thread's current context.
pub(crate) fn current_device() -> u8 {
    static CU_CTX_GET_DEVICE: Real = Real::new(c"cuCtxGetDevice");
    let function = CU_CTX_GET_DEVICE.get();
    if function.is_null() {
        return NO_DEVICE;
    }
    // SAFETY: `CUresult cuCtxGetDevice(CUdevice *)`; it has no side effect.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> c_int>(function) };
    let mut device: c_int = -1;
    // SAFETY: the out-parameter is ours.
    let result = unsafe { function(&raw mut device) };
    if result == 0 { u8::try_from(device).unwrap_or(NO_DEVICE) } else { NO_DEVICE }
}

/// Our part before the call.
#[inline]
pub(crate) fn before(draft: &mut Draft) -> Option<Call> {
    quietly(|| {
        if draft.device == NO_DEVICE {
            draft.device = current_device();
        }
        crate::torch::before_driver_alloc(draft.kind, draft.size);
        begin(draft)
    })
}

/// Our part after the call. `fill` runs only if it succeeded.
#[inline]
pub(crate) fn after(call: Option<Call>, result: c_int, fill: impl FnOnce(&mut Event)) {
    if let Some(call) = call {
        quietly(|| {
            call.finish(result as u16, |event| {
                if result == 0 {
                    fill(event);
                }
            });
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

/// A counter for stubs that only count.
pub(crate) type CallCount = AtomicUsize;
