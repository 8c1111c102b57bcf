//! Unused reserved memory by cause: see [`crate::fragmentation`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Omitted, Site, SiteBytes};

/// The unused reserved memory of one device at one moment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Fragmentation {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The moment, and why the report describes it.
    pub at: GapMoment,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: u64,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: u64,
    /// The requested sizes of the live blocks; `null` unless the size of every block is known.
    pub requested_bytes: Option<u64>,
    /// `reserved_bytes` minus `requested_bytes`, or minus `live_bytes` if the former is unknown.
    pub gap_bytes: u64,
    /// The causes of the gap; they sum to `gap_bytes` exactly.
    pub causes: Vec<Cause>,
    /// The request for which free memory counts as stranded or pinned; `null` if it is unknown.
    pub request: Option<PoolInfo>,
    /// Reserved memory by stream and pool, largest first; empty without PyTorch's trace tracker.
    pub pools: Vec<PoolRow>,
    /// The sizes that the run requests most, and the free memory for each.
    pub common_sizes: Vec<FitRow>,
}

/// A moment at which the gap is described.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GapMoment {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// Why the report describes this moment.
    pub why: GapReason,
    /// The driver call that failed, for `failed_call`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<FailedCall>,
}

/// A driver call of a library other than PyTorch that failed for lack of memory.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FailedCall {
    /// The library that called.
    pub owner: String,
    /// The size of the request.
    pub requested_bytes: u64,
    /// The call site, with its stack.
    pub site: Site,
}

json_enum! {
    /// Why the report describes the gap at a moment.
    enum GapReason {
        /// Reserved memory was at its peak.
        PeakReserved = "peak_reserved",
        /// The gap was largest.
        LargestGap = "largest_gap",
        /// The last step ended.
        LastStep = "last_step",
        /// PyTorch ran out of memory.
        Oom = "oom",
        /// A driver call of another library failed for lack of memory, while PyTorch had unused
        /// memory.
        FailedCall = "failed_call",
        /// The user requested the moment with `--at`.
        At = "at",
        /// The program finished; interpreter teardown had not begun.
        End = "end",
    }
}

json_enum! {
    /// Why reserved memory is unused.
    enum CauseKind {
        /// Blocks are larger than requested.
        Rounding = "rounding",
        /// Freed blocks wait for another stream (`record_stream`).
        PendingFree = "pending_free",
        /// Free memory is cached for another stream than that of the request.
        StrandedStream = "stranded_stream",
        /// Free memory is in another pool than that of the request, or in the pool of a CUDA graph
        /// or `MemPool`, which keeps it until it is deleted.
        StrandedPool = "stranded_pool",
        /// Free memory is in segments that live blocks pin, or in empty ones that the private pool
        /// of a request that failed keeps.
        Pinned = "pinned",
        /// Segments, or pages of expandable segments, are fully free and in no private pool.
        Cache = "cache",
        /// The trace does not contain the segments.
        Unexplained = "unexplained",
    }
}

/// A part of the gap with one cause.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Cause {
    /// Why these bytes are unused.
    pub cause: CauseKind,
    /// The size of the part.
    pub bytes: u64,
    /// The call sites of the blocks behind it, largest share first; the largest 20. For a fully
    /// free segment of a private pool, the call site that requested it.
    pub culprits: Vec<SiteBytes>,
    /// For `stranded_stream` and `stranded_pool`: the pools in which the memory is free, largest
    /// share first. For `pinned`: the private pool of the request, which pins its segments, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolBytes>,
    /// The call sites that a filter removed, and those beyond the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

json_enum! {
    /// The size class of a pool.
    enum PoolBlocks {
        /// Blocks of at most 1 MiB.
        Small = "small",
        /// Blocks above 1 MiB.
        Large = "large",
    }
}

/// The key by which PyTorch's caching allocator separates memory.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PoolInfo {
    /// The handle of the CUDA stream; 0 is the default stream.
    pub stream: u64,
    /// PyTorch's id of the pool, `[0, 0]` for the default; `null` if its version does not report
    /// it.
    pub pool: Option<[u64; 2]>,
    /// The size class of its blocks.
    pub blocks: PoolBlocks,
}

impl PoolInfo {
    /// True for the pool of a CUDA graph or a `MemPool`.
    pub fn is_private(&self) -> bool {
        self.pool.is_some_and(|pool| pool != [0, 0])
    }

    /// True for the pool of a CUDA graph. The first number of PyTorch's `MempoolId_t` is set for
    /// pools that a capture created, the second for those of `MemPool` and `graph_pool_handle()`.
    pub fn is_graph(&self) -> bool {
        self.pool.is_some_and(|[capture, _]| capture != 0)
    }
}

/// A part of a cause that lies in one pool.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct PoolBytes {
    /// Stream, pool and size class.
    #[serde(flatten)]
    pub key: PoolInfo,
    /// The size of the part.
    pub bytes: u64,
}

