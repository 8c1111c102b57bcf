//! What threads agree on without waiting for each other.
//!
//! Constraint: nothing here may be believed because it has worked so far. Consequence: these files know atomics and nothing
//! else (no files, no mapping, no clock), so that `tests/protocol_model.rs` can run these very lines in all orders that
//! memory allows, and with each line broken; `tests/ring_kill.rs` ends them after each store.

pub(crate) mod ownership;
pub(crate) mod ring;
pub(crate) mod shutdown;
pub(crate) mod start;
