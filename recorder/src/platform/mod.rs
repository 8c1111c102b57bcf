//! What the recorder asks of the operating system beyond POSIX.
//!
//! Linux and macOS answer the same questions with calls that have nothing in common: has that
//! thread ended, is this address readable, replace this mapping by that one. So each question is a
//! function in `linux` and in `macos`, under the same name. No other module of the recorder depends
//! on the system. macOS has no file leases, and its kernel cannot zero a page in a forked child;
//! its functions for these do nothing.

pub(crate) mod cancellation;
pub(crate) mod clock;
pub(crate) mod fork_gate;
pub(crate) mod free_memory;
pub(crate) mod guarded_file;
pub(crate) mod hook_frames;
pub(crate) mod life_mark;
pub(crate) mod own_thread;
pub(crate) mod patience;
pub(crate) mod process_memory;
pub(crate) mod side_stack;
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

// On other systems only the tests of this module need it.
#[cfg(any(target_os = "macos", all(test, not(miri))))]
mod macho;

/// How the last thread of the program has ended, while the recorder's own thread still runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "there all threads end through the C library"))]
pub(crate) enum LastThreadEnd {
    /// Through the C library, which then runs the exit handlers with exit code 0.
    Returned,
    /// By the system call `exit`, with this status. No exit handler runs.
    Exited(i32),
    /// The kernel has ended it with this signal: a seccomp filter that kills one thread.
    Killed(i32),
    /// Past the C library, and the kernel's account of it cannot be read.
    Unknown,
}

/// What another process waits for that opens or truncates a leased file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(target_os = "macos", allow(dead_code, reason = "there are no leases"))]
pub(crate) enum LeaseRequest {
    /// No process waits, or there is no lease.
    None,
    /// A process wants to read the file.
    Read,
    /// A process wants to write to the file or to truncate it.
    Write,
}
