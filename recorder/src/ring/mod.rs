//! The per-thread ring buffers: their sizes, the mapped file they lie in, and the lock-free
//! protocol.

pub(crate) mod atomics;
pub(crate) mod geometry;
pub(crate) mod mapping;
pub(crate) mod protocol;
