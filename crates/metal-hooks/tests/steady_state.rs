//! The hooks in the steady state: they allocate nothing, make each call once and record each object
//! once. If the sink panics, the program's call still goes through.
//!
//! A minimal runtime stands in for Objective-C, so that the test runs everywhere. The Python suite
//! tests a real runtime (`tests/suite/apple/test_metal.py`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpumemtrace_metal::runtime::{ObjcClass, ObjcId, ObjcImp, ObjcMethod, ObjcRuntime, ObjcSelector};
use gpumemtrace_metal::{EventSink, Loss, MetalEvent, MetalEventKind, start};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct CountingAllocator;

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's own argument.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A class: its superclass and its own methods, by selector.
type FakeClass = (Option<usize>, HashMap<usize, usize>);

/// A runtime with interned names as selectors, numbered from 1.
#[derive(Default)]
struct FakeRuntime {
    classes: Mutex<Vec<FakeClass>>,
    names: Mutex<HashMap<&'static CStr, usize>>,
}

static RUNTIME: std::sync::LazyLock<FakeRuntime> = std::sync::LazyLock::new(FakeRuntime::default);
const DEVICE: usize = 1;
const BUFFER: usize = 2;
const SUB_BUFFER: usize = 3;

impl FakeRuntime {
    fn own(&self, class: usize, selector: usize) -> Option<usize> {
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes[class].1.get(&selector).copied()
    }
    fn owner(&self, class: usize, selector: usize) -> Option<usize> {
        let mut at = Some(class);
        while let Some(class) = at {
            if self.own(class, selector).is_some() {
                return Some(class);
            }
            at = self.classes.lock().unwrap_or_else(PoisonError::into_inner)[class].0;
        }
        None
    }
    fn set(&self, class: usize, selector: usize, function: usize) {
        let mut classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes[class].1.insert(selector, function);
    }
}

/// A method handle: class and selector in one word.
fn method_handle(class: usize, selector: usize) -> ObjcMethod {
    (class << 32 | selector) as ObjcMethod
}

