//! Traces on disk.

pub(crate) mod open;
pub(crate) mod parts;
pub(crate) mod progress;
pub(crate) mod quick_info;
