//! Metal's memory, recorded by swizzling the concrete classes of its objects.
//!
//! PyTorch reports nothing about MPS memory, and Metal has no C functions to hook. Its classes are
//! private, so a class becomes known only with its first object. A caller that obtains a device
//! passes it to [`MetalHooks::observe_device`], which swizzles the device's class. The classes of
//! heaps, buffers and textures follow when a swizzled method returns the first of them. From then
//! on each object produces one [`MetalEvent`] when it is created and one when it is destroyed.
//!
//! None of this has run on a Mac. The crate needs nothing of the Objective-C runtime but a small
//! trait ([`runtime`]). The same code is tested on Linux under GCC's runtime, against a double of
//! Metal (`tests/metal/metal_double.m`). It type-checks for macOS where that target is installed.

mod devices;
mod events;
mod hooks;
mod methods;
mod object_info;
mod object_table;
pub mod runtime;
mod swizzled_classes;
mod synthetic_addr;
mod trampolines;

#[cfg(target_os = "macos")]
pub mod interposed;

pub use devices::{KnownDevice, MetalHooks, start};
pub use events::{EventSink, IMPORT_NO_COPY, IMPORT_SURFACE, Loss, MetalEvent, MetalEventKind};
pub use methods::{METHOD_COUNT, METHOD_NAMES};
