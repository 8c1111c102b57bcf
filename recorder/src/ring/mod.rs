//! The per-thread ring buffers: geometry, mapping, and the lock-free protocol.

pub(crate) mod atomics;
pub(crate) mod geometry;
pub(crate) mod mapping;
pub(crate) mod protocol;
