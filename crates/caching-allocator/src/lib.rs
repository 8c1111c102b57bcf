//! A caching allocator for one device, with the rules of PyTorch's native one.
//!
//! `cuMemAlloc` and `cuMemFree` synchronize the whole device, and a program creates thousands of
//! tensors a second. So memory comes from the driver in segments that are kept. A freed block
//! serves its own stream again at once, since a stream executes in order; it never serves another
//! stream. When the driver runs out of memory, the allocator frees all unused segments and retries
//! once.
//!
//! [`CachingAllocator`] reaches its device through [`CacheBackend`] and calls no driver itself. The
//! pluggable allocator runs it over a real device inside the program. Replays run it over a
//! [`SimulatedDevice`]. [`Settings`] are those of `PYTORCH_ALLOC_CONF`, and [`Rules`] what differs
//! between releases of PyTorch.
//!
//! `tests.rs` checks millions of requests against a naive model, and `tests/allocator-oracle/` in
//! the repository compares every release and setting with PyTorch's own allocator.

#![forbid(unsafe_code)]

mod address_hasher;
mod allocator;
mod arenas;
mod backend;
mod blocks;
mod ids;
mod pending_frees;
mod pools;
mod rules;
mod settings;
mod simulated;
mod size_rules;
mod stats;
#[cfg(test)]
mod tests;

pub use address_hasher::AddressHasher;
pub use allocator::{CachingAllocator, ExistingPart, ExistingSegment, PartUse, SettingsBeside, UnusedBytes};
pub use backend::{
    AllocatorTraceEntry, CacheBackend, DriverError, NOT_SUPPORTED, OUT_OF_MEMORY, TraceAction,
};
pub use ids::{EventId, FreeTicket, PoolId, ProgramBlock};
pub use pools::CaptureFilter;
pub use rules::{EqualSizeOrder, FallbackPools, PoolRouting, Rules, TorchVersion, VersionError};
pub use settings::{RoundupDivisions, Settings, SettingsError};
pub use simulated::{OutsideMemory, SimulatedDevice};
pub use stats::DeviceStats;
