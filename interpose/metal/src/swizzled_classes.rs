//! Classes that were met, and their swizzling.
//!
//! Constraint: what comes back from a call may be of a class that nobody has seen, on many threads at once, and none of them may give
//! its object to the program before its end can be seen. Consequence: a small table of classes; who puts one in swizzles it, and others
//! that meet it meanwhile wait, once in the class's life. Where a runtime comes back to us on the same thread (a class that is just
//! being made ready), it does not wait for itself.
//!
//! A method that the class does not define is added to it, and calls what it inherits: the superclass's other subclasses are none of
//! ours. Whether it does, adding itself tells, in one step: it is refused where there is a method.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::events::{Lost, Sink};
use crate::methods::{Of, ROWS, Row};
use crate::runtime::{Class, Imp, Object, Runtime, Selector};
use crate::trampolines as slots;

/// Most classes that are remembered.
const MOST: usize = 64;

/// A question to an object, with its answer a number or an object.
#[derive(Debug)]
struct Question {
    selector: AtomicPtr<std::ffi::c_void>,
    function: AtomicPtr<std::ffi::c_void>,
}

/// What objects are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asks {
    Size,
    AllocatedSize,
    Length,
    HeapOffset,
    Device,
}
const QUESTIONS: [&std::ffi::CStr; 5] = [c"size", c"allocatedSize", c"length", c"heapOffset", c"device"];

/// A class that was met.
#[derive(Debug)]
pub(crate) struct Met {
    class: AtomicPtr<std::ffi::c_void>,
    /// As what it is being swizzled, and as what it has been: [`Of::bit`].
    begun: AtomicU8,
    done: AtomicU8,
    questions: [Question; QUESTIONS.len()],
}

static CLASSES: [Met; MOST] = [const {
    Met {
        class: AtomicPtr::new(std::ptr::null_mut()),
        begun: AtomicU8::new(0),
        done: AtomicU8::new(0),
        questions: [const {
            Question {
                selector: AtomicPtr::new(std::ptr::null_mut()),
                function: AtomicPtr::new(std::ptr::null_mut()),
            }
        }; QUESTIONS.len()],
    }
}; MOST];

thread_local! {
    static IS_SWIZZLING: Cell<bool> = const { Cell::new(false) };
}

/// The class of an object, swizzled as one of these.
///
/// # Safety
/// A live object of this runtime.
pub(crate) unsafe fn meet(
    runtime: &dyn Runtime,
    object: Object,
    of: Of,
    sink: &dyn Sink,
) -> Option<&'static Met> {
    // SAFETY: the caller's promise.
    let class = unsafe { runtime.class_of(object) };
    let Some(met) = find(class) else {
        sink.lost(Lost::Method);
        return None;
    };
    if met.done.load(Ordering::Acquire) & of.bit() == 0 {
        // SAFETY: the class of a live object.
        unsafe { prepare(runtime, class, of, met, sink) };
    }
    Some(met)
}

fn find(class: Class) -> Option<&'static Met> {
    let begin = (class as usize >> 4).wrapping_mul(0x9e37_79b9) >> 16;
    (0..MOST).map(|at| &CLASSES[(begin + at) % MOST]).find(|met| {
        let now = met.class.load(Ordering::Acquire);
        now == class
            || now.is_null()
                && met
                    .class
                    .compare_exchange(now, class, Ordering::AcqRel, Ordering::Acquire)
                    .map_or_else(|there| there == class, |_| true)
    })
}

/// # Safety
/// A class of this runtime.
#[cold]
unsafe fn prepare(runtime: &dyn Runtime, class: Class, of: Of, met: &Met, sink: &dyn Sink) {
    if met.begun.fetch_or(of.bit(), Ordering::AcqRel) & of.bit() != 0 {
        while met.done.load(Ordering::Acquire) & of.bit() == 0 && !IS_SWIZZLING.get() {
            std::thread::yield_now();
        }
        return;
    }
    let was = IS_SWIZZLING.replace(true);
    for (question, name) in met.questions.iter().zip(QUESTIONS) {
        // SAFETY: the caller's class; a selector of this runtime.
        unsafe {
            let selector = runtime.selector(name);
            if !runtime.method(class, selector).is_null() {
                question.selector.store(selector.cast_mut(), Ordering::Release);
                question.function.store(runtime.dispatched(class, selector).cast_mut(), Ordering::Release);
            }
        }
    }
    for row in ROWS.iter().filter(|row| row.of == of) {
        // SAFETY: the caller's class.
        unsafe { swizzle(runtime, class, row, sink) };
    }
    IS_SWIZZLING.set(was);
    met.done.fetch_or(of.bit(), Ordering::AcqRel);
}

/// # Safety
/// A class of this runtime.
unsafe fn swizzle(runtime: &dyn Runtime, class: Class, row: &Row, sink: &dyn Sink) {
    // SAFETY: the caller's class; the selector is one of this runtime, and the method, where there is one, the class's or inherited.
    unsafe {
        let selector: Selector = runtime.selector(row.selector);
        let method = runtime.method(class, selector);
        if method.is_null() {
            return;
        }
        let Some((slot, function)) = slots::take(row, selector, runtime.superclass(class)) else {
            sink.lost(Lost::Method);
            return;
        };
        if runtime.add(class, selector, function, runtime.types(method)) {
            return;
        }
        // The class has its own; whoever calls ours before we are told what stood there calls that all the same.
        let method = runtime.method(class, selector);
        let before = runtime.function(method);
        slot.has_original(before);
        let replaced = runtime.replace(method, function);
        if replaced != before {
            slot.has_original(replaced);
        }
    }
}

impl Met {
    /// What an object says; `None` where it has no answer.
    ///
    /// # Safety
    /// A live object of this class.
    pub(crate) unsafe fn ask(&self, object: Object, asks: Asks) -> Option<u64> {
        type Answer = unsafe extern "C-unwind" fn(Object, Selector) -> usize;
        let question = &self.questions[asks as usize];
        let function: Imp = question.function.load(Ordering::Acquire).cast_const();
        let selector: Selector = question.selector.load(Ordering::Acquire).cast_const();
        if function.is_null() {
            return None;
        }
        // SAFETY: methods of these names take nothing and answer a number of 64 bits or an object.
        let answer = unsafe { std::mem::transmute::<Imp, Answer>(function)(object, selector) };
        Some(answer as u64)
    }
}
