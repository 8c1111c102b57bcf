//! What our functions do beside calling those in whose place they stand.
//!
//! Constraint: the program's call is made exactly once, whatever happens to us; no panic leaves; no lock and no memory in the steady state.
//! Consequence: our part is caught by itself, and the call is outside of it.
//!
//! An object is told once: by the innermost of our functions that has it in hand, which is where it is made (a class may be swizzled as
//! well as its superclass, another library may stand between, one method may call another). The *name* is that of the outermost method of the same
//! object, because that is what the program has called. Other objects that are made or end inside of a call are told like any.
//!
//! What ends is told before its method is called, everything else after it: so where an end and a beginning share memory, the end is first.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::events::{Happening, IMPORT_NO_COPY, IMPORT_SURFACE, Lost, Sink, What};
use crate::methods::{Does, Of, Row};
use crate::object_table::{Live, Put};
use crate::runtime::{Imp, Object, Runtime};
use crate::swizzled_classes::{self as classes, Asks, Met};
use crate::synthetic_addr as places;
use crate::trampolines::Slot;

/// Most devices that are told apart.
const DEVICES: usize = 16;
/// `NO_DEVICE` of the facts that are kept of an object.
const UNKNOWN: u64 = 0xff;

/// What a device says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownDevice {
    /// By the order in which devices were first seen.
    pub number: u8,
    /// What the system recommends that a process uses at most (`recommendedMaxWorkingSetSize`); more is allowed.
    pub recommended_bytes: Option<u64>,
    /// Its name.
    pub name: Option<String>,
}

/// The runtime, and who is told.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "two addresses")]
pub struct Hooks {
    runtime: &'static dyn Runtime,
    sink: &'static dyn Sink,
}

static HOOKS: OnceLock<Hooks> = OnceLock::new();
static LIVE: Live = Live::new();
static SEEN: [AtomicPtr<std::ffi::c_void>; DEVICES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; DEVICES];
/// Bytes of blocks and of heaps, by device; the last are those of unknown ones.
static HELD: [[AtomicU64; 2]; DEVICES + 1] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; DEVICES + 1];

thread_local! {
    /// The outermost method that this thread is in, of the innermost object: the object, and the method's name.
    static INSIDE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// The object that is being marked.
    static MARKING: Cell<usize> = const { Cell::new(0) };
}

/// Whom to ask, and whom to tell. The first stays.
pub fn start(runtime: &'static dyn Runtime, sink: &'static dyn Sink) -> Hooks {
    *HOOKS.get_or_init(|| Hooks { runtime, sink })
}

impl Hooks {
    /// The program has got hold of a device.
    ///
    /// # Safety
    /// Null, or a device that lives as long as the process.
    pub unsafe fn device(&self, device: Object) {
        self.quietly(|| {
            if !device.is_null() {
                number_of(device);
                // SAFETY: the caller's promise.
                unsafe { classes::meet(self.runtime, device, Of::Device, self.sink) };
            }
        });
    }

    /// As [`Hooks::device`], for all in an array.
    ///
    /// # Safety
    /// Null, or an array of such devices.
    pub unsafe fn devices(&self, devices: Object) {
        self.quietly(|| {
            if devices.is_null() {
                return;
            }
            // SAFETY: the caller's promise: an array has these, and answers for each number below its count.
            unsafe {
                for at in 0..self.ask(devices, c"count", 0).unwrap_or(0).min(DEVICES) {
                    self.device(self.ask(devices, c"objectAtIndex:", at).unwrap_or(0) as Object);
                }
            }
        });
    }

    /// The devices that were met, in the order of their numbers. Once: where a thread has no autorelease pool, each name is lost.
    pub fn known_devices(&self) -> Vec<KnownDevice> {
        let seen =
            SEEN.iter().map(|device| device.load(Ordering::Acquire)).take_while(|device| !device.is_null());
        let describe = |(number, device): (usize, Object)| {
            // SAFETY: devices live as long as the process. The first method answers a number, the second a string, which is asked
            // for its bytes before anything else can happen to it.
            unsafe {
                let recommended = self.ask(device, c"recommendedMaxWorkingSetSize", 0);
                let name = self.ask(device, c"name", 0).filter(|name| *name != 0);
                let text = name
                    .and_then(|name| self.ask(name as Object, c"UTF8String", 0))
                    .filter(|text| *text != 0);
                KnownDevice {
                    number: number as u8,
                    recommended_bytes: recommended.filter(|bytes| *bytes != 0).map(|bytes| bytes as u64),
                    name: text.map(|text| {
                        std::ffi::CStr::from_ptr(text as *const std::ffi::c_char)
                            .to_string_lossy()
                            .into_owned()
                    }),
                }
            }
        };
        seen.enumerate().map(describe).collect()
    }

