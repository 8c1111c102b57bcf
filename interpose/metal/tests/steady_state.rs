//! The hooks in the steady state: they take no memory, each call is made once, each object is told once, and a failure of ours is no one else's.
//!
//! The runtime is one of our own, of a dozen lines, so that this runs where there is no Objective-C; what real ones do, the suite tries.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpumemtrace_metal::runtime::{Class, Imp, Method, Object, Runtime, Selector};
use gpumemtrace_metal::{Happening, Lost, Sink, What, start};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's, counted.
unsafe impl GlobalAlloc for Counting {
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
static COUNTING: Counting = Counting;

/// A class: its superclass and its own methods, by selector.
type FakeClass = (Option<usize>, HashMap<usize, usize>);

/// A selector is its name, kept once.
#[derive(Default)]
struct Fake {
    classes: Mutex<Vec<FakeClass>>,
    names: Mutex<HashMap<&'static CStr, usize>>,
}

static FAKE: std::sync::LazyLock<Fake> = std::sync::LazyLock::new(Fake::default);
const DEVICE: usize = 1;
const BUFFER: usize = 2;
const SUB_BUFFER: usize = 3;

impl Fake {
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

/// A method is its class and its selector.
fn method(class: usize, selector: usize) -> Method {
    (class << 32 | selector) as Method
}

impl Runtime for &'static Fake {
    unsafe fn class_of(&self, object: Object) -> Class {
        // SAFETY: an object of this test begins with its class.
        unsafe { *object.cast::<Class>() }
    }
    unsafe fn superclass(&self, class: Class) -> Class {
        let classes = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        classes[class as usize].0.unwrap_or(0) as Class
    }
    unsafe fn name(&self, _class: Class) -> *const c_char {
        c"Fake".as_ptr()
    }
    unsafe fn selector(&self, name: &CStr) -> Selector {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return *known as Selector;
        }
        let next = names.len() + 1;
        names.insert(Box::leak(name.to_owned().into_boxed_c_str()), next);
        next as Selector
    }
    unsafe fn method(&self, class: Class, selector: Selector) -> Method {
        self.owner(class as usize, selector as usize)
            .map_or(std::ptr::null_mut(), |owner| method(owner, selector as usize))
    }
    unsafe fn function(&self, method: Method) -> Imp {
        self.own(method as usize >> 32, method as usize & 0xffff_ffff).unwrap_or(0) as Imp
    }
    unsafe fn dispatched(&self, class: Class, selector: Selector) -> Imp {
        let owner = self.owner(class as usize, selector as usize);
        owner.and_then(|owner| self.own(owner, selector as usize)).unwrap_or(0) as Imp
    }
    unsafe fn replace(&self, method: Method, function: Imp) -> Imp {
        // SAFETY: a method of this test.
        let before = unsafe { self.function(method) };
        self.set(method as usize >> 32, method as usize & 0xffff_ffff, function as usize);
        before
    }
    unsafe fn add(&self, class: Class, selector: Selector, function: Imp, _types: *const c_char) -> bool {
        let is_new = self.own(class as usize, selector as usize).is_none();
        if is_new {
            self.set(class as usize, selector as usize, function as usize);
        }
        is_new
    }
    unsafe fn types(&self, _method: Method) -> *const c_char {
        c"@".as_ptr()
    }
}

#[repr(C)]
struct FakeObject {
    class: usize,
    bytes: usize,
}

static MADE: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static TOLD: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

struct Told;

impl Sink for Told {
    fn record(&self, happening: &Happening) {
        let at = match happening.what {
            What::Direct => 0,
            What::DirectEnds => 1,
            _ => 2,
        };
        assert_eq!((happening.bytes, happening.device), (4096, Some(0)));
        TOLD[at].fetch_add(1, Ordering::Relaxed);
        // Whoever is told may fail: the program's call goes through all the same.
        assert!(TOLD[0].load(Ordering::Relaxed) != 3, "on purpose");
    }
    fn lost(&self, lost: Lost) {
        assert_eq!(lost, Lost::Panic);
        TOLD[2].fetch_add(1, Ordering::Relaxed);
    }
}

/// What the program's objects lie in: the test's own allocations are none of the hooks'.
static mut PLACES: [FakeObject; 64] = [const { FakeObject { class: 0, bytes: 0 } }; 64];

unsafe extern "C-unwind" fn new_buffer(_: Object, _: Selector, bytes: usize, class: usize) -> usize {
    let number = MADE.fetch_add(1, Ordering::Relaxed) as usize % 64;
    let place = (&raw mut PLACES).cast::<FakeObject>().wrapping_add(number);
    // SAFETY: one thread; each object ends before its place comes again.
    unsafe { place.write(FakeObject { class, bytes }) };
    place as usize
}
unsafe extern "C-unwind" fn allocated_size(this: Object, _: Selector) -> usize {
    // SAFETY: an object of this test.
    unsafe { (*this.cast::<FakeObject>()).bytes }
}
unsafe extern "C-unwind" fn dealloc(_: Object, _: Selector) {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn nothing_is_allocated_and_each_call_is_made_once() {
    let fake: &'static Fake = &FAKE;
    // SAFETY: a name.
    let selector = |name: &CStr| unsafe { fake.selector(name) } as usize;
    {
        let mut classes = fake.classes.lock().unwrap();
        classes.extend([None, None, None, Some(BUFFER)].map(|above| (above, HashMap::new())));
    }
    let new = selector(c"newBufferWithLength:options:");
    let end = selector(c"dealloc");
    fake.set(DEVICE, new, new_buffer as *const () as usize);
    fake.set(BUFFER, end, dealloc as *const () as usize);
    fake.set(BUFFER, selector(c"allocatedSize"), allocated_size as *const () as usize);
    let runtime: &'static dyn Runtime = Box::leak(Box::new(fake));
    let hooks = start(runtime, &Told);
    let device = Box::leak(Box::new(FakeObject { class: DEVICE, bytes: 0 }));
    // SAFETY: it lives as long as the process.
    unsafe { hooks.device(std::ptr::from_mut(device).cast::<c_void>()) };
    std::panic::set_hook(Box::new(|_| {}));
    let cycle = |class: usize| {
        type New = unsafe extern "C-unwind" fn(Object, usize, usize, usize) -> usize;
        type End = unsafe extern "C-unwind" fn(usize, usize);
        let this = (&raw const *device).cast_mut().cast::<c_void>();
        // SAFETY: as a program's messages: what the class says now, with these types.
        unsafe {
            let function = fake.dispatched(DEVICE as Class, new as Selector);
            let object = std::mem::transmute::<Imp, New>(function)(this, new, 4096, class);
            let function = fake.dispatched(class as Class, end as Selector);
            std::mem::transmute::<Imp, End>(function)(object, end);
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
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    assert_eq!((count(&MADE), count(&ENDED)), (20_200, 20_200), "each call once, also where we failed");
    assert_eq!([count(&TOLD[0]), count(&TOLD[1])], [20_200, 20_200], "each told once, also of a subclass");
    assert_eq!(count(&TOLD[2]), 2, "the failure on purpose, at the third and at its end");
}
