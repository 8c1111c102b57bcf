//! The functions of an Objective-C runtime that the hooks need.
//!
//! Apple's and GCC's runtimes differ in one of them: GCC's has no `object_getClass`, which its
//! headers define inline. This library must not link to either runtime, since most programs have
//! none. [`ObjcRuntime`] therefore has two implementations over one table of functions, which are
//! looked up by name when the first device appears.

use std::ffi::{CStr, c_char, c_void};

/// `id`: a pointer to an object. As in C, this and the following types are opaque.
pub type ObjcId = *mut c_void;
/// `Class`: a pointer to a class.
pub type ObjcClass = *mut c_void;
/// `SEL`: a registered method name.
pub type ObjcSelector = *const c_void;
/// `Method`: a pointer to a method of a class.
pub type ObjcMethod = *mut c_void;
/// `IMP`: the function of a method.
pub type ObjcImp = *const c_void;

/// An Objective-C runtime.
///
/// # Safety
/// For all functions: objects, classes, selectors and methods belong to this runtime, are alive and
/// not null.
#[allow(clippy::missing_safety_doc, reason = "documented once for all functions")]
pub trait ObjcRuntime: Send + Sync {
    /// The class by which the runtime dispatches messages to an object. Takes no lock.
    unsafe fn class_of(&self, object: ObjcId) -> ObjcClass;
    /// The superclass; null for a root class.
    unsafe fn superclass(&self, class: ObjcClass) -> ObjcClass;
    /// The name of a class.
    unsafe fn class_name(&self, class: ObjcClass) -> *const c_char;
    /// Registers a selector, or returns the existing one.
    unsafe fn register_selector(&self, name: &CStr) -> ObjcSelector;
    /// The method that a class defines or inherits; null if there is none.
    unsafe fn instance_method(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcMethod;
    /// The function that a method calls.
    unsafe fn implementation(&self, method: ObjcMethod) -> ObjcImp;
    /// The function that a message to an instance calls. Takes no lock once the class is in use.
    unsafe fn dispatched_implementation(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcImp;
    /// Replaces the function of a method and returns the previous one.
    unsafe fn set_implementation(&self, method: ObjcMethod, function: ObjcImp) -> ObjcImp;
    /// Adds a method to a class. False, without a change, if the class itself defines one already;
    /// an inherited method does not count.
    unsafe fn add_method(
        &self,
        class: ObjcClass,
        selector: ObjcSelector,
        function: ObjcImp,
        types: *const c_char,
    ) -> bool;
    /// The types of a method's arguments, in the runtime's encoding.
    unsafe fn type_encoding(&self, method: ObjcMethod) -> *const c_char;
}

/// Looks up a function by name; null if there is none.
pub type SymbolLookup<'a> = &'a dyn Fn(&CStr) -> *mut c_void;

macro_rules! runtime_functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The functions that both runtimes export.
        #[derive(Clone, Copy, Debug)]
        struct RuntimeFunctions { $($field: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl RuntimeFunctions {
            fn find(look_up: SymbolLookup<'_>) -> Option<Self> {
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

runtime_functions! {
    superclass = c"class_getSuperclass": fn(ObjcClass) -> ObjcClass;
    class_name = c"class_getName": fn(ObjcClass) -> *const c_char;
    register_selector = c"sel_registerName": fn(*const c_char) -> ObjcSelector;
    instance_method = c"class_getInstanceMethod": fn(ObjcClass, ObjcSelector) -> ObjcMethod;
    implementation = c"method_getImplementation": fn(ObjcMethod) -> ObjcImp;
    dispatched_implementation = c"class_getMethodImplementation": fn(ObjcClass, ObjcSelector) -> ObjcImp;
    set_implementation = c"method_setImplementation": fn(ObjcMethod, ObjcImp) -> ObjcImp;
    add_method = c"class_addMethod": fn(ObjcClass, ObjcSelector, ObjcImp, *const c_char) -> u8;
    type_encoding = c"method_getTypeEncoding": fn(ObjcMethod) -> *const c_char;
}

/// Apple's runtime. Not yet run on a Mac.
#[derive(Clone, Copy, Debug)]
struct AppleRuntime {
    functions: RuntimeFunctions,
    class_of: unsafe extern "C" fn(ObjcId) -> ObjcClass,
}

impl AppleRuntime {
    /// The runtime, if it is loaded.
    fn find(look_up: SymbolLookup<'_>) -> Option<Self> {
        let class_of = look_up(c"object_getClass");
        if class_of.is_null() {
            return None;
        }
        // SAFETY: `Class object_getClass(id)`.
        let class_of = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(ObjcId) -> ObjcClass>(class_of)
        };
        Some(Self { functions: RuntimeFunctions::find(look_up)?, class_of })
    }
}

/// GCC's Objective-C runtime, libobjc.
#[derive(Clone, Copy, Debug)]
struct GnuRuntime(RuntimeFunctions);

impl GnuRuntime {
    /// The runtime, if it is loaded.
    fn find(look_up: SymbolLookup<'_>) -> Option<Self> {
        // GNUstep's libobjc2 exports `object_getClass`; its objects may not begin with a class
        // pointer.
        if !look_up(c"object_getClass").is_null() {
            return None;
        }
        RuntimeFunctions::find(look_up).map(Self)
    }
}

/// The loaded runtime; `None` if there is none or an unknown one.
pub fn find(look_up: SymbolLookup<'_>) -> Option<Box<dyn ObjcRuntime>> {
    if cfg!(target_vendor = "apple") {
        return Some(Box::new(AppleRuntime::find(look_up)?));
    }
    Some(Box::new(GnuRuntime::find(look_up)?))
}

macro_rules! call_by_table {
    ($($functions:tt)+) => {
        unsafe fn superclass(&self, class: ObjcClass) -> ObjcClass {
            // SAFETY: as the trait requires, here and below.
            unsafe { (self.$($functions)+.superclass)(class) }
        }
        unsafe fn class_name(&self, class: ObjcClass) -> *const c_char {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.class_name)(class) }
        }
        unsafe fn register_selector(&self, name: &CStr) -> ObjcSelector {
            // SAFETY: a NUL-terminated name, which is copied.
            unsafe { (self.$($functions)+.register_selector)(name.as_ptr()) }
        }
        unsafe fn instance_method(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcMethod {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.instance_method)(class, selector) }
        }
        unsafe fn implementation(&self, method: ObjcMethod) -> ObjcImp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.implementation)(method) }
        }
        unsafe fn dispatched_implementation(&self, class: ObjcClass, selector: ObjcSelector) -> ObjcImp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.dispatched_implementation)(class, selector) }
        }
        unsafe fn set_implementation(&self, method: ObjcMethod, function: ObjcImp) -> ObjcImp {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.set_implementation)(method, function) }
        }
        unsafe fn type_encoding(&self, method: ObjcMethod) -> *const c_char {
            // SAFETY: as above.
            unsafe { (self.$($functions)+.type_encoding)(method) }
        }
    };
}

