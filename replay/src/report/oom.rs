//! Out-of-memory errors: see `assemble::oom`.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Cause, Omitted, Site, SiteBytes, SiteShare};

/// One out-of-memory error of the program.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Oom {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// The size of the request that failed.
    pub requested_bytes: u64,
    /// The call site of the request.
    pub site: Site,
    /// PyTorch's `memory_allocated()` at that moment.
    pub live_bytes: u64,
    /// PyTorch's `memory_reserved()` at that moment.
    pub reserved_bytes: u64,
    /// Memory that the driver had not handed to this process; `null` if the size of the GPU is
    /// unknown.
    pub device_free_bytes: Option<u64>,
    /// The memory of the GPU; `null` if it is unknown or shared with the system.
    pub device_total_bytes: Option<u64>,
    /// Why the request failed.
    pub cause: OomCause,
    /// Why the request failed, in one sentence.
    pub why: String,
    /// The largest free range that could have served the request.
    pub largest_free_block_bytes: Option<u64>,
    /// What the user can try.
    pub remedies: Vec<Remedy>,
    /// The call sites with the most live bytes, largest first.
    pub sites: Vec<SiteShare>,
    /// The causes of unused reserved memory at that moment, as in `fragmentation`.
    pub unused_causes: Vec<Cause>,
    /// Leaks and how much they had grown by then, most first.
    pub growth: Vec<SiteBytes>,
    /// The call sites that a filter removed, and those beyond the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

json_enum! {
    /// Why a request failed.
    enum OomCause {
        /// The request is larger than the GPU.
        ExceedsDevice = "exceeds_device",
        /// Enough memory was free in total, but no free block was large enough.
        NoFittingBlock = "no_fitting_block",
        /// Too little memory was free in total.
        DeviceFull = "device_full",
        /// The size of the GPU, or the limit that applied, is not known.
        Unknown = "unknown",
    }
}

/// Something to try against an out-of-memory error.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Remedy {
    /// What to try, with its numbers.
    #[serde(flatten)]
    pub kind: RemedyKind,
    /// What to try, in one sentence.
    pub action: String,
    /// Whether it helps; `null` if the trace cannot tell.
    pub works: Option<bool>,
}

/// What to try against an out-of-memory error.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RemedyKind {
    /// Fix a leak of the program.
    FixLeak {
        /// The call site that leaks.
        site: Box<Site>,
        /// What it had leaked by then.
        bytes: u64,
    },
    /// Use PyTorch's own allocator instead of gpumemtrace's.
    UseTorchAllocator,
    /// Raise the limit of PyTorch on Metal.
    RaiseMpsLimit,
    /// Set the option `expandable_segments`.
    ExpandableSegments,
    /// Allocate all memory on one stream.
    UseOneStream {
        /// Free bytes that are cached for other streams.
        bytes: u64,
    },
    /// Release CUDA graphs or memory pools.
    ReleasePools {
        /// Free bytes in other pools.
        bytes: u64,
    },
    /// Call `empty_cache()` before the request.
    EmptyCache,
    /// Request less memory at once.
    RequestLess,
    /// Hold less at this moment.
    HoldLess {
        /// The bytes that were missing.
        bytes: u64,
    },
}
