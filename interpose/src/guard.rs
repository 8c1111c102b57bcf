//! No panic may leave a hook.
//!
//! Constraint: a panic that crosses into C ends the process. Consequence: everything of ours that runs in a hook runs inside
//! [`quietly`], and the real call is made outside of it, so that it is made in any case.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs our part of a hook. A panic is counted, not printed, and the hook goes on without us.
#[inline]
pub(crate) fn quietly<R>(body: impl FnOnce() -> Option<R>) -> Option<R> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        gpumemtrace_recorder::reset_hook_after_panic();
        None
    })
}
