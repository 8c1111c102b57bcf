//! Out-of-memory errors: see `assemble::oom`.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Cause, Holder, HolderCoverage, Omitted, Site, SiteBytes, SiteShare};

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
    /// The part of them that the driver could give: less the context and what other processes
    /// used. `null` if the size of the GPU is unknown.
    pub driver_free_bytes: Option<u64>,
    /// The segment that PyTorch's allocator asked the driver for; `null` if the request needs none
    /// of its own, as with `expandable_segments`, or another allocator served it.
    pub segment_bytes: Option<u64>,
    /// What `driver_free_bytes` lacked for it, or for the request of another allocator; `null` if
    /// that is unknown, or nothing lacked.
    pub shortfall_bytes: Option<u64>,
    /// The highest allocated bytes of an earlier step; `null` if there was none.
    pub earlier_peak: Option<StepPeakBytes>,
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
    /// The lines that grew towards the error: those of each step last, else most growth first.
    pub growth: Vec<OomGrowth>,
    /// The lines that held their blocks before the growth began, most bytes first.
    pub unchanged: Vec<SiteBytes>,
    /// True if the program allocated more blocks on this GPU afterwards; false if the error was the
    /// last request of a process that failed; `null` if the trace shows neither.
    pub recovered: Option<bool>,
    /// The call sites that a filter removed, and those beyond the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

/// A line whose blocks grew towards an out-of-memory error.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OomGrowth {
    /// The line below which the blocks were allocated.
    pub site: Site,
    /// Bytes of the blocks that were allocated since the growth began and are live at the error,
    /// minus the older blocks that they replaced.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
    /// All live bytes allocated below the line, including older blocks.
    pub held_bytes: u64,
    /// How the blocks came.
    pub pattern: OomGrowthPattern,
    /// How often the line allocated what it still holds: the number of different steps, or within
    /// one step how often the same stack allocated again.
    pub moments: u64,
    /// The step of the first block; `null` without steps.
    pub first_step: Option<u64>,
    /// True if older blocks of the line were freed meanwhile; `null` if that is unknown.
    pub frees_older_blocks: Option<bool>,
    /// The names that hold the blocks, most bytes first; `null` without a holder scan of them.
    pub holders: Option<Vec<Holder>>,
    /// How many blocks the scan examined.
    pub holder_coverage: Option<HolderCoverage>,
}

/// The highest allocated bytes of a step.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct StepPeakBytes {
    /// The step, counted from 0.
    pub step: u64,
    /// PyTorch's `memory_allocated()` at its highest.
    pub live_bytes: u64,
}

json_enum! {
    /// How the blocks of a line came.
    enum OomGrowthPattern {
        /// Several times, and none of them was freed.
        Repeated = "repeated",
        /// Several times, while older blocks were freed: a cache, or a queue.
        Replaced = "replaced",
        /// At one time, such as the activations of one forward pass.
        Once = "once",
        /// In the unfinished step. Earlier steps freed theirs.
        EachStep = "each_step",
    }
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
        /// The driver had enough free memory of the GPU for this process: other processes had it,
        /// or a limit of PyTorch applied.
        OtherLimit = "other_limit",
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
    /// Free what a line retains.
    FixLeak {
        /// The line that retains blocks.
        site: Box<Site>,
        /// What it had retained by then.
        bytes: u64,
    },
    /// Use PyTorch's own allocator instead of gpumemtrace's.
    UseTorchAllocator,
    /// Raise the limit of PyTorch on Metal.
    RaiseMpsLimit,
    /// Set an option of PyTorch's allocator.
    AllocatorSetting {
        /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
        setting: String,
        /// True if the run has too many requests to predict the setting in a report; then
        /// `gpumemtrace whatif` predicts it.
        is_over_limit: bool,
    },
    /// Set any of several options of PyTorch's allocator.
    AllocatorSettings {
        /// The values of `PYTORCH_ALLOC_CONF`; empty for the defaults.
        settings: Vec<String>,
    },
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
    /// Free all blocks of some segments.
    FreeSegments {
        /// The bytes of segments that were missing.
        bytes: u64,
    },
    /// Use a GPU with more memory.
    LargerGpu {
        /// The bytes that were missing.
        bytes: u64,
    },
}

/// The first out-of-memory error of a run, if it is one of PyTorch's own allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstOom {
    /// The number of its event.
    pub seq: u64,
    /// The ordinal of the device.
    pub device: u8,
    /// Bytes of the card that PyTorch had reserved.
    pub reserved_bytes: u64,
    /// Bytes that the driver reported as free.
    pub free_bytes: u64,
    /// Bytes that the process had from the driver, with those that PyTorch had reserved.
    pub driver_bytes: u64,
    /// All memory of the card: at least the sum of the reserved and the free bytes, and this sum if
    /// the size of the card is unknown.
    pub card_bytes: u64,
}

/// Whether a setting would have served the request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingVerdict {
    /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
    pub setting: String,
    /// `None` if it cannot be predicted.
    pub works: Option<bool>,
    /// The most bytes of segments up to the request.
    pub peak_reserved_bytes: u64,
}

/// The predictions for the first error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OomPredictions {
    /// No prediction was made.
    #[default]
    Absent,
    /// The run has too many requests for a prediction as part of a report.
    OverLimit,
    /// One for each setting that was tried.
    Made(Vec<SettingVerdict>),
}

/// The last driver call for memory that failed for lack of it and was not for PyTorch's allocator,
/// such as cuBLAS's for a handle.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// The call site of the request.
    pub site: Site,
    /// The size of the request that failed.
    pub requested_bytes: u64,
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `None` without steps.
    pub step: Option<u32>,
}
