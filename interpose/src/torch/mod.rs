//! PyTorch's native allocator, seen from two sides.
//!
//! [`base`] is what it reports of every block to everybody, in every version. [`tracker`] is what it tells those who attach
//! to it: what was asked for, stream, pool, when a free completed, segments. [`attach`] is how we get there; [`symbols`] and
//! [`layouts`] are what must be known for that, and where one of them is missing, `base` alone is recorded.
//!
//! [`forward`] is not about memory but about whose it is: which forward line a thread of the backward pass works for.
//!
//! A block is one event: `tracker` puts its part aside, and `base`, which comes right after it on the same thread, under the
//! same lock, joins the two.

mod attach;
mod autograd_hook;
mod layouts;
mod profiler_hook;
mod release;
mod symbols;
mod torch_fn;
mod trace_tracker;

pub(crate) use attach::{attach_now, before_driver_alloc};