impl ObjcRuntime for AppleRuntime {
    unsafe fn class_of(&self, object: ObjcId) -> ObjcClass {
        // SAFETY: as the trait requires. The first word of an object has other bits besides its
        // class.
        unsafe { (self.class_of)(object) }
    }
    unsafe fn add_method(
        &self,
        class: ObjcClass,
        selector: ObjcSelector,
        function: ObjcImp,
        types: *const c_char,
    ) -> bool {
        // SAFETY: as the trait requires; the types are those of a method that the class has or
        // inherits.
        unsafe { (self.functions.add_method)(class, selector, function, types) != 0 }
    }
    call_by_table!(functions);
}

impl ObjcRuntime for GnuRuntime {
    unsafe fn class_of(&self, object: ObjcId) -> ObjcClass {
        // SAFETY: as the trait requires. An object begins with its class: `struct objc_object` in
        // objc/objc.h.
        unsafe { *object.cast::<ObjcClass>() }
    }
    unsafe fn add_method(
        &self,
        class: ObjcClass,
        selector: ObjcSelector,
        function: ObjcImp,
        types: *const c_char,
    ) -> bool {
        // GCC's runtime builds the dispatch table of a class at its first message. If a method of a
        // subclass was changed before, the new table gets the subclass's function (seen in GCC 12).
        // Asking for a dispatched function builds the tables of the class and its superclasses now.
        let mut ancestor = class;
        while !ancestor.is_null() {
            // SAFETY: as the trait requires; an unknown selector is allowed here.
            unsafe {
                (self.0.dispatched_implementation)(ancestor, selector);
                ancestor = (self.0.superclass)(ancestor);
            }
        }
        // SAFETY: as the trait requires; the types are those of a method that the class has or
        // inherits.
        unsafe { (self.0.add_method)(class, selector, function, types) != 0 }
    }
    call_by_table!(0);
}
