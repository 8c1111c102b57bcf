//! gpumemtrace as PyTorch's pluggable allocator.
//!
//! ```python
//! gpumemtrace.use_pluggable_allocator()       # before the first CUDA tensor
//! ```
//!
//! Constraint: PyTorch calls a pluggable allocator for every tensor and leaves everything to it: caching, streams, graphs,
//! statistics. Consequence, three ways:
//!
//! * *caching*: an allocator with the rules of PyTorch's own (`cache/`), once all of PyTorch's hooks are given to it
//!   ([`gpumemtrace_use_cache`]; the Python package does that);
//! * *uncached*: `gpumemtrace_malloc` and `gpumemtrace_free` alone. Nobody then tells which streams use a block, so each is a
//!   call of the driver, whose free waits for all of them;
//! * *segments*: below PyTorch's own allocator, in a `torch.cuda.MemPool` (`gpumemtrace_segment_malloc`).
//!
//! What a trace says about fragmentation in the first two is about this allocator: the header names the mode. The hooks give
//! the driver's functions to this crate ([`install`]).

mod abi;
mod cache;
mod device_caches;
mod driver;
mod gpu;
mod live_bytes;
mod memory_stats;
mod mode;
mod stream_predicate;
mod torch_exception;
mod trace_events;

pub use abi::*;
pub use driver::{Driver, Error, install};
pub use memory_stats::*;
pub use mode::{Mode, mode};
pub use stream_predicate::StdFunction;
