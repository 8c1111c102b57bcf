//! A moment that was asked for: see [`crate::pass::snapshot_schedule`].

use serde::Serialize;

use super::{Omitted, SiteShare};

/// A device at that moment. What it had reserved and not used is in `fragmentation`, where `at.why` is `at`.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// As it was asked for.
    pub asked: String,
    /// Of the last event up to then, from the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// `torch` or `device`: whose bytes `sites` are.
    pub layer: &'static str,
    /// Handed to tensors.
    pub live_bytes: Option<u64>,
    /// Held by PyTorch.
    pub reserved_bytes: Option<u64>,
    /// Handed out by the driver.
    pub device_bytes: Option<u64>,
    /// Most first; they sum to `live_bytes`, or to `device_bytes` where the layer is `device`.
    pub sites: Vec<SiteShare>,
    /// Those that a filter left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
}
