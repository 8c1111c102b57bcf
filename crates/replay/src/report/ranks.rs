//! Ranks, or devices of one process, side by side: see `assemble::ranks`.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Confidence, Quantity, Site, SiteBytes};

/// All devices of all traces, side by side.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Ranks {
    /// One row per trace and device, by rank.
    pub rows: Vec<RankRow>,
    /// How the rows are aligned in time; `null` if their steps cannot be aligned.
    pub aligned_by: Option<RankAlignment>,
    /// Ranks without a trace; `null` if the traces do not contain the world size.
    pub missing_ranks: Option<u64>,
    /// The median of the peaks; of an even number, the lower middle value.
    pub median_peak_live_bytes: u64,
    /// Index in `rows` of the highest peak.
    pub worst: u64,
    /// The highest peak divided by the median, minus 1.
    pub excess: Quantity,
    /// True if the row with the highest peak differs from the others, as one rank among equal ones.
    pub differs: bool,
    /// Call sites that held more there at the peak than on the row closest to the median, most
    /// first. Empty unless the excess is large enough to matter.
    pub more_by_site: Vec<SiteBytes>,
    /// The row where growth began first; `null` if no row grows or the rows are not aligned.
    pub first_cause: Option<FirstCause>,
}

json_enum! {
    /// How ranks are aligned in time.
    enum RankAlignment {
        /// By the step numbers of the ranks.
        Step = "step",
    }
}

/// One device of one process.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RankRow {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The rank of the process in the distributed job.
    pub rank: Option<u64>,
    /// The name of the host.
    pub host: Option<String>,
    /// The id of the process.
    pub pid: Option<u64>,
    /// The memory of the GPU.
    pub total_bytes: Option<u64>,
    /// The maximum of `memory_allocated()`.
    pub peak_live_bytes: u64,
    /// The maximum of `memory_reserved()`.
    pub peak_reserved_bytes: u64,
    /// `memory_allocated()` at the end.
    pub end_live_bytes: u64,
    /// The number of steps begun; `null` without steps.
    pub steps: Option<u64>,
    /// The first step of its first leak; `null` without leaks.
    pub first_growth_step: Option<u64>,
    /// The growth of all its leaks; `null` without leaks.
    pub bytes_per_step: Option<Quantity>,
    /// `total_bytes` is what Metal recommends, not a limit.
    #[serde(skip)]
    pub is_metal: bool,
}

/// The row where growth began first.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FirstCause {
    /// Index of the rank in `rows`.
    pub row: u64,
    /// The first step of the growth.
    pub step: u64,
    /// Steps until growth began on another row; `null` if it never did.
    pub lead_steps: Option<u64>,
    /// The call site that grows.
    pub site: Site,
    /// Its growth in each step.
    pub bytes_per_step: Option<Quantity>,
    /// `medium` if other rows began in the same step; `low` if ranks are missing.
    pub confidence: Confidence,
}
