//! Ranks, or devices, side by side: see [`crate::ranks`].

use serde::Serialize;

use super::{Quantity, Site};

/// All units of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Ranks {
    /// By rank, trace and device.
    pub rows: Vec<RankRow>,
    /// `step` if the units' steps can be laid side by side.
    pub aligned_by: Option<&'static str>,
    /// Ranks that the traces say there are and of which there is none here; unknown where they do not say.
    pub missing_ranks: Option<u64>,
    /// The middle one of the peaks.
    pub median_peak_live_bytes: u64,
    /// Index in `rows` of the unit with the highest peak.
    pub worst: u64,
    /// Its peak over the median, less 1.
    pub excess: Quantity,
    /// What it held more at its peak than a unit of about the median, if its excess is worth it; most first.
    pub more_by_site: Vec<SiteDifference>,
    /// Where growth began.
    pub first_cause: Option<FirstCause>,
}

/// A device of a process.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// As the launcher numbers it.
    pub rank: Option<u64>,
    /// Where it ran.
    pub host: Option<String>,
    /// Process.
    pub pid: Option<u64>,
    /// Size of the device.
    pub total_bytes: Option<u64>,
    /// Most bytes of tensors.
    pub peak_live_bytes: u64,
    /// Most bytes reserved by PyTorch.
    pub peak_reserved_bytes: u64,
    /// Bytes of tensors at the end.
    pub end_live_bytes: u64,
    /// Steps begun, if they are known.
    pub steps: Option<u64>,
    /// The first step of its first leak; `null` where nothing leaks.
    pub first_growth_step: Option<u64>,
    /// Of all its leaks.
    pub bytes_per_step: Option<Quantity>,
    /// Its size is what Metal recommends.
    #[serde(skip)]
    pub is_metal: bool,
}

/// A line and what is more by it.
#[derive(Clone, Debug, Serialize)]
pub struct SiteDifference {
    /// The line.
    pub site: Site,
    /// Bytes.
    pub bytes: u64,
}

/// Where growth began.
#[derive(Clone, Debug, Serialize)]
pub struct FirstCause {
    /// Index in `rows`.
    pub row: u64,
    /// In which step.
    pub step: u64,
    /// Steps until another unit's began; `null` if none did.
    pub lead_steps: Option<u64>,
    /// Its line.
    pub site: Site,
    /// At which rate.
    pub bytes_per_step: Option<Quantity>,
    /// `high`; `medium` if others began in the same step; `low` if ranks are missing.
    pub confidence: &'static str,
}
