//! The hot path: building event records and storing them in the calling thread's ring buffer.
//!
//! Nothing here takes a lock, allocates or panics on purpose. [`crate::api`] holds the entry points
//! that hooks call.

pub(crate) mod autograd;
pub(crate) mod driver_call;
pub(crate) mod event_name;
pub(crate) mod event_text;
pub(crate) mod hook_levels;
pub(crate) mod nesting;
pub(crate) mod pending_markers;
pub(crate) mod record;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(miri)))]
mod single_steps;
pub(crate) mod thread_state;
mod tls;
