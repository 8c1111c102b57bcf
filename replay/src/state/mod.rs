//! The memory state of each device while a trace is replayed.

pub mod async_pools;
pub mod attribution;
pub mod device;
pub mod driver;
pub mod holder_scans;
pub mod live_set;
pub mod mps_samples;
pub mod request_histogram;
pub mod segments;
pub mod unused_reserved;
