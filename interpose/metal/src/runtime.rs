//! What is asked of an Objective-C runtime.
//!
//! Constraint: Apple's and GCC's differ in one thing that is needed here: GCC's has no `object_getClass` (its headers define it inline).
//! Nothing may be linked to either, because most programs have none. Consequence: a trait with two implementations over the same
//! table of functions, which are looked up by name when the first device appears.

use std::ffi::{CStr, c_char, c_void};

/// An object; a class, a selector, a method, a method's function: all opaque, as they are to C.
pub type Object = *mut c_void;
/// As [`Object`].
pub type Class = *mut c_void;
/// As [`Object`].
pub type Selector = *const c_void;
/// As [`Object`].
pub type Method = *mut c_void;
/// A method's function.
pub type Imp = *const c_void;

/// An Objective-C runtime.
///
/// # Safety
/// For all functions: objects, classes, selectors and methods are this runtime's own and not null, and live.
#[allow(clippy::missing_safety_doc, reason = "said once, above")]
pub trait Runtime: Send + Sync {
    /// Of which class an object is, as the runtime dispatches it. Takes no lock.
    unsafe fn class_of(&self, object: Object) -> Class;
    /// Null for a root.
    unsafe fn superclass(&self, class: Class) -> Class;
    /// The class's name.
    unsafe fn name(&self, class: Class) -> *const c_char;
    /// The selector of a name.
    unsafe fn selector(&self, name: &CStr) -> Selector;
    /// The method that a class has or inherits; null if it has none.
    unsafe fn method(&self, class: Class, selector: Selector) -> Method;
    /// What it calls.
    unsafe fn function(&self, method: Method) -> Imp;
    /// What instances of a class call for a selector that it has. Takes no lock once the class is in use.
    unsafe fn dispatched(&self, class: Class, selector: Selector) -> Imp;
    /// Has a method call this from now on; what it called.
    unsafe fn replace(&self, method: Method, function: Imp) -> Imp;
    /// Gives a class a method of its own. False, and nothing is changed, if it has one: of its own, not an inherited one.
    unsafe fn add(&self, class: Class, selector: Selector, function: Imp, types: *const c_char) -> bool;
    /// Types of a method's arguments, as the runtime writes them.
    unsafe fn types(&self, method: Method) -> *const c_char;
}

/// Looks a function up by name; null if there is none.
pub type LookUp<'a> = &'a dyn Fn(&CStr) -> *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The functions that both runtimes have.
        #[derive(Clone, Copy, Debug)]
        struct Functions { $($field: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl Functions {
            fn find(look_up: LookUp<'_>) -> Option<Self> {
                Some(Self { $($field: {
                    let found = look_up($name);
                    if found.is_null() {
                        return None;
                    }
                    // SAFETY: the function of this name has this signature in both runtimes.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $result>(found) }
                },)* })
            }
        }
    };
}

functions! {
    superclass = c"class_getSuperclass": fn(Class) -> Class;
    name = c"class_getName": fn(Class) -> *const c_char;
    selector = c"sel_registerName": fn(*const c_char) -> Selector;
    method = c"class_getInstanceMethod": fn(Class, Selector) -> Method;
    function = c"method_getImplementation": fn(Method) -> Imp;
    dispatched = c"class_getMethodImplementation": fn(Class, Selector) -> Imp;
    replace = c"method_setImplementation": fn(Method, Imp) -> Imp;
    add = c"class_addMethod": fn(Class, Selector, Imp, *const c_char) -> u8;
    types = c"method_getTypeEncoding": fn(Method) -> *const c_char;
}

/// Apple's runtime.
#[derive(Clone, Copy, Debug)]
pub struct Apple {
    functions: Functions,
    class_of: unsafe extern "C" fn(Object) -> Class,
}

impl Apple {
    /// If it is loaded.
    pub fn find(look_up: LookUp<'_>) -> Option<Self> {
        let class_of = look_up(c"object_getClass");
        if class_of.is_null() {
            return None;
        }
        // SAFETY: `Class object_getClass(id)`.
        let class_of =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Object) -> Class>(class_of) };
        Some(Self { functions: Functions::find(look_up)?, class_of })
    }
}

/// GCC's libobjc.
#[derive(Clone, Copy, Debug)]
pub struct Gnu(Functions);

impl Gnu {
    /// If it is loaded.
    pub fn find(look_up: LookUp<'_>) -> Option<Self> {
        // GNUstep's libobjc2 has `object_getClass`, and objects that are no pointers to a class.
        if !look_up(c"object_getClass").is_null() {
            return None;
        }
        Functions::find(look_up).map(Self)
    }
}

/// The runtime that is loaded, if it is one of the two.
pub fn find(look_up: LookUp<'_>) -> Option<Box<dyn Runtime>> {
    if cfg!(target_vendor = "apple") {
        return Some(Box::new(Apple::find(look_up)?));
    }
    Some(Box::new(Gnu::find(look_up)?))
}

macro_rules! by_functions {
    ($($functions:tt)+) => {
        unsafe fn superclass(&self, class: Class) -> Class {
            // SAFETY: as the trait asks, here and below.
            unsafe { (self.$($functions)+.superclass)(class) }
        }
        unsafe fn name(&self, class: Class) -> *const c_char {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.name)(class) }
        }
        unsafe fn selector(&self, name: &CStr) -> Selector {
            // SAFETY: a NUL-terminated name, which is copied.
            unsafe { (self.$($functions)+.selector)(name.as_ptr()) }
        }
        unsafe fn method(&self, class: Class, selector: Selector) -> Method {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.method)(class, selector) }
        }
        unsafe fn function(&self, method: Method) -> Imp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.function)(method) }
        }
        unsafe fn dispatched(&self, class: Class, selector: Selector) -> Imp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.dispatched)(class, selector) }
        }
        unsafe fn replace(&self, method: Method, function: Imp) -> Imp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.replace)(method, function) }
        }
        unsafe fn types(&self, method: Method) -> *const c_char {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.types)(method) }
        }
    };
}

impl Runtime for Apple {
    unsafe fn class_of(&self, object: Object) -> Class {
        // SAFETY: as the trait asks. The word that an object begins with is not its class here: it has other bits too.
        unsafe { (self.class_of)(object) }
    }
    unsafe fn add(&self, class: Class, selector: Selector, function: Imp, types: *const c_char) -> bool {
        // SAFETY: as the trait asks; types are those of a method that the class has or inherits.
        unsafe { (self.functions.add)(class, selector, function, types) != 0 }
    }
    by_functions!(functions);
}

impl Runtime for Gnu {
    unsafe fn class_of(&self, object: Object) -> Class {
        // SAFETY: as the trait asks. Each object begins with its class: `struct objc_object` of objc/objc.h.
        unsafe { *object.cast::<Class>() }
    }
    unsafe fn add(&self, class: Class, selector: Selector, function: Imp, types: *const c_char) -> bool {
        // A class's table of functions is made at its first message. One that is made after a method of a subclass was changed gets
        // that one's function (GCC 12): so it is made now, for the class and all above it.
        let mut each = class;
        while !each.is_null() {
            // SAFETY: as the trait asks; asking for the function of an unknown selector is allowed.
            unsafe {
                (self.0.dispatched)(each, selector);
                each = (self.0.superclass)(each);
            }
        }
        // SAFETY: as the trait asks; types are those of a method that the class has or inherits.
        unsafe { (self.0.add)(class, selector, function, types) != 0 }
    }
    by_functions!(0);
}
