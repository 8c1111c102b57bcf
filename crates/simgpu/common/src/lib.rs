//! Definitions shared by the simulated driver, the toolkit template and `simgpu-setup`.
//!
//! These are built separately and meet as files on disk. Shared are the version block that
//! `simgpu-setup` writes, the types of C arguments, and the syntax of environment variables.

mod env;
mod ffi;
mod version_block;

pub use env::{parse_bool, parse_size, say, warn};
pub use ffi::{ApiResult, In, Out, Text};
pub use version_block::{BLOCK_SYMBOL, MAGIC, VersionBlock, WheelVersions};
