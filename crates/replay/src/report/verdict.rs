//! Verdicts: the findings of the summary. See [`crate::verdicts`].

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{GapReason, Losses, OomForecast, ResidualSource, Site, SiteBytes};

/// One finding of the summary.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Verdict {
    /// Index in the list `traces`.
    pub trace: usize,
    /// How severe it is.
    pub severity: Severity,
    /// The finding in one sentence.
    pub summary: String,
    /// The kind of the finding, and the numbers behind it.
    #[serde(flatten)]
    pub evidence: VerdictEvidence,
}

json_enum! {
    /// How severe a finding is.
    enum Severity {
        /// It is good to know.
        Info = "info",
        /// It is worth a look.
        Warning = "warning",
        /// It ended the run, or will end it.
        Critical = "critical",
    }
}

/// The kind of a finding, with its numbers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "evidence", rename_all = "snake_case")]
pub enum VerdictEvidence {
    /// A call site leaks.
    Leak {
        /// The call site of the blocks.
        site: Box<Site>,
        /// The memory that leaks.
        kind: super::LeakKind,
        /// The same as in `leaks`.
        confidence: Option<f64>,
        /// The same as in `leaks`.
        blocks: u64,
        /// The same as in `leaks`.
        bytes: u64,
        /// The same as in `leaks`.
        bytes_per_step: Option<super::Quantity>,
        /// The same as in `leaks`.
        grows_by: super::GrowsBy,
        /// The same as in `leaks`.
        is_regular: bool,
    },
    /// A call site grows and is not known to leak, as in `leak_assessment[].growth`.
    Growth {
        /// The call site that grows.
        site: Box<Site>,
        /// Ordinal of the GPU.
        device: u32,
        /// The memory that grows.
        memory: super::LeakKind,
        /// What is known of it.
        class: super::GrowthClass,
        /// For `growing_sizes`: whether blocks get larger or more.
        grows_by: Option<super::GrowsBy>,
        /// How many more blocks it holds.
        blocks: u64,
        /// How much more it holds.
        bytes: u64,
    },
    /// The program ran out of memory.
    Oom {
        /// The number of errors.
        count: u64,
        /// The call site of the first error.
        site: Box<Site>,
        /// The GPU of the first error.
        device: u32,
        /// The request of the first error.
        requested_bytes: u64,
    },
    /// The trace is incomplete.
    Incomplete(Losses),
    /// The sum of live blocks differs from PyTorch's total.
    TotalMismatch {
        /// Ordinal of the GPU.
        device: u32,
        /// The number of events with a difference.
        events: u64,
        /// The sequence number of the first.
        first_seq: u64,
        /// The sum of live blocks at the first.
        sum_bytes: u64,
        /// PyTorch's total at the first.
        torch_bytes: u64,
    },
    /// The recorded segments do not sum to PyTorch's reserved bytes.
    SegmentMismatch {
        /// Ordinal of the GPU.
        device: u32,
        /// The number of events with a difference.
        events: u64,
    },
    /// Blocks without a matching allocation or free.
    UnmatchedBlocks {
        /// Ordinal of the GPU.
        device: u32,
        /// Frees without an allocation.
        unmatched_frees: u64,
        /// Allocations at an address that was never freed.
        lost_frees: u64,
    },
    /// Calls of allocation functions that are not intercepted.
    UncoveredCalls {
        /// The number of calls; on Metal, of methods and objects.
        entry_points: u64,
    },
    /// Driver calls returned errors.
    FailedCalls {
        /// The number of calls.
        calls: u64,
        /// Calls that failed for lack of memory; `null` on Metal, which returns no reason.
        out_of_memory: Option<u64>,
        /// Those among them that PyTorch's allocator had made; it frees its cache and tries again.
        of_torch: u64,
        /// The call site of the first, on Metal.
        #[serde(skip_serializing_if = "Option::is_none")]
        site: Option<Box<Site>>,
    },
    /// The GPU was nearly full of allocated memory.
    HighPressure(PressureEvidence),
    /// The GPU was nearly full, mostly of PyTorch's cache.
    CachePressure(PressureEvidence),
    /// Reserved memory was fragmented.
    FragmentationLike {
        /// Ordinal of the GPU.
        device: u32,
        /// Peak of the reserved bytes.
        reserved_bytes: u64,
        /// Bytes that were free and not usable for requests.
        unusable_bytes: u64,
        /// `unusable_bytes` divided by `reserved_bytes`.
        share: f64,
        /// True if an allocation failed although enough was free in total.
        oom: bool,
    },
    /// Much free memory could serve only other streams, CUDA graphs or `MemPool`s.
    StrandedMemory {
        /// Ordinal of the GPU.
        device: u32,
        /// The moment of those in `fragmentation` with most stranded bytes.
        at: GapReason,
        /// The reserved bytes at that moment.
        reserved_bytes: u64,
        /// Free bytes cached for other streams.
        stream_bytes: u64,
        /// Free bytes in the pools of CUDA graphs and `MemPool`s.
        private_pool_bytes: u64,
        /// The number of pools that belong to one CUDA graph each.
        graph_pools: u64,
    },
    /// PyTorch's cache was much larger than its allocated memory.
    ReservedOverhang {
        /// Ordinal of the GPU.
        device: u32,
        /// Peak of the reserved bytes.
        reserved_bytes: u64,
        /// Peak of the allocated bytes.
        live_bytes: u64,
        /// Bytes in fully free segments.
        cache_bytes: u64,
    },
    /// Other owners than PyTorch held much memory.
    HiddenMemory {
        /// Ordinal of the GPU.
        device: u32,
        /// The bytes of all of them.
        bytes: u64,
        /// The memory of the GPU.
        total_bytes: u64,
        /// Owners and their bytes, most first.
        owners: Vec<HiddenOwner>,
    },
    /// Allocated memory peaked far above its usual level for a short time.
    TransientSpike {
        /// Ordinal of the GPU.
        device: u32,
        /// The peak of allocated bytes.
        peak_bytes: u64,
        /// The level that 95% of the run stays below.
        usual_bytes: u64,
        /// The step of the peak; `null` without steps.
        step: Option<u64>,
        /// Call sites that held more at the peak, most first.
        more_by_site: Vec<SiteBytes>,
    },
    /// Memory outside recorded calls rises.
    PersistentDrift {
        /// Ordinal of the GPU.
        device: u32,
        /// The bytes of the first measurement.
        first_bytes: u64,
        /// The bytes of the last measurement.
        last_bytes: u64,
        /// The number of measurements.
        samples: usize,
        /// Kendall's tau of the trend.
        tau: f64,
        /// The probability of such a trend by chance.
        p_value: f64,
        /// The source of the measurements.
        source: ResidualSource,
    },
    /// Leaks of one GPU, summed.
    CreepConfirmed {
        /// Ordinal of the GPU.
        device: u32,
        /// The bytes of all leaks.
        bytes: u64,
        /// Their growth in each step.
        bytes_per_step: f64,
        /// The number of leaks.
        findings: usize,
        /// The step at which the GPU is full; `null` if unknown, or over 1,000,000 steps away.
        oom_step: Option<OomForecast>,
    },
    /// One rank uses much more memory than the others.
    Imbalance {
        /// The rank of the process.
        rank: Option<u64>,
        /// Ordinal of the GPU.
        device: u32,
        /// Its peak of allocated bytes.
        peak_live_bytes: u64,
        /// The median of all peaks.
        median_peak_live_bytes: u64,
        /// Its peak divided by the median, minus 1.
        excess: f64,
        /// Its peak divided by the memory of the GPU.
        share_of_device: f64,
    },
}

/// How full a GPU was.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PressureEvidence {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The memory of the GPU.
    pub total_bytes: u64,
    /// Peak of the allocated bytes.
    pub live_bytes: u64,
    /// Bytes of other owners than PyTorch at that moment.
    pub non_torch_bytes: u64,
    /// Peak of the reserved bytes.
    pub reserved_bytes: u64,
    /// The share of the GPU in use; for `cache_pressure` with the cache.
    pub share: f64,
}

/// An owner of memory outside PyTorch.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HiddenOwner {
    /// The shared library; `null` for memory in no recorded call.
    pub owner: Option<String>,
    /// The bytes that it holds.
    pub bytes: u64,
}
