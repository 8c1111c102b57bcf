//! What the simulated driver, the toolkit template and `simgpu-setup` must agree on.
//!
//! The three are built apart and meet only as files on the user's disk -> everything that crosses that border is here, once: the
//! block of per-wheel facts that `simgpu-setup` writes into each library, and how the environment is read.

mod block;
mod env;
mod ffi;

pub use block::{BLOCK_SYMBOL, Facts, FactsBlock, MAGIC};
pub use env::{parse_bool, parse_size, warn};
pub use ffi::{Answer, In, Out, Text};
