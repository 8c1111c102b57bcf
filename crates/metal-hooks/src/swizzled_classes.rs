//! The classes seen so far, and their swizzling.
//!
//! A call may return an object of an unknown class, on many threads at once. The end of that object
//! must be hooked before the program gets it. A fixed table holds the classes. The thread that adds
//! a class swizzles it; other threads wait for that, once per class. If the runtime calls back on
//! the same thread, for example to initialize the class, that call does not wait.
//!
//! A method that the class only inherits is added to it and calls the inherited one, so other
//! subclasses are not affected. `class_addMethod` fails if the class defines the method, which
//! decides between adding and replacing in one atomic step.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::events::{EventSink, Loss};
use crate::methods::{Receiver, SWIZZLED_METHODS, SwizzledMethod};
use crate::runtime::{ObjcClass, ObjcId, ObjcImp, ObjcRuntime, ObjcSelector};
use crate::trampolines::claim_trampoline;

/// Capacity of the class table.
const MAX_CLASSES: usize = 64;

/// A getter of a class, without arguments; null if the class has none.
#[derive(Debug)]
struct CachedGetter {
    selector: AtomicPtr<std::ffi::c_void>,
    function: AtomicPtr<std::ffi::c_void>,
}

/// A property that the hooks read from objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Property {
    Size,
    AllocatedSize,
    Length,
    HeapOffset,
    Device,
}
const PROPERTY_SELECTORS: [&std::ffi::CStr; 5] =
    [c"size", c"allocatedSize", c"length", c"heapOffset", c"device"];

/// A class of Metal's objects, swizzled for the kinds of receiver it serves.
#[derive(Debug)]
pub(crate) struct SwizzledClass {
    class: AtomicPtr<std::ffi::c_void>,
    /// [`Receiver::bit`] of each kind that is being swizzled or complete.
    begun: AtomicU8,
    /// [`Receiver::bit`] of each kind that is completely swizzled.
    done: AtomicU8,
    getters: [CachedGetter; PROPERTY_SELECTORS.len()],
}

static CLASSES: [SwizzledClass; MAX_CLASSES] = [const {
    SwizzledClass {
        class: AtomicPtr::new(std::ptr::null_mut()),
        begun: AtomicU8::new(0),
        done: AtomicU8::new(0),
        getters: [const {
            CachedGetter {
                selector: AtomicPtr::new(std::ptr::null_mut()),
                function: AtomicPtr::new(std::ptr::null_mut()),
            }
        }; PROPERTY_SELECTORS.len()],
    }
}; MAX_CLASSES];

thread_local! {
    static IS_SWIZZLING: Cell<bool> = const { Cell::new(false) };
}

/// Swizzles the class of an object for a kind of receiver, unless that is done. `None` if the table
/// is full.
///
/// # Safety
/// A live object of this runtime.
pub(crate) unsafe fn ensure_swizzled(
    runtime: &dyn ObjcRuntime,
    object: ObjcId,
    receiver: Receiver,
    sink: &dyn EventSink,
) -> Option<&'static SwizzledClass> {
    // SAFETY: the caller's promise.
    let class = unsafe { runtime.class_of(object) };
    let Some(entry) = find(class) else {
        sink.lost(Loss::MethodNotSwizzled);
        return None;
    };
    if entry.done.load(Ordering::Acquire) & receiver.bit() == 0 {
        // SAFETY: the class of a live object.
        unsafe { swizzle_class(runtime, class, receiver, entry, sink) };
    }
    Some(entry)
}

/// Finds or adds the table entry of a class.
fn find(class: ObjcClass) -> Option<&'static SwizzledClass> {
    let hash = (class as usize >> 4).wrapping_mul(0x9e37_79b9) >> 16;
    (0..MAX_CLASSES).map(|at| &CLASSES[(hash + at) % MAX_CLASSES]).find(|entry| {
        let now = entry.class.load(Ordering::Acquire);
        now == class
            || now.is_null()
                && entry
                    .class
                    .compare_exchange(now, class, Ordering::AcqRel, Ordering::Acquire)
                    .map_or_else(|there| there == class, |_| true)
    })
}

/// Swizzles a class and caches its getters, or waits until another thread has done so.
///
/// # Safety
/// A class of this runtime.
#[cold]
unsafe fn swizzle_class(
    runtime: &dyn ObjcRuntime,
    class: ObjcClass,
    receiver: Receiver,
    entry: &SwizzledClass,
    sink: &dyn EventSink,
) {
    if entry.begun.fetch_or(receiver.bit(), Ordering::AcqRel) & receiver.bit() != 0 {
        while entry.done.load(Ordering::Acquire) & receiver.bit() == 0 && !IS_SWIZZLING.get() {
            std::thread::yield_now();
        }
        return;
    }
    let outer = IS_SWIZZLING.replace(true);
    for (getter, name) in entry.getters.iter().zip(PROPERTY_SELECTORS) {
        // SAFETY: the caller's class; a selector of this runtime.
        unsafe {
            let selector = runtime.register_selector(name);
            if !runtime.instance_method(class, selector).is_null() {
                getter.selector.store(selector.cast_mut(), Ordering::Release);
                getter
                    .function
                    .store(runtime.dispatched_implementation(class, selector).cast_mut(), Ordering::Release);
            }
        }
    }
    for method in SWIZZLED_METHODS.iter().filter(|method| method.receiver == receiver) {
        // SAFETY: the caller's class.
        unsafe { swizzle_method(runtime, class, method, sink) };
    }
    IS_SWIZZLING.set(outer);
    entry.done.fetch_or(receiver.bit(), Ordering::AcqRel);
}

/// Installs a trampoline for one method, if the class has it.
///
/// # Safety
/// A class of this runtime.
unsafe fn swizzle_method(
    runtime: &dyn ObjcRuntime,
    class: ObjcClass,
    swizzled: &SwizzledMethod,
    sink: &dyn EventSink,
) {
    // SAFETY: the caller's class; a selector of this runtime; a method of the class, own or
    // inherited.
    unsafe {
        let selector: ObjcSelector = runtime.register_selector(swizzled.selector);
        let method = runtime.instance_method(class, selector);
        if method.is_null() {
            return;
        }
        let Some((trampoline, function)) = claim_trampoline(swizzled, selector, runtime.superclass(class))
        else {
            sink.lost(Loss::MethodNotSwizzled);
            return;
        };
        if runtime.add_method(class, selector, function, runtime.type_encoding(method)) {
            return;
        }
        // The class defines the method itself. The original is stored first: a call may come
        // through the trampoline before `set_implementation` returns.
        let method = runtime.instance_method(class, selector);
        let original = runtime.implementation(method);
        trampoline.set_original(original);
        let replaced = runtime.set_implementation(method, function);
        if replaced != original {
            trampoline.set_original(replaced);
        }
    }
}

impl SwizzledClass {
    /// Reads a property of an object; `None` if the class does not have it.
    ///
    /// # Safety
    /// A live object of this class.
    pub(crate) unsafe fn read(&self, object: ObjcId, property: Property) -> Option<u64> {
        type GetterFn = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector) -> usize;
        let getter = &self.getters[property as usize];
        let function: ObjcImp = getter.function.load(Ordering::Acquire).cast_const();
        let selector: ObjcSelector = getter.selector.load(Ordering::Acquire).cast_const();
        if function.is_null() {
            return None;
        }
        // SAFETY: the getters of these names return a 64-bit number or an object.
        let value = unsafe { std::mem::transmute::<ObjcImp, GetterFn>(function)(object, selector) };
        Some(value as u64)
    }
}
