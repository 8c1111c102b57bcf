//! The lock-free protocol between the hooks and the writer thread.
//!
//! These files use atomics and nothing else: no files, no mapping, no clock. So tests can compile
//! the same lines with other atomics. `tests/protocol_model.rs` tries all orders that the memory
//! model allows (loom) and breaks each line once; `tests/ring_kill.rs` ends the process after each
//! store.

pub(crate) mod ownership;
pub(crate) mod ring;
pub(crate) mod shutdown;
pub(crate) mod start;
