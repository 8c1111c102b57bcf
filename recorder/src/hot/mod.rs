//! The hot path: from a hook to a record in the ring.

pub(crate) mod autograd;
pub(crate) mod markers;
pub(crate) mod name;
pub(crate) mod pending_markers;
pub(crate) mod record;
pub(crate) mod text;
pub(crate) mod thread_state;
mod tls;