impl ObjcRuntime for &'static FakeRuntime {
    unsafe fn class_of(&self, object: ObjcId) -> ObjcClass {
        // SAFETY: an object of this test begins with its class.
        unsafe { *object.cast::<ObjcClass>() }
    }
    unsafe fn superclass(&self, class: ObjcClass) -> ObjcClass {
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes[class as usize].0.unwrap_or(0) as ObjcClass
    }
    unsafe fn class_name(&self, _class: ObjcClass) -> *const c_char {
        c"Fake".as_ptr()
    }
    unsafe fn register_selector(&self, name: &CStr) -> ObjcSelector {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return *known as ObjcSelector;
        }
        let next = names.len() + 1;
        names.insert(Box::leak(name.to_owned().into_boxed_c_str()), next);
        next as ObjcSelector
    }
    unsafe fn instance_method(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcMethod {
        self.owner(class as usize, selector as usize)
            .map_or(std::ptr::null_mut(), |owner| method_handle(owner, selector as usize))
    }
    unsafe fn implementation(&self, method: ObjcMethod) -> ObjcImp {
        self.own(method as usize >> 32, method as usize & 0xffff_ffff).unwrap_or(0) as ObjcImp
    }
    unsafe fn dispatched_implementation(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcImp {
        let owner = self.owner(class as usize, selector as usize);
        owner.and_then(|owner| self.own(owner, selector as usize)).unwrap_or(0) as ObjcImp
    }
    unsafe fn set_implementation(&self, method: ObjcMethod, function: ObjcImp) -> ObjcImp {
        // SAFETY: a method of this test.
        let before = unsafe { self.implementation(method) };
        self.set(method as usize >> 32, method as usize & 0xffff_ffff, function as usize);
        before
    }
    unsafe fn add_method(
        &self,
        class: ObjcClass,
        selector: ObjcSelector,
        function: ObjcImp,
        _types: *const c_char,
    ) -> bool {
        let is_new = self.own(class as usize, selector as usize).is_none();
        if is_new {
            self.set(class as usize, selector as usize, function as usize);
        }
        is_new
    }
    unsafe fn type_encoding(&self, _method: ObjcMethod) -> *const c_char {
        c"@".as_ptr()
    }
}

#[repr(C)]
struct FakeObject {
    class: usize,
    bytes: usize,
}

static CREATED_OBJECTS: AtomicU64 = AtomicU64::new(0);
static ENDED_OBJECTS: AtomicU64 = AtomicU64::new(0);
static CREATION_EVENTS: AtomicU64 = AtomicU64::new(0);
static END_EVENTS: AtomicU64 = AtomicU64::new(0);
static OTHER_EVENTS: AtomicU64 = AtomicU64::new(0);
static PANICS: AtomicU64 = AtomicU64::new(0);

struct CountingSink;

impl EventSink for CountingSink {
    fn record(&self, event: &MetalEvent) {
        let count = match event.kind {
            MetalEventKind::DirectCreated => &CREATION_EVENTS,
            MetalEventKind::DirectDestroyed => &END_EVENTS,
            _ => &OTHER_EVENTS,
        };
        assert_eq!((event.bytes, event.device), (4096, Some(0)));
        count.fetch_add(1, Ordering::Relaxed);
        // The sink panics at the third object; the program's calls must go through.
        assert!(CREATION_EVENTS.load(Ordering::Relaxed) != 3, "on purpose");
    }
    fn lost(&self, loss: Loss) {
        assert_eq!(loss, Loss::Panic);
        PANICS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Storage of the program's objects, so that the test itself allocates nothing.
static mut OBJECT_STORAGE: [FakeObject; 64] = [const { FakeObject { class: 0, bytes: 0 } }; 64];

unsafe extern "C-unwind" fn new_buffer(_: ObjcId, _: ObjcSelector, bytes: usize, class: usize) -> usize {
    let number = CREATED_OBJECTS.fetch_add(1, Ordering::Relaxed) as usize % 64;
    let place = (&raw mut OBJECT_STORAGE).cast::<FakeObject>().wrapping_add(number);
    // SAFETY: one thread; each object ends before its storage is reused.
    unsafe { place.write(FakeObject { class, bytes }) };
    place as usize
}
unsafe extern "C-unwind" fn allocated_size(this: ObjcId, _: ObjcSelector) -> usize {
    // SAFETY: an object of this test.
    unsafe { (*this.cast::<FakeObject>()).bytes }
}
unsafe extern "C-unwind" fn dealloc(_: ObjcId, _: ObjcSelector) {
    ENDED_OBJECTS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn steady_state_allocates_nothing_and_makes_each_call_once() {
    let fake: &'static FakeRuntime = &RUNTIME;
    // SAFETY: a NUL-terminated name.
    let selector = |name: &CStr| unsafe { fake.register_selector(name) } as usize;
    {
        let mut classes = fake.classes.lock().unwrap();
        classes.extend([None, None, None, Some(BUFFER)].map(|above| (above, HashMap::new())));
    }
    let new = selector(c"newBufferWithLength:options:");
    let end = selector(c"dealloc");
    fake.set(DEVICE, new, new_buffer as *const () as usize);
    fake.set(BUFFER, end, dealloc as *const () as usize);
    fake.set(BUFFER, selector(c"allocatedSize"), allocated_size as *const () as usize);
    let runtime: &'static dyn ObjcRuntime = Box::leak(Box::new(fake));
    let hooks = start(runtime, &CountingSink);
    let device = Box::leak(Box::new(FakeObject { class: DEVICE, bytes: 0 }));
    // SAFETY: it lives as long as the process.
    unsafe { hooks.observe_device(std::ptr::from_mut(device).cast::<c_void>()) };
    std::panic::set_hook(Box::new(|_| {}));
    let cycle = |class: usize| {
        type NewFn = unsafe extern "C-unwind" fn(ObjcId, usize, usize, usize) -> usize;
        type DeallocFn = unsafe extern "C-unwind" fn(usize, usize);
        let this = (&raw const *device).cast_mut().cast::<c_void>();
        // SAFETY: as the program's messages: the function of the class, with its signature.
        unsafe {
            let function = fake.dispatched_implementation(DEVICE as ObjcClass, new as ObjcSelector);
            let object = std::mem::transmute::<ObjcImp, NewFn>(function)(this, new, 4096, class);
            let function = fake.dispatched_implementation(class as ObjcClass, end as ObjcSelector);
            std::mem::transmute::<ObjcImp, DeallocFn>(function)(object, end);
        }
    };
    for _ in 0..100 {
        cycle(BUFFER);
        cycle(SUB_BUFFER);
    }
    let before = ALLOCATIONS.get();
    for _ in 0..10_000 {
        cycle(BUFFER);
        cycle(SUB_BUFFER);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&CREATED_OBJECTS), count(&ENDED_OBJECTS)), (20_200, 20_200), "each call is made once");
    assert_eq!((count(&CREATION_EVENTS), count(&END_EVENTS)), (20_200, 20_200), "one event each");
    assert_eq!(count(&OTHER_EVENTS), 0);
    assert_eq!(count(&PANICS), 2, "at the third creation and at the end of that object");
}
