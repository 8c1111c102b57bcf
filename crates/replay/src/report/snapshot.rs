//! Snapshots that `--at` requested: see [`crate::pass::snapshot_schedule`].

use schemars::JsonSchema;
use serde::Serialize;

use super::{MemoryLayer, Omitted, SiteShare};

/// One device at a requested moment. Its gap is in `fragmentation`, where `at.why` is `at`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The moment as requested: `step:40`, `12.5s`, `mark:NAME`.
    pub when: String,
    /// The time of the last event before it, from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// The layer that `sites` describe.
    pub layer: MemoryLayer,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: Option<u64>,
    /// Bytes that the driver handed to the process.
    pub device_bytes: Option<u64>,
    /// Call sites, most bytes first. They sum to `live_bytes`, or to `device_bytes` if the layer is
    /// `device`.
    pub sites: Vec<SiteShare>,
    /// The call sites that a filter removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}
