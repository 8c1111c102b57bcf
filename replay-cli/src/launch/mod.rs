//! How a program is started with the recorder in it.

pub(crate) mod library;
pub(crate) mod output_pattern;
pub(crate) mod platform;
pub(crate) mod preload;
