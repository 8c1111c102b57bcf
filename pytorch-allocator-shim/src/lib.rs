//! gpumemtrace's implementation of PyTorch's pluggable allocator.
//!
//! ```python
//! gpumemtrace.use_pluggable_allocator()       # before the first CUDA tensor
//! ```
//!
//! PyTorch calls a pluggable allocator for every tensor and leaves caching, streams, graphs and
//! statistics to it. This crate serves it in one of three modes:
//!
//! * *caching*: a caching allocator with the rules of PyTorch's native one
//!   ([`gpumemtrace_caching_allocator`]). It needs all of PyTorch's hooks, so the Python package
//!   installs them and calls [`gpumemtrace_use_cache`].
//! * *uncached*: only `gpumemtrace_malloc` and `gpumemtrace_free` are installed. PyTorch then does
//!   not report which streams use a block, so every tensor is one driver call, and `cuMemFree`
//!   waits for the device.
//! * *segments*: PyTorch's own allocator stays, and gets its segments from
//!   `gpumemtrace_segment_malloc` through a `torch.cuda.MemPool`.
//!
//! In the first two modes, fragmentation in a report is that of this allocator, not of PyTorch's;
//! the trace header names the mode. The interposition crate hands over the driver's functions with
//! [`install_driver`]; this crate looks up no driver symbol itself.

mod abi;
mod cache_settings;
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
pub use cache_settings::gpumemtrace_configure_cache;
pub use driver::{CuResult, DriverApi, install_driver};
pub use memory_stats::*;
pub use mode::{AllocatorMode, current_mode};
pub use stream_predicate::CppStreamPredicate;
