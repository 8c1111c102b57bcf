//! The memory at the peak, by category and call site.

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{CategoryRule, Omitted, Site};

mod category;
mod labels;

pub use category::Category;
pub use labels::{LabelDifference, LabelPair, PeakLabels};

/// The memory of one device at its peak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Peak {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The layer that the lists describe.
    pub layer: MemoryLayer,
    /// Nanoseconds from the start of the recording.
    pub time_ns: u64,
    /// The number of steps begun; `null` without steps.
    pub step: Option<u64>,
    /// The peak of allocated bytes.
    pub live_bytes: u64,
    /// Memory by category, largest first; sums to `live_bytes` exactly.
    pub categories: Vec<CategoryShare>,
    /// The categories compared with the labels of blocks. Absent unless `--peak` and labels are
    /// there, as in snapshots of PyTorch with `category` or `user_metadata`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<PeakLabels>,
    /// Memory by the pass that allocated it, largest first; sums to `live_bytes`.
    pub passes: Vec<PassBytes>,
    /// Memory by the named phase that allocated it; sums to `live_bytes`. Absent unless `--peak`
    /// and phases are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<PhaseBytes>>,
    /// Memory by call site, largest first; sums to `live_bytes` exactly.
    pub sites: Vec<SiteShare>,
    /// The call sites that a filter removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
    /// The change since the peak of the previous step; `null` without one, and without `--peak`.
    pub since_previous_step: Option<SincePreviousStep>,
    /// Every block in the order of allocation; absent without `--blocks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<PeakBlockRow>>,
}

json_enum! {
    /// The layer of allocations that a list describes.
    enum MemoryLayer {
        /// Blocks of PyTorch's allocator.
        Torch = "torch",
        /// Allocations from the driver, by a program without PyTorch.
        Device = "device",
    }
}

json_enum! {
    /// How certain a statement is.
    enum Confidence {
        /// Other answers are almost as likely.
        Low = "low",
        /// One observation supports it and none contradicts.
        Medium = "medium",
        /// Several observations support it.
        High = "high",
    }
}

json_enum! {
    /// The pass of a training loop in which a block is allocated.
    enum TrainingPass {
        /// The backward pass of autograd.
        Backward = "backward",
        /// Fetching a batch of input data.
        Data = "data",
        /// The forward pass of a module.
        Forward = "forward",
        /// Reading weights from a file.
        Loading = "loading",
        /// Building, moving or copying a module.
        Module = "module",
        /// The step of an optimizer.
        Optimizer = "optimizer",
        /// Any other Python code.
        Program = "program",
        /// The stack has no Python frames.
        Unknown = "unknown",
        /// A call of `zero_grad()`.
        ZeroGrad = "zero_grad",
    }
}

/// The memory of one call site.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SiteShare {
    /// The call site of the blocks.
    pub site: Site,
    /// Its live bytes at that moment.
    pub bytes: u64,
    /// Its live blocks at that moment.
    pub blocks: u64,
    /// Its bytes by category; sums to `bytes`. Only at the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub categories: Option<Vec<CategoryBytes>>,
    /// Its bytes by named phase; sums to `bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<PhaseBytes>>,
}

/// Bytes of one call site.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SiteBytes {
    /// The call site of the blocks.
    pub site: Site,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// The blocks of one category.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CategoryShare {
    /// The purpose of the blocks.
    pub category: Category,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
    /// The lowest confidence of the rules that found at least a tenth of the bytes; `null` for
    /// `unknown`.
    pub confidence: Option<Confidence>,
    /// The rules that found them, most bytes first; sums to `bytes`.
    pub rules: Vec<RuleShare>,
}

/// The blocks that one rule assigned to a category.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RuleShare {
    /// The rule (see `docs/analyses/index.md`).
    pub rule: CategoryRule,
    /// The confidence of the rule for these blocks.
    pub confidence: Option<Confidence>,
    /// The bytes of these blocks.
    pub bytes: u64,
}

/// The blocks of one call site in one category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CategoryBytes {
    /// The purpose of the blocks.
    pub category: Category,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
}

/// The memory that one pass allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PassBytes {
    /// The pass that allocated them.
    pub pass: TrainingPass,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// The memory that one named phase allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PhaseBytes {
    /// The name of the phase; `null` outside of all phases, or if the trace does not contain the
    /// name.
    pub phase: Option<String>,
    /// Bytes of these blocks.
    pub bytes: u64,
}

/// The peak compared with the peak of the previous step.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SincePreviousStep {
    /// The number of the previous step.
    pub step: u64,
    /// The time of its peak, from the start of the recording.
    pub time_ns: u64,
    /// Its peak of allocated bytes.
    pub live_bytes: u64,
    /// The peak minus that of the previous step.
    pub rise_bytes: i64,
    /// The differences, largest rise first; they sum to `rise_bytes`.
    pub changes: Vec<RiseOfSite>,
}

/// The difference of one call site in one category.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RiseOfSite {
    /// The call site of the blocks.
    pub site: Site,
    /// The purpose of the blocks.
    pub category: Category,
    /// Bytes at the peak.
    pub bytes: u64,
    /// Bytes at the peak of the previous step.
    pub before_bytes: u64,
    /// The difference `bytes` minus `before_bytes`.
    pub rise_bytes: i64,
}

/// One block at the peak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PeakBlockRow {
    /// The address of the block.
    pub addr: u64,
    /// The size of the block.
    pub bytes: u64,
    /// The requested size, if it is known.
    pub requested_bytes: Option<u64>,
    /// The number of steps begun when it was allocated; `null` without steps.
    pub step: Option<u64>,
    /// The number of the allocator event on this device that allocated it, from 1.
    pub allocated_at_event: u64,
    /// The pass that allocated it.
    pub pass: TrainingPass,
    /// The purpose of the block.
    pub category: Category,
    /// The confidence of the category.
    pub confidence: Option<Confidence>,
    /// The rule that found the category.
    pub rule: CategoryRule,
    /// The `id` of its call site.
    pub site: String,
}
