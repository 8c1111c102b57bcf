//! The functions that stand in the place of methods, each with a place to keep what it stands for.
//!
//! Constraint: a method's function is told the object and the selector, and not of which class the method is; where a class and its
//! superclass are both swizzled, that is what decides whom to call. (By the object's class alone, the superclass's function would call
//! itself for ever.) Closures as methods are Apple's only. Consequence: a fixed number of functions, made by the compiler, each of
//! which knows its number; a class's method takes one and never gives it back. Where there are none left, the method stays as it is, and that
//! is told.
//!
//! Who swizzled before us is what we call; who does it after us calls us. What a class inherits is looked up at each call, so that who
//! swizzles the superclass later is called too.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::hooks;
use crate::methods::{ROWS, Row};
use crate::runtime::{Class, Imp, Object, Runtime, Selector};

/// Methods of one number of arguments.
const COUNT: usize = 32;
/// Numbers of arguments: none to four.
const ARITIES: usize = 5;

/// What one of the functions stands for.
#[derive(Debug)]
pub(crate) struct Slot {
    row: AtomicUsize,
    selector: AtomicPtr<c_void>,
    /// Null: the class had none of its own, and what its superclass has is called.
    original: AtomicPtr<c_void>,
    superclass: AtomicPtr<c_void>,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            row: AtomicUsize::new(0),
            selector: AtomicPtr::new(std::ptr::null_mut()),
            original: AtomicPtr::new(std::ptr::null_mut()),
            superclass: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The method it stands for.
    pub(crate) fn row(&self) -> &'static Row {
        &ROWS[self.row.load(Ordering::Relaxed)]
    }

    /// Whom to call.
    pub(crate) fn original(&self, runtime: &dyn Runtime) -> Imp {
        let own = self.original.load(Ordering::Acquire);
        if !own.is_null() {
            return own.cast_const();
        }
        let superclass = self.superclass.load(Ordering::Acquire);
        let selector = self.selector.load(Ordering::Acquire);
        // SAFETY: the class that the method was inherited from, and the method's selector; both live as long as the process.
        unsafe { runtime.dispatched(superclass, selector.cast_const()) }
    }

    /// There is a method of the class's own, which this is.
    pub(crate) fn has_original(&self, original: Imp) {
        self.original.store(original.cast_mut(), Ordering::Release);
    }
}

static SLOTS: [[Slot; COUNT]; ARITIES] = [const { [const { Slot::empty() }; COUNT] }; ARITIES];
static TAKEN: [AtomicUsize; ARITIES] = [const { AtomicUsize::new(0) }; ARITIES];

/// Takes a slot for a row of [`ROWS`], of a class with this superclass. `None` where all are taken.
pub(crate) fn take(row: &Row, selector: Selector, superclass: Class) -> Option<(&'static Slot, Imp)> {
    let number = TAKEN[row.arguments].fetch_add(1, Ordering::Relaxed);
    let slot = SLOTS[row.arguments].get(number)?;
    slot.row.store(row.name, Ordering::Relaxed);
    slot.selector.store(selector.cast_mut(), Ordering::Release);
    slot.superclass.store(superclass, Ordering::Release);
    Some((slot, function(row.arguments, number)))
}

type Word = usize;

unsafe extern "C-unwind" fn hook_0<const N: usize>(this: Object, selector: Selector) {
    type Original = unsafe extern "C-unwind" fn(Object, Selector);
    hooks::dealloc(&SLOTS[0][N], this, |original| {
        // SAFETY: the method's own function, or the one it was inherited from, with the caller's arguments.
        unsafe { std::mem::transmute::<Imp, Original>(original)(this, selector) }
    });
}

unsafe extern "C-unwind" fn hook_1<const N: usize>(this: Object, selector: Selector, a: Word) -> Word {
    type Original = unsafe extern "C-unwind" fn(Object, Selector, Word) -> Word;
    hooks::method(&SLOTS[1][N], this, [a, 0], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<Imp, Original>(original)(this, selector, a) }
    })
}

unsafe extern "C-unwind" fn hook_2<const N: usize>(
    this: Object,
    selector: Selector,
    a: Word,
    b: Word,
) -> Word {
    type Original = unsafe extern "C-unwind" fn(Object, Selector, Word, Word) -> Word;
    hooks::method(&SLOTS[2][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<Imp, Original>(original)(this, selector, a, b) }
    })
}

unsafe extern "C-unwind" fn hook_3<const N: usize>(
    this: Object,
    selector: Selector,
    a: Word,
    b: Word,
    c: Word,
) -> Word {
    type Original = unsafe extern "C-unwind" fn(Object, Selector, Word, Word, Word) -> Word;
    hooks::method(&SLOTS[3][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<Imp, Original>(original)(this, selector, a, b, c) }
    })
}

unsafe extern "C-unwind" fn hook_4<const N: usize>(
    this: Object,
    selector: Selector,
    a: Word,
    b: Word,
    c: Word,
    d: Word,
) -> Word {
    type Original = unsafe extern "C-unwind" fn(Object, Selector, Word, Word, Word, Word) -> Word;
    hooks::method(&SLOTS[4][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<Imp, Original>(original)(this, selector, a, b, c, d) }
    })
}

macro_rules! all {
    ($hook:ident as $type:ty) => {
        all!($hook as $type: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    ($hook:ident as $type:ty: $($n:literal)*) => {{
        const ALL: [$type; COUNT] = [$($hook::<$n>),*];
        ALL
    }};
}

fn function(arguments: usize, number: usize) -> Imp {
    type Hook0 = unsafe extern "C-unwind" fn(Object, Selector);
    type Hook1 = unsafe extern "C-unwind" fn(Object, Selector, Word) -> Word;
    type Hook2 = unsafe extern "C-unwind" fn(Object, Selector, Word, Word) -> Word;
    type Hook3 = unsafe extern "C-unwind" fn(Object, Selector, Word, Word, Word) -> Word;
    type Hook4 = unsafe extern "C-unwind" fn(Object, Selector, Word, Word, Word, Word) -> Word;
    match arguments {
        0 => all!(hook_0 as Hook0)[number] as Imp,
        1 => all!(hook_1 as Hook1)[number] as Imp,
        2 => all!(hook_2 as Hook2)[number] as Imp,
        3 => all!(hook_3 as Hook3)[number] as Imp,
        _ => all!(hook_4 as Hook4)[number] as Imp,
    }
}
