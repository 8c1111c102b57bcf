//! What the recorder asks of the operating system beyond POSIX.
//!
//! Constraint: Linux and macOS answer the same questions (whose thread is this, is that one gone, is this address readable, put this
//! memory over that) with calls that have nothing in common. Consequence: each question is a function here, once for each
//! system under the same name, and no other file of the recorder asks which system it is on.
//!
//! What has no answer on macOS says so where it is asked: there are no leases on files, and the kernel empties no page in a child.

pub(crate) mod clock;
pub(crate) mod guarded_file;
pub(crate) mod process_memory;
pub(crate) mod signals;
pub(crate) mod unload_counter;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub use linux::*;

#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "macos")]
pub use macos::*;

// Elsewhere than on macOS only its tests need it.
#[cfg(any(target_os = "macos", all(test, not(miri))))]
mod macho;

/// What somebody waits for who wants a file of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "there are no leases"))]
pub(crate) enum LeaseRequest {
    /// Nobody does, or there is no lease.
    None,
    /// To read the file.
    Read,
    /// To write to it, or to cut it.
    Write,
}
