//! The atomics that [`crate::ring::protocol`] is written in.
//!
//! Constraint: what the protocol promises must hold in every order that the machine may choose, which no test on one machine
//! shows. Consequence: the protocol takes its atomics from here, and `tests/protocol_model.rs` compiles the same files with
//! others, that try all orders.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The cheap side of an asymmetric fence: keeps the compiler from reordering.
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The dear side: all threads' stores are visible, as if each [`light_fence`] were a whole one.
pub(crate) fn heavy_fence() {
    crate::platform::all_threads();
}
