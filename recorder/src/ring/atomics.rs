//! The atomics and fences that [`super::protocol`] is written with.
//!
//! The protocol must hold in every order that the memory model allows, and no test on one machine
//! shows that. So the protocol imports its atomics from here, and `tests/protocol_model.rs`
//! compiles the same files with loom's atomics, which try all orders.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The cheap side of an asymmetric fence: only keeps the compiler from reordering.
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The expensive side: makes all threads' earlier stores visible, as if each [`light_fence`] were a
/// full fence.
pub(crate) fn heavy_fence() {
    crate::platform::barrier_on_all_threads();
}
