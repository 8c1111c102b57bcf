//! PyTorch's native CUDA allocator, and autograd.
//!
//! The allocator is seen from two sides:
//!
//! * [`profiler_hook`] hooks its report of every block, which all versions have.
//! * [`trace_tracker`] receives its trace entries: requested bytes, stream, pool, completion of
//!   frees, segments. [`attach`] attaches it, using [`symbols`] and [`layouts`]. If one of them
//!   does not know the installed version, only the reports are recorded.
//!
//! Both sides of a block become one event. The tracker stashes its entry; the report, which follows
//! on the same thread under the same lock, merges it.
//!
//! [`autograd_hook`] records which forward line a backward thread works for.

mod attach;
mod autograd_hook;
mod layouts;
mod profiler_hook;
mod release;
mod symbols;
mod torch_fn;
mod trace_tracker;

pub(crate) use attach::{attach_now, before_driver_alloc};
