//! The functions that the hooks call.

pub(crate) mod events;
pub(crate) mod markers;
