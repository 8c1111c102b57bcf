//! The memory state that the pass maintains: live blocks, driver memory, segments and totals.

pub(crate) mod async_pools;
pub(crate) mod attribution;
pub(crate) mod driver;
pub(crate) mod holder_scans;
pub(crate) mod live_set;
pub(crate) mod managed_segments;
pub(crate) mod mps_samples;
pub(crate) mod pool_key;
pub(crate) mod pool_uses;
pub(crate) mod request_histogram;
pub(crate) mod segments;
pub(crate) mod sleeping;
pub(crate) mod unused_reserved;
pub(crate) mod workspace_size;
