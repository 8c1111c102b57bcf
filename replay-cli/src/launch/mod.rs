//! Starts a program with the recorder library preloaded.

pub(crate) mod git_commit;
pub mod injectable;
pub(crate) mod library;
pub(crate) mod output_pattern;
pub(crate) mod platform;
pub(crate) mod preload;
pub(crate) mod sanitizer;
