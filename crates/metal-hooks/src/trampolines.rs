//! The functions that replace swizzled methods.
//!
//! A method's function gets the object and the selector, but not the class that defines the method.
//! If a class and its superclass are both swizzled, the class decides which original to call. By
//! the object's class alone, the superclass's function would call itself without end. Only Apple's
//! runtime has closures as methods. The compiler therefore generates a fixed number of functions,
//! and each knows its own [`Trampoline`]. A method of a class claims one for the life of the
//! process. When none is left, the method stays unswizzled, and the sink gets a `Loss`.
//!
//! A trampoline calls what was installed before it. A library that swizzles later calls the
//! trampoline. An inherited method is looked up at each call, so that a later swizzle of the
//! superclass takes effect.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::hooks;
use crate::methods::{SWIZZLED_METHODS, SwizzledMethod};
use crate::runtime::{ObjcClass, ObjcId, ObjcImp, ObjcRuntime, ObjcSelector};

/// Trampolines per number of arguments.
const PER_ARITY: usize = 32;
/// Methods have zero to four arguments.
const ARITIES: usize = 5;

/// The method that a generated function stands for.
#[derive(Debug)]
pub(crate) struct Trampoline {
    /// Index of the method in [`SWIZZLED_METHODS`].
    method: AtomicUsize,
    selector: AtomicPtr<c_void>,
    /// Null if the class inherits the method; the superclass's is called then.
    original: AtomicPtr<c_void>,
    superclass: AtomicPtr<c_void>,
}

impl Trampoline {
    const fn empty() -> Self {
        Self {
            method: AtomicUsize::new(0),
            selector: AtomicPtr::new(std::ptr::null_mut()),
            original: AtomicPtr::new(std::ptr::null_mut()),
            superclass: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The row of its method.
    pub(crate) fn method(&self) -> &'static SwizzledMethod {
        &SWIZZLED_METHODS[self.method.load(Ordering::Relaxed)]
    }

    /// The function to call: the class's own original, or the inherited one.
    pub(crate) fn original(&self, runtime: &dyn ObjcRuntime) -> ObjcImp {
        let own = self.original.load(Ordering::Acquire);
        if !own.is_null() {
            return own.cast_const();
        }
        let superclass = self.superclass.load(Ordering::Acquire);
        let selector = self.selector.load(Ordering::Acquire);
        // SAFETY: the superclass and the method's selector, which live as long as the process.
        unsafe { runtime.dispatched_implementation(superclass, selector.cast_const()) }
    }

    /// Stores the class's own original function.
    pub(crate) fn set_original(&self, original: ObjcImp) {
        self.original.store(original.cast_mut(), Ordering::Release);
    }
}

static TRAMPOLINES: [[Trampoline; PER_ARITY]; ARITIES] =
    [const { [const { Trampoline::empty() }; PER_ARITY] }; ARITIES];
static CLAIMED: [AtomicUsize; ARITIES] = [const { AtomicUsize::new(0) }; ARITIES];

/// Claims a trampoline for a method of a class with this superclass, and returns it with its
/// function. `None` if all are claimed.
pub(crate) fn claim_trampoline(
    method: &SwizzledMethod,
    selector: ObjcSelector,
    superclass: ObjcClass,
) -> Option<(&'static Trampoline, ObjcImp)> {
    let number = CLAIMED[method.arguments].fetch_add(1, Ordering::Relaxed);
    let trampoline = TRAMPOLINES[method.arguments].get(number)?;
    trampoline.method.store(method.index, Ordering::Relaxed);
    trampoline.selector.store(selector.cast_mut(), Ordering::Release);
    trampoline.superclass.store(superclass, Ordering::Release);
    Some((trampoline, function(method.arguments, number)))
}

/// An argument or result: a pointer or a 64-bit number.
type ObjcWord = usize;

unsafe extern "C-unwind" fn trampoline_0<const N: usize>(this: ObjcId, selector: ObjcSelector) {
    type OriginalFn = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector);
    hooks::on_dealloc(&TRAMPOLINES[0][N], this, |original| {
        // SAFETY: the method's own or inherited function, with the caller's arguments.
        unsafe { std::mem::transmute::<ObjcImp, OriginalFn>(original)(this, selector) }
    });
}

unsafe extern "C-unwind" fn trampoline_1<const N: usize>(
    this: ObjcId,
    selector: ObjcSelector,
    a: ObjcWord,
) -> ObjcWord {
    type OriginalFn = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord) -> ObjcWord;
    hooks::on_method(&TRAMPOLINES[1][N], this, [a, 0], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<ObjcImp, OriginalFn>(original)(this, selector, a) }
    })
}

unsafe extern "C-unwind" fn trampoline_2<const N: usize>(
    this: ObjcId,
    selector: ObjcSelector,
    a: ObjcWord,
    b: ObjcWord,
) -> ObjcWord {
    type OriginalFn = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord) -> ObjcWord;
    hooks::on_method(&TRAMPOLINES[2][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<ObjcImp, OriginalFn>(original)(this, selector, a, b) }
    })
}

unsafe extern "C-unwind" fn trampoline_3<const N: usize>(
    this: ObjcId,
    selector: ObjcSelector,
    a: ObjcWord,
    b: ObjcWord,
    c: ObjcWord,
) -> ObjcWord {
    type OriginalFn =
        unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord, ObjcWord) -> ObjcWord;
    hooks::on_method(&TRAMPOLINES[3][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<ObjcImp, OriginalFn>(original)(this, selector, a, b, c) }
    })
}

unsafe extern "C-unwind" fn trampoline_4<const N: usize>(
    this: ObjcId,
    selector: ObjcSelector,
    a: ObjcWord,
    b: ObjcWord,
    c: ObjcWord,
    d: ObjcWord,
) -> ObjcWord {
    type OriginalFn =
        unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord, ObjcWord, ObjcWord) -> ObjcWord;
    hooks::on_method(&TRAMPOLINES[4][N], this, [a, b], |original| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<ObjcImp, OriginalFn>(original)(this, selector, a, b, c, d) }
    })
}

macro_rules! instantiate_all {
    ($hook:ident as $type:ty) => {
        instantiate_all!($hook as $type: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    ($hook:ident as $type:ty: $($n:literal)*) => {{
        const ALL: [$type; PER_ARITY] = [$($hook::<$n>),*];
        ALL
    }};
}

/// The generated function of a trampoline.
fn function(arguments: usize, number: usize) -> ObjcImp {
    type TrampolineFn0 = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector);
    type TrampolineFn1 = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord) -> ObjcWord;
    type TrampolineFn2 = unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord) -> ObjcWord;
    type TrampolineFn3 =
        unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord, ObjcWord) -> ObjcWord;
    type TrampolineFn4 =
        unsafe extern "C-unwind" fn(ObjcId, ObjcSelector, ObjcWord, ObjcWord, ObjcWord, ObjcWord) -> ObjcWord;
    match arguments {
        0 => instantiate_all!(trampoline_0 as TrampolineFn0)[number] as ObjcImp,
        1 => instantiate_all!(trampoline_1 as TrampolineFn1)[number] as ObjcImp,
        2 => instantiate_all!(trampoline_2 as TrampolineFn2)[number] as ObjcImp,
        3 => instantiate_all!(trampoline_3 as TrampolineFn3)[number] as ObjcImp,
        _ => instantiate_all!(trampoline_4 as TrampolineFn4)[number] as ObjcImp,
    }
}
