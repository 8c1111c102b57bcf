//! Metal's memory, seen by swizzling the concrete classes of its objects.
//!
//! Constraint: PyTorch reports nothing of MPS, Metal has no C functions to stand before, and its classes are private, so which they
//! are shows only when an object of one is there. Consequence: whoever has a device gives it to [`Hooks::device`]; its class is
//! swizzled then, that of a heap when the first heap comes back from it, that of a buffer likewise. From then on each object is
//! told once when it is made and once when it goes ([`Sink`]).
//!
//! Constraint: there is no Mac where this is tested, but there is another Objective-C runtime with nearly the same functions.
//! Consequence: all that is asked of a runtime is a small trait ([`runtime`]), and this crate needs nothing but that: it is the same
//! code under Apple's and under GCC's, and it type-checks for macOS wherever that target is installed.

mod events;
mod hooks;
mod methods;
mod object_table;
pub mod runtime;
mod swizzled_classes;
mod synthetic_addr;
mod trampolines;

#[cfg(target_os = "macos")]
pub mod interposed;

pub use events::{Happening, IMPORT_NO_COPY, IMPORT_SURFACE, Lost, Sink, What};
pub use hooks::{Hooks, KnownDevice, start};
pub use methods::{NAMES, SEEN};
