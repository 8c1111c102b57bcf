//! Keeps panics inside the hooks.
//!
//! A panic that unwinds into C code aborts the process. Every hook therefore runs its own part
//! inside [`catch_panic`]. The real call is outside of it and happens even if our part fails.
//!
//! Nothing but a panic may unwind here: what Rust catches of a cancelled thread, glibc answers with
//! an abort. So our part has no cancellation point outside of
//! [`without_cancellation`](gpumemtrace_recorder::without_cancellation).

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` and returns its value, or `None` after a panic.
///
/// A panic is counted as an internal error of the recording. The panic hook that the constructor
/// installs keeps its message off stderr.
#[inline]
pub(crate) fn catch_panic<R>(body: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        gpumemtrace_recorder::reset_hook_after_panic();
        None
    })
}