/// The segments of one pool, summed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PoolRow {
    /// Stream, pool and size class.
    #[serde(flatten)]
    pub key: PoolInfo,
    /// True for PyTorch's `expandable_segments`, which grow and shrink by pages.
    pub is_expandable: bool,
    /// The number of segments; of expandable ones, the number of mapped ranges.
    pub segments: u64,
    /// Bytes of the segments.
    pub reserved_bytes: u64,
    /// Bytes in live blocks.
    pub allocated_bytes: u64,
    /// Bytes of freed blocks that wait for another stream.
    pub pending_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Free bytes in fully free segments, or in fully free pages of expandable ones.
    pub releasable_bytes: u64,
    /// The largest contiguous free range.
    pub largest_free_bytes: u64,
}

/// A block size that the run requests often.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FitRow {
    /// The size of the block, rounded as PyTorch does.
    pub block_bytes: u64,
    /// Stream, pool and size class that serve the request.
    #[serde(flatten)]
    pub key: PoolInfo,
    /// The number of such requests in the run.
    pub requests: u64,
    /// Free bytes in that pool.
    pub free_bytes: u64,
    /// The number of such blocks that fit at once without a new `cudaMalloc`.
    pub fitting_blocks: u64,
}

/// The gap of one device over the run.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FragmentationOverTime {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The number of observations. If there were too many, every other point was dropped.
    pub observations: u64,
    /// The distance of points, in events of the trace.
    pub events_between_points: u64,
    /// There are fewer points than usual, because each one visits many live blocks.
    pub is_limited_by_blocks: bool,
    /// Nanoseconds from the first observation to the end.
    pub span_ns: u64,
    /// At most 256 of the observations, at even distances.
    pub points: Vec<GapSample>,
    /// Call sites with live blocks that pinned or stranded free memory, by bytes and time, most
    /// first.
    pub pinned_by: Vec<PinningSite>,
    /// The call sites that a filter removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

/// One observation of the gap.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GapSample {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: u64,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: u64,
    /// The gap, as in `fragmentation`.
    pub gap_bytes: u64,
    /// Bytes by cause; they sum to `gap_bytes` exactly. Causes of 0 bytes are absent.
    pub causes: BTreeMap<CauseKind, u64>,
}

/// The free memory that the blocks of one call site kept from use.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PinningSite {
    /// The call site of the blocks.
    pub site: Site,
    /// The average from the first observation to the end.
    pub mean_bytes: u64,
    /// The maximum of all observations.
    pub most_bytes: u64,
    /// The time of the first maximum, from the start of the recording.
    pub most_time_ns: u64,
    /// The share of the time in which it was above 0.
    pub share_of_time: f64,
}

/// A memory pool of the CUDA driver (`cudaMallocAsync`). The ranges inside it are not observable.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AsyncPool {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU with the pool's memory; `null` for host and managed memory.
    pub device: Option<u32>,
    /// Where the pool's memory is.
    pub memory: PoolMemory,
    /// The handle of the pool; `null` for the default pool of the GPU.
    pub pool: Option<u64>,
    /// Bytes in live blocks at the end.
    pub allocated_bytes: u64,
    /// The maximum of bytes in live blocks.
    pub peak_allocated_bytes: u64,
    /// The release threshold, if the program set one; 2^64 - 1 keeps everything.
    pub release_threshold_bytes: Option<u64>,
    /// How often the program queried the reserved bytes; between two queries they are unknown.
    pub samples: u64,
    /// The result of the last query.
    pub last: Option<AsyncPoolSample>,
    /// The query with the most unused bytes.
    pub most_unused: Option<AsyncPoolSample>,
}

json_enum! {
    /// The memory of a driver pool.
    enum PoolMemory {
        /// Memory of one GPU.
        Device = "device",
        /// Page-locked memory of the host.
        Host = "host",
        /// Managed memory, which migrates between host and GPUs.
        Managed = "managed",
    }
}

/// The result of one query of a driver pool.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct AsyncPoolSample {
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The reserved bytes that the driver reported.
    pub reserved_bytes: u64,
    /// Bytes in live blocks at that moment.
    pub allocated_bytes: u64,
    /// The difference `reserved_bytes` minus `allocated_bytes`.
    pub unused_bytes: u64,
}

/// The reserved memory of a device as predicted with other settings of PyTorch's allocator.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SettingEffects {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The most bytes of segments with the settings of the run.
    pub recorded_peak_bytes: u64,
    /// The same over time, for the page; `gpumemtrace whatif --json` prints it.
    #[serde(skip)]
    pub recorded_curve: ReservedCurve,
    /// True if the run has too many requests for predictions in a report; `gpumemtrace whatif`
    /// makes them.
    pub is_over_limit: bool,
    /// The settings that were tried, that with the least reserved memory first.
    pub settings: Vec<SettingEffect>,
}

/// The effect of one setting, as `gpumemtrace whatif` predicts it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SettingEffect {
    /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
    pub setting: String,
    /// The most bytes of segments with it.
    pub peak_reserved_bytes: u64,
    /// The same over time, for the page; `gpumemtrace whatif --json` prints it.
    #[serde(skip)]
    pub reserved_curve: ReservedCurve,
    /// Why the real run may differ, in words; `null` if the prediction is exact.
    pub reason: Option<String>,
}

/// Reserved memory over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ReservedCurve {
    /// Nanoseconds of each span of time; the first begins with the recording.
    pub span_ns: u64,
    /// The most bytes of segments in each span; at most 256 spans.
    pub peak_bytes: Vec<u64>,
}
