//! The entry into this crate: devices that the program obtains, and their numbers.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::events::{EventSink, Loss};
use crate::methods::Receiver;
use crate::object_info::UNKNOWN_DEVICE;
use crate::runtime::{ObjcId, ObjcImp, ObjcRuntime, ObjcSelector};
use crate::swizzled_classes::ensure_swizzled;

/// Devices beyond this number are recorded without one.
pub(crate) const MAX_DEVICES: usize = 16;

static HOOKS: OnceLock<MetalHooks> = OnceLock::new();
static DEVICES: [AtomicPtr<c_void>; MAX_DEVICES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_DEVICES];

/// What a device reports about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownDevice {
    /// Device number, in the order of first sight.
    pub number: u8,
    /// The memory that the system recommends as the most a process should use
    /// (`recommendedMaxWorkingSetSize`). Allocations beyond it are allowed.
    pub recommended_bytes: Option<u64>,
    /// The product name, such as "Apple M2".
    pub name: Option<String>,
}

/// The active hooks: a runtime to swizzle and a sink for the events.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "two addresses")]
pub struct MetalHooks {
    pub(crate) runtime: &'static dyn ObjcRuntime,
    pub(crate) sink: &'static dyn EventSink,
}

/// Activates the hooks. The arguments of the first call stay.
pub fn start(runtime: &'static dyn ObjcRuntime, sink: &'static dyn EventSink) -> MetalHooks {
    *HOOKS.get_or_init(|| MetalHooks { runtime, sink })
}

/// The active hooks; `None` before [`start`].
#[inline]
pub(crate) fn active_hooks() -> Option<&'static MetalHooks> {
    HOOKS.get()
}

impl MetalHooks {
    /// Numbers a device that the program has obtained, and swizzles its class.
    ///
    /// # Safety
    /// Null, or a device that lives as long as the process.
    pub unsafe fn observe_device(&self, device: ObjcId) {
        self.catch_panic(|| {
            if !device.is_null() {
                device_number(device);
                // SAFETY: the caller's promise.
                unsafe { ensure_swizzled(self.runtime, device, Receiver::Device, self.sink) };
            }
        });
    }

    /// As [`MetalHooks::observe_device`], for all devices in an `NSArray`.
    ///
    /// # Safety
    /// Null, or an array of such devices.
    pub unsafe fn observe_devices(&self, devices: ObjcId) {
        self.catch_panic(|| {
            if devices.is_null() {
                return;
            }
            // SAFETY: the caller's promise: an array has both methods, and an object at each index
            // below its count.
            unsafe {
                for at in 0..self.send(devices, c"count", 0).unwrap_or(0).min(MAX_DEVICES) {
                    self.observe_device(self.send(devices, c"objectAtIndex:", at).unwrap_or(0) as ObjcId);
                }
            }
        });
    }

    /// The devices observed so far, in the order of their numbers.
    ///
    /// Meant to be called once: on a thread without an autorelease pool each call leaks the names.
    pub fn known_devices(&self) -> Vec<KnownDevice> {
        let known = DEVICES
            .iter()
            .map(|device| device.load(Ordering::Acquire))
            .take_while(|device| !device.is_null());
        let describe = |(number, device): (usize, ObjcId)| {
            // SAFETY: devices live as long as the process. The first method returns a number, the
            // second a string. Its bytes are copied before it can be released.
            unsafe {
                let recommended = self.send(device, c"recommendedMaxWorkingSetSize", 0);
                let name = self.send(device, c"name", 0).filter(|name| *name != 0);
                let text = name
                    .and_then(|name| self.send(name as ObjcId, c"UTF8String", 0))
                    .filter(|text| *text != 0);
                KnownDevice {
                    number: number as u8,
                    recommended_bytes: recommended.filter(|bytes| *bytes != 0).map(|bytes| bytes as u64),
                    name: text
                        .map(|text| CStr::from_ptr(text as *const c_char).to_string_lossy().into_owned()),
                }
            }
        };
        known.enumerate().map(describe).collect()
    }

    /// Sends a message to an object, by the runtime's dispatch. `None` if it has no such method.
    ///
    /// # Safety
    /// A live object; a method with at most one argument of 64 bits, which returns 64 bits.
    unsafe fn send(&self, object: ObjcId, selector: &CStr, argument: usize) -> Option<usize> {
        type MessageFn = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, usize) -> usize;
        // SAFETY: the caller's promise. A superfluous argument is in a register that is not read.
        unsafe {
            let (class, selector) = (self.runtime.class_of(object), self.runtime.register_selector(selector));
            if self.runtime.instance_method(class, selector).is_null() {
                return None;
            }
            let function = self.runtime.dispatched_implementation(class, selector);
            Some(std::mem::transmute::<ObjcImp, MessageFn>(function)(object, selector, argument))
        }
    }

    /// Runs `body`; a panic is reported as [`Loss::Panic`].
    pub(crate) fn catch_panic(&self, body: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            self.sink.lost(Loss::Panic);
        }
    }
}

/// The number of a device, assigned at first sight; [`UNKNOWN_DEVICE`] if there are too many.
pub(crate) fn device_number(device: ObjcId) -> u64 {
    let is_at = |entry: &AtomicPtr<c_void>| {
        entry
            .compare_exchange(std::ptr::null_mut(), device, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|there| there == device, |_| true)
    };
    DEVICES.iter().position(is_at).map_or(UNKNOWN_DEVICE, |number| number as u64)
}
