//! Reserved and unused memory: see [`crate::fragmentation`].

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Omitted, Site, SiteBytes};

/// Reserved bytes that no tensor uses.
#[derive(Clone, Debug, Serialize)]
pub struct Fragmentation {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// When.
    pub at: GapMoment,
    /// Held by PyTorch.
    pub reserved_bytes: u64,
    /// Handed to tensors.
    pub live_bytes: u64,
    /// What the tensors asked for.
    pub requested_bytes: Option<u64>,
    /// `reserved_bytes` minus `requested_bytes`, or minus `live_bytes` where the former is unknown.
    pub gap_bytes: u64,
    /// They sum to `gap_bytes` exactly.
    pub causes: Vec<Cause>,
    /// For which request it is seen: what is free elsewhere is stranded. `null` where no request is meant.
    pub wanted: Option<PoolInfo>,
    /// PyTorch's memory by what it serves, largest first; empty where its tracker did not tell.
    pub pools: Vec<PoolRow>,
    /// The sizes for which the run asks most, and what is free for them.
    pub usable: Vec<FitRow>,
}

/// When and why.
#[derive(Clone, Debug, Serialize)]
pub struct GapMoment {
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// `peak_reserved`, `oom`, `at` (a moment that was asked for) or `end`.
    pub why: &'static str,
}

/// A part of the gap.
#[derive(Clone, Debug, Serialize)]
pub struct Cause {
    /// `pinned`, `cache`, `unexplained`, ...
    pub cause: &'static str,
    /// How much.
    pub bytes: u64,
    /// Who keeps it from being given back.
    pub culprits: Vec<SiteBytes>,
    /// Those that a filter left out, and those beyond the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
}

/// Which requests memory serves.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PoolInfo {
    /// PyTorch's stream, as the handle's number; 0 is the default stream.
    pub stream: u64,
    /// PyTorch's id of the pool, `[0, 0]` for the default; `null` where its version does not tell.
    pub pool: Option<[u64; 2]>,
    /// `small` (up to 1 MiB) or `large`.
    pub blocks: &'static str,
}

/// Segments that serve the same requests.
#[derive(Clone, Debug, Serialize)]
pub struct PoolRow {
    /// Which.
    #[serde(flatten)]
    pub serves: PoolInfo,
    /// They grow and shrink by pages (PyTorch's `expandable_segments`).
    pub expandable: bool,
    /// How many; of expandable ones, pieces without a hole.
    pub segments: u64,
    /// All of it.
    pub reserved_bytes: u64,
    /// In live blocks.
    pub allocated_bytes: u64,
    /// Requested back, and another stream still uses it.
    pub pending_bytes: u64,
    /// The rest.
    pub free_bytes: u64,
    /// Of it in whole segments, or whole pages of expandable ones.
    pub releasable_bytes: u64,
    /// The largest piece of it.
    pub largest_free_bytes: u64,
}

/// A size that the run asks for.
#[derive(Clone, Debug, Serialize)]
pub struct FitRow {
    /// The block that a request takes.
    pub block_bytes: u64,
    /// Where it is taken from.
    #[serde(flatten)]
    pub serves: PoolInfo,
    /// How often in the run.
    pub times: u64,
    /// Free there.
    pub free_bytes: u64,
    /// How many would find room at once without the driver.
    pub fit: u64,
}

/// The gap of a device over the run.
#[derive(Clone, Debug, Serialize)]
pub struct FragmentationOverTime {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// How often it was looked at, at even distances as far as possible.
    pub looks: u64,
    /// From the first look to the end.
    pub span_ns: u64,
    /// Of the looks at most 256.
    pub points: Vec<GapSample>,
    /// Lines whose live blocks kept free memory from use, by bytes and time, most first.
    pub kept_by: Vec<PinningSite>,
    /// Those that a filter left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
}

/// One look.
#[derive(Clone, Debug, Serialize)]
pub struct GapSample {
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// Held by PyTorch.
    pub reserved_bytes: u64,
    /// Handed to tensors.
    pub live_bytes: u64,
    /// As in `fragmentation`.
    pub gap_bytes: u64,
    /// By cause; they sum to `gap_bytes` exactly. Those that are 0 are left out.
    pub causes: BTreeMap<&'static str, u64>,
}

/// What a line's blocks kept from use.
#[derive(Clone, Debug, Serialize)]
pub struct PinningSite {
    /// Whose.
    pub site: Site,
    /// On average from the first look to the end.
    pub mean_bytes: u64,
    /// Most at a look.
    pub most_bytes: u64,
    /// When that was first.
    pub most_time_ns: u64,
    /// The share of the time in which it kept any.
    pub share_of_time: f64,
}

/// A pool of the driver from which streams allocate (`cudaMallocAsync`). Pieces inside it nobody can see.
#[derive(Clone, Debug, Serialize)]
pub struct AsyncPool {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// Its handle; `null` for the device's own.
    pub pool: Option<u64>,
    /// In blocks at the end.
    pub allocated_bytes: u64,
    /// Most of it.
    pub peak_allocated_bytes: u64,
    /// What it keeps when its blocks are free, if somebody told it; 2^64 - 1 is everything.
    pub keeps_bytes: Option<u64>,
    /// How often somebody asked what it holds; what it held in between is unknown.
    pub answers: u64,
    /// The last answer.
    pub last: Option<AsyncPoolSample>,
    /// The answer with most unused bytes.
    pub worst: Option<AsyncPoolSample>,
}

/// What a pool held, and what of it was in no block.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AsyncPoolSample {
    /// From the start of recording.
    pub time_ns: u64,
    /// As the driver said.
    pub reserved_bytes: u64,
    /// In blocks then.
    pub allocated_bytes: u64,
    /// In none.
    pub unused_bytes: u64,
}
