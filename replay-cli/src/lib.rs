//! Readers of untrusted files: symbols of libraries, and executables of macOS.
//!
//! They form a library so that the fuzzers can reach them. Everything else belongs to the binary
//! (`main.rs`).
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod symbolize;

/// The part of `launch` that reads untrusted files.
#[doc(hidden)]
pub mod launch {
    pub mod injectable;
}