    /// Asks an object for something, by the runtime's dispatch; `None` where it has no such method.
    ///
    /// # Safety
    /// A live object; a method that takes so many numbers of 64 bits and answers one, or an object.
    unsafe fn ask(&self, object: Object, selector: &std::ffi::CStr, argument: usize) -> Option<usize> {
        type Method = unsafe extern "C-unwind" fn(Object, *const std::ffi::c_void, usize) -> usize;
        // SAFETY: the caller's promise. One argument more than a method takes is in a register that it does not read.
        unsafe {
            let (class, selector) = (self.runtime.class_of(object), self.runtime.selector(selector));
            if self.runtime.method(class, selector).is_null() {
                return None;
            }
            let function = self.runtime.dispatched(class, selector);
            Some(std::mem::transmute::<Imp, Method>(function)(object, selector, argument))
        }
    }

    fn quietly(&self, body: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            self.sink.lost(Lost::Panic);
        }
    }
}

/// Puts a thread's note back, also where an exception of Objective-C passes through.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);

impl<T: Copy + 'static> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// A method that is not the end: makes something, or marks it.
pub(crate) fn method(
    slot: &Slot,
    this: Object,
    arguments: [usize; 2],
    call: impl FnOnce(Imp) -> usize,
) -> usize {
    let Some(hooks) = HOOKS.get() else { unreachable_call(call) };
    let row = slot.row();
    let original = slot.original(hooks.runtime);
    if row.does == Does::Purgeable {
        let outer = MARKING.replace(this as usize);
        let restore = Restore(&MARKING, outer);
        let before = call(original);
        drop(restore);
        if outer != this as usize {
            hooks.quietly(|| marked(*hooks, row, this, [arguments[0] as u64, before as u64]));
        }
        return before;
    }
    let outer = INSIDE.get();
    let name = if outer.0 == this as usize { outer.1 } else { row.name };
    INSIDE.set((this as usize, name));
    let restore = Restore(&INSIDE, outer);
    let object = call(original);
    drop(restore);
    hooks.quietly(|| {
        if object == 0 {
            // One that is inside another of the same object is that one's affair.
            if outer.0 != this as usize {
                failed(*hooks, row, this);
            }
        } else {
            // SAFETY: what a method that makes an object has just returned, and nobody else has.
            unsafe { made(*hooks, (row, name), this, object as Object) };
        }
    });
    object
}

/// A slot is only given to a class after [`start`]; there is nobody else who could call us.
fn unreachable_call(_: impl FnOnce(Imp) -> usize) -> ! {
    std::process::abort()
}

/// The end of an object.
pub(crate) fn dealloc(slot: &Slot, this: Object, call: impl FnOnce(Imp)) {
    let Some(hooks) = HOOKS.get() else { std::process::abort() };
    hooks.quietly(|| ended(*hooks, slot.row(), this));
    call(slot.original(hooks.runtime));
}

/// What is kept of an object: its address; its bytes; what it is, its device, and whether it lies inside of its heap's range.
#[derive(Clone, Copy)]
struct Kept {
    addr: u64,
    bytes: u64,
    what: What,
    device: u64,
    is_inside: bool,
}

impl Kept {
    fn facts(self) -> [u64; 3] {
        [self.addr, self.bytes, self.what as u64 | self.device << 8 | u64::from(self.is_inside) << 16]
    }

    fn from_facts([addr, bytes, rest]: [u64; 3]) -> Self {
        let whats = [What::Heap, What::Block, What::Direct, What::Import];
        let what = whats.into_iter().find(|what| *what as u64 == rest & 0xff).unwrap_or(What::Direct);
        Self { addr, bytes, what, device: rest >> 8 & 0xff, is_inside: rest >> 16 & 1 == 1 }
    }

    fn of(object: Object) -> Option<Self> {
        LIVE.get(object as u64).map(Self::from_facts)
    }
}

/// # Safety
/// `this` is the receiver, which lives; so does `object`, which it has made.
unsafe fn made(hooks: Hooks, (row, method): (&Row, usize), this: Object, object: Object) {
    if LIVE.get(object as u64).is_some() {
        return;
    }
    let of = if row.does == Does::Heap { Of::Heap } else { Of::Resource };
    // SAFETY: the caller's promise.
    let Some(met) = (unsafe { classes::meet(hooks.runtime, object, of, hooks.sink) }) else { return };
    // SAFETY: as above; it is of this class.
    let ask = |asks| unsafe { met.ask(object, asks) }.filter(|bytes| *bytes > 0);
    let asked = ask(if of == Of::Heap { Asks::Size } else { Asks::Length });
    // What an imported object takes of Metal's own is no question of its memory.
    let (bytes, is_estimated) = match row.does {
        Does::Heap | Does::NoCopy => (asked.or_else(|| ask(Asks::AllocatedSize)), false),
        _ => match ask(Asks::AllocatedSize) {
            Some(bytes) => (Some(bytes), false),
            None => (asked, true),
        },
    };
    let bytes = bytes.unwrap_or(0);
    // SAFETY: the caller's promise.
    let (heap, device) = unsafe { whereabouts(hooks, row.of, this) };
    let (what, place, numbers) = match row.does {
        Does::Heap => (What::Heap, (places::fresh(bytes), false), [0; 2]),
        Does::NoCopy => (What::Import, (places::fresh(bytes), false), [IMPORT_NO_COPY, 0]),
        Does::Surface => (What::Import, (places::fresh(bytes), false), [IMPORT_SURFACE, 0]),
        _ if row.of == Of::Heap => {
            // SAFETY: as above. Zero is an offset like any.
            let offset = unsafe { met.ask(object, Asks::HeapOffset) };
            (What::Block, places::inside(heap, offset, bytes), [0; 2])
        }
        _ => (What::Direct, (places::fresh(bytes), false), [0; 2]),
    };
    let kept = Kept { addr: place.0, bytes, what, device, is_inside: place.1 };
    if LIVE.put(object as u64, kept.facts()) == Put::Full {
        hooks.sink.lost(Lost::Object);
    }
    let held = hold(kept, u64::wrapping_add);
    hooks.sink.record(&Happening { is_estimated, numbers, held, ..happening(kept, what, method) });
}

