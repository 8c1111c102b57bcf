//! Which methods are swizzled, and what they do.
//!
//! Those that hand out memory, those that mark it as dispensable, and the end of what was handed out. Not among them: views
//! (`newTextureViewWithPixelFormat:`, a buffer's `newTextureWithDescriptor:offset:bytesPerRow:`), which have no memory of their own.

use std::ffi::CStr;

/// Of which class a method is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Device,
    Heap,
    /// Buffers and textures.
    Resource,
}

impl Of {
    pub(crate) const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What a method does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Does {
    /// Makes a heap.
    Heap,
    /// Makes a buffer or a texture with memory of its own, or inside a heap.
    Resource,
    /// Makes a buffer of the program's own memory.
    NoCopy,
    /// Makes a texture of an IOSurface.
    Surface,
    /// Marks memory as dispensable, or not.
    Purgeable,
    /// The end.
    Dealloc,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) of: Of,
    pub(crate) selector: &'static CStr,
    /// Arguments besides the object and the selector: all of them pointers or numbers of 64 bits.
    pub(crate) arguments: usize,
    pub(crate) does: Does,
    /// Place of its name in [`NAMES`].
    pub(crate) name: usize,
}

macro_rules! rows {
    ($($of:ident $selector:literal $arguments:literal $does:ident;)*) => {
        /// What is swizzled.
        pub(crate) const ROWS: &[Row] = &{
            let mut rows = [$(Row {
                of: Of::$of,
                selector: match CStr::from_bytes_with_nul(concat!($selector, "\0").as_bytes()) {
                    Ok(selector) => selector,
                    Err(_) => panic!("a name with a zero byte"),
                },
                arguments: $arguments,
                does: Does::$does,
                name: 0,
            }),*];
            let mut at = 0;
            while at < rows.len() {
                rows[at].name = at;
                at += 1;
            }
            rows
        };

        /// What the methods are called in traces, in the order in which [`crate::Happening::method`] counts them.
        pub const NAMES: [&str; SEEN] = [$(concat!("-[MTL", stringify!($of), " ", $selector, "]")),*];
    };
}

/// How many there are.
pub const SEEN: usize = 15;

rows! {
    Device "newHeapWithDescriptor:" 1 Heap;
    Device "newBufferWithLength:options:" 2 Resource;
    Device "newBufferWithBytes:length:options:" 3 Resource;
    Device "newBufferWithBytesNoCopy:length:options:deallocator:" 4 NoCopy;
    Device "newTextureWithDescriptor:" 1 Resource;
    Device "newTextureWithDescriptor:iosurface:plane:" 3 Surface;
    Device "newSharedTextureWithDescriptor:" 1 Resource;
    Heap "newBufferWithLength:options:" 2 Resource;
    Heap "newBufferWithLength:options:offset:" 3 Resource;
    Heap "newTextureWithDescriptor:" 1 Resource;
    Heap "newTextureWithDescriptor:offset:" 2 Resource;
    Heap "setPurgeableState:" 1 Purgeable;
    Heap "dealloc" 0 Dealloc;
    Resource "setPurgeableState:" 1 Purgeable;
    Resource "dealloc" 0 Dealloc;
}
