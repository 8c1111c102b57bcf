//! The swizzled methods, one row each.
//!
//! They are the methods that allocate memory, those that set its purgeable state, and `dealloc`.
//! Views are not among them, because they have no memory of their own: texture views
//! (`newTextureViewWithPixelFormat:`) and a buffer's textures
//! (`newTextureWithDescriptor:offset:bytesPerRow:`).

use std::ffi::CStr;

/// The kind of object that receives a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receiver {
    Device,
    Heap,
    /// A buffer or a texture.
    Resource,
}

impl Receiver {
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The effect of a method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MethodEffect {
    CreateHeap,
    /// Creates a buffer or texture, with memory of its own or inside a heap.
    CreateResource,
    /// Creates a buffer over the program's own memory.
    ImportNoCopy,
    /// Creates a texture over an IOSurface.
    ImportSurface,
    SetPurgeable,
    Dealloc,
}

/// A method that is swizzled in every class of its receiver kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwizzledMethod {
    pub(crate) receiver: Receiver,
    pub(crate) selector: &'static CStr,
    /// Number of arguments besides object and selector; all are pointers or 64-bit numbers.
    pub(crate) arguments: usize,
    pub(crate) effect: MethodEffect,
    /// Index in [`SWIZZLED_METHODS`] and [`METHOD_NAMES`].
    pub(crate) index: usize,
}

macro_rules! swizzled_methods {
    ($($receiver:ident $selector:literal $arguments:literal $effect:ident;)*) => {
        /// The swizzled methods, in the order of their names.
        pub(crate) const SWIZZLED_METHODS: &[SwizzledMethod] = &{
            let mut rows = [$(SwizzledMethod {
                receiver: Receiver::$receiver,
                selector: match CStr::from_bytes_with_nul(concat!($selector, "\0").as_bytes()) {
                    Ok(selector) => selector,
                    Err(_) => panic!("a name with a zero byte"),
                },
                arguments: $arguments,
                effect: MethodEffect::$effect,
                index: 0,
            }),*];
            let mut at = 0;
            while at < rows.len() {
                rows[at].index = at;
                at += 1;
            }
            rows
        };

        /// Names of the methods as traces show them, in the order of [`crate::MetalEvent::method`].
        pub const METHOD_NAMES: [&str; METHOD_COUNT] =
            [$(concat!("-[MTL", stringify!($receiver), " ", $selector, "]")),*];
    };
}

/// Number of swizzled methods.
pub const METHOD_COUNT: usize = 15;

swizzled_methods! {
    Device "newHeapWithDescriptor:" 1 CreateHeap;
    Device "newBufferWithLength:options:" 2 CreateResource;
    Device "newBufferWithBytes:length:options:" 3 CreateResource;
    Device "newBufferWithBytesNoCopy:length:options:deallocator:" 4 ImportNoCopy;
    Device "newTextureWithDescriptor:" 1 CreateResource;
    Device "newTextureWithDescriptor:iosurface:plane:" 3 ImportSurface;
    Device "newSharedTextureWithDescriptor:" 1 CreateResource;
    Heap "newBufferWithLength:options:" 2 CreateResource;
    Heap "newBufferWithLength:options:offset:" 3 CreateResource;
    Heap "newTextureWithDescriptor:" 1 CreateResource;
    Heap "newTextureWithDescriptor:offset:" 2 CreateResource;
    Heap "setPurgeableState:" 1 SetPurgeable;
    Heap "dealloc" 0 Dealloc;
    Resource "setPurgeableState:" 1 SetPurgeable;
    Resource "dealloc" 0 Dealloc;
}