/// A call that gave nothing.
fn failed(hooks: Hooks, row: &Row, this: Object) {
    // SAFETY: the receiver of a call that has just returned lives.
    let (_, device) = unsafe { whereabouts(hooks, row.of, this) };
    let what = match row.does {
        Does::Heap => What::Heap,
        Does::NoCopy | Does::Surface => What::Import,
        _ if row.of == Of::Heap => What::Block,
        _ => What::Direct,
    };
    let kept = Kept { addr: 0, bytes: 0, what, device, is_inside: false };
    hooks.sink.record(&Happening { has_failed: true, ..happening(kept, what, row.name) });
}

fn marked(hooks: Hooks, row: &Row, this: Object, numbers: [u64; 2]) {
    // "Keep" asks what it is, and changes nothing.
    const KEEP: u64 = 1;
    if numbers[0] == KEEP {
        return;
    }
    let unknown = Kept { addr: 0, bytes: 0, what: What::Purgeable, device: UNKNOWN, is_inside: false };
    let kept = Kept::of(this).unwrap_or(unknown);
    hooks.sink.record(&Happening { numbers, ..happening(kept, What::Purgeable, row.name) });
}

fn ended(hooks: Hooks, row: &Row, this: Object) {
    let Some(kept) = LIVE.take(this as u64).map(Kept::from_facts) else { return };
    let what = match kept.what {
        What::Heap => What::HeapEnds,
        What::Block => What::BlockEnds,
        What::Import => What::ImportEnds,
        _ => What::DirectEnds,
    };
    let held = hold(kept, u64::wrapping_sub);
    hooks.sink.record(&Happening { held, ..happening(kept, what, row.name) });
    if kept.is_inside {
        places::leave(kept.addr);
    }
}

fn happening(kept: Kept, what: What, method: usize) -> Happening {
    Happening {
        what,
        method,
        device: u8::try_from(kept.device).ok().filter(|device| u64::from(*device) != UNKNOWN),
        addr: kept.addr,
        bytes: kept.bytes,
        is_estimated: false,
        has_failed: false,
        numbers: [0; 2],
        held: held_by(kept.device).each_ref().map(|bytes| bytes.load(Ordering::Relaxed)),
    }
}

fn held_by(device: u64) -> &'static [AtomicU64; 2] {
    &HELD[(device as usize).min(DEVICES)]
}

/// Counts it; what there is then.
fn hold(kept: Kept, change: fn(u64, u64) -> u64) -> [u64; 2] {
    let held = held_by(kept.device);
    let bytes = |counts: bool| change(0, if counts { kept.bytes } else { 0 });
    let (blocks, heaps) = (bytes(kept.what == What::Block), bytes(kept.what == What::Heap));
    [(0, blocks), (1, heaps)].map(|(at, more)| held[at].fetch_add(more, Ordering::Relaxed).wrapping_add(more))
}

/// Of the receiver: its range, if it is a heap that was told, and its device.
///
/// # Safety
/// It lives.
unsafe fn whereabouts(hooks: Hooks, of: Of, this: Object) -> (Option<(u64, u64)>, u64) {
    if of == Of::Device {
        return (None, number_of(this));
    }
    if let Some(heap) = Kept::of(this) {
        return (Some((heap.addr, heap.bytes)), heap.device);
    }
    // One that was there before us.
    // SAFETY: the caller's promise; it was swizzled as a heap, so its class was met.
    let met: Option<&Met> = unsafe { classes::meet(hooks.runtime, this, Of::Heap, hooks.sink) };
    // SAFETY: as above.
    let device = met.and_then(|met| unsafe { met.ask(this, Asks::Device) });
    (None, device.filter(|device| *device != 0).map_or(UNKNOWN, |device| number_of(device as Object)))
}

/// Devices are counted as they are met.
fn number_of(device: Object) -> u64 {
    let is_at = |place: &AtomicPtr<std::ffi::c_void>| {
        place
            .compare_exchange(std::ptr::null_mut(), device, Ordering::AcqRel, Ordering::Acquire)
            .map_or_else(|there| there == device, |_| true)
    };
    SEEN.iter().position(is_at).map_or(UNKNOWN, |number| number as u64)
}
