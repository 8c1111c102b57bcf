//! Addresses of the driver's own functions, looked up once and cached.
//!
//! A caller that is linked to a driver name must reach the next definition in the loader's order,
//! which may be another forwarding library. A caller that looked the name up in the driver must
//! reach the driver. A [`DriverFn`] is created for one of the two.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use gpumemtrace_recorder::uninterrupted;

use super::driver_lib::{driver_symbol, is_recorded_driver_known, next_symbol};

/// `CUDA_ERROR_NOT_INITIALIZED`: what a call returns where there is no driver.
pub(crate) const NOT_INITIALIZED: c_int = 3;

/// Stored instead of an address if the recorded driver lacks the function.
const MISSING: *mut c_void = std::ptr::without_provenance_mut(1);

/// A driver function, with its address once known.
#[derive(Debug)]
pub(crate) struct DriverFn {
    name: &'static CStr,
    look_up: fn(&CStr) -> *mut c_void,
    address: AtomicPtr<c_void>,
}

impl DriverFn {
    /// The recorded driver's function of this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, look_up: driver_symbol, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The definition that follows our exported function of this name in the loader's order.
    pub(crate) const fn next(name: &'static CStr) -> Self {
        Self { name, look_up: next_symbol, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Stores an address that a look-up of the program found. Returns the first address, which
    /// stays.
    pub(crate) fn set_once(&self, address: *mut c_void) -> *mut c_void {
        let keep = |known: *mut c_void| (known.is_null() || known == MISSING).then_some(address);
        match self.address.fetch_update(Ordering::AcqRel, Ordering::Acquire, keep) {
            Ok(_) => address,
            Err(known) => known,
        }
    }

    /// The address, looked up at the first call; null if there is no driver or no such function.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() || address == MISSING { self.find(address) } else { address }
    }

    /// Looks the address up. The recorded driver stays loaded, so [`MISSING`] is final.
    #[cold]
    fn find(&self, known: *mut c_void) -> *mut c_void {
        if known == MISSING {
            return std::ptr::null_mut();
        }
        let address = uninterrupted(|| (self.look_up)(self.name));
        if !address.is_null() {
            self.set_once(address);
        } else if is_recorded_driver_known() {
            self.set_once(MISSING);
        }
        address
    }
}

/// The C form of a name that ends with a zero byte.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name with a zero byte"),
    }
}

/// Declares safe wrappers that call the recorded driver's functions past our hooks. A wrapper
/// returns [`NOT_INITIALIZED`] where the function is missing.
macro_rules! unhooked_functions {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[allow(non_snake_case, reason = "the name is the driver's")]
        fn $name($($arg: $ty),*) -> std::ffi::c_int {
            static REAL: $crate::cuda::driver_fn::DriverFn = $crate::cuda::driver_fn::DriverFn::new(
                $crate::cuda::driver_fn::c_name(concat!(stringify!($name), "\0")),
            );
            let real = REAL.get();
            if real.is_null() {
                return $crate::cuda::driver_fn::NOT_INITIALIZED;
            }
            // SAFETY: the address was looked up under this name, which has this signature.
            let real = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> std::ffi::c_int>(real)
            };
            // SAFETY: callers pass handles from the driver and out-parameters of their own.
            unsafe { real($($arg),*) }
        }
    )*};
}
pub(super) use unhooked_functions;
