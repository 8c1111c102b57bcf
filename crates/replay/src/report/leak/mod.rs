//! Growing call sites: leaks, and growth that is not a leak. `docs/analyses/index.md` has the
//! definitions.

mod assessment;
mod blocks;

use schemars::JsonSchema;
use serde::Serialize;

use super::json_enum::json_enum;
use super::{Holder, HolderCoverage, Quantity, Site};
use crate::util::ids::StackId;
pub use assessment::{AssessmentLimit, AssessmentStatus, GrowingSite, GrowthClass, LeakAssessment};
pub use blocks::{BlocksOfLeak, BlocksOfStack};

json_enum! {
    /// The memory that grows.
    enum LeakKind {
        /// Blocks of PyTorch's allocator; on Metal, buffers in heaps.
        Tensors = "tensors",
        /// Memory of the CUDA driver, beside PyTorch's.
        Device = "device",
        /// Pinned memory of the host.
        PinnedHost = "pinned_host",
        /// Memory that PyTorch reserves and does not use.
        Reserved = "reserved",
    }
}

json_enum! {
    /// How a leak grows.
    enum LeakShape {
        /// At a constant rate.
        Linear = "linear",
        /// The second half of the run grew more than 1.6 times as much as the first.
        Accelerating = "accelerating",
        /// Many call sites grow in the same steps: an autograd graph is kept.
        RetainedGraph = "retained_graph",
    }
}

json_enum! {
    /// What increases in a leak.
    enum GrowsBy {
        /// The number of blocks.
        Blocks = "blocks",
        /// The size of the blocks.
        Size = "size",
    }
}

json_enum! {
    /// The unit of an amount.
    enum AmountUnit {
        /// A number of bytes.
        Bytes = "bytes",
        /// A number of blocks.
        Blocks = "blocks",
        /// A number without a unit.
        Count = "count",
        /// Bytes in each step.
        BytesPerStep = "bytes_per_step",
    }
}

/// A call site with live memory that grows from step to step.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Leak {
    /// Index in the list `traces`.
    pub trace: usize,
    /// The memory that grows.
    pub kind: LeakKind,
    /// The deepest user frame that holds at least 90% of the growth and nothing else that is freed.
    pub site: Site,
    /// The call site of the allocation, if it differs.
    pub leaf: Option<Site>,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The shape of the growth over the steps.
    pub shape: LeakShape,
    /// A probability from 0 to 1; `null` for a possible leak, which grew too few times or too
    /// unevenly.
    pub confidence: Option<f64>,
    /// Blocks that survive at the end of the last complete step; if the size grows, the blocks
    /// there are.
    pub blocks: u64,
    /// Their bytes; if the size grows, the growth.
    pub bytes: u64,
    /// Growth in blocks; `null` without steps.
    pub blocks_per_step: Option<Quantity>,
    /// Growth in bytes; `null` without steps.
    pub bytes_per_step: Option<Quantity>,
    /// The 95% interval of Theil and Sen for `bytes_per_step`; twice the same value if the growth
    /// is exact.
    pub bytes_per_step_interval: Option<[Quantity; 2]>,
    /// Growth in bytes, on average over the time of the growth; `null` if that is under a second.
    pub bytes_per_second: Option<Quantity>,
    /// The number of steps after which the growth repeats; `null` if it does not.
    pub period_steps: Option<u64>,
    /// The first step with a surviving block, counted from 0.
    pub first_step: Option<u64>,
    /// The last complete step: `blocks` and `bytes` are as of its end.
    pub last_step: Option<u64>,
    /// Whether the number of blocks or their size increases.
    pub grows_by: GrowsBy,
    /// False for growth without a period. A cache that is still filling grows like that, too.
    pub is_regular: bool,
    /// The share of all growth on this device in the same time.
    pub share_of_growth: Option<f64>,
    /// Steps until the device is full at this rate alone (see `docs/analyses/index.md`).
    pub steps_to_oom: Option<u64>,
    /// The step at which the device is full if all its leaks continue.
    pub oom_step: Option<OomForecast>,
    /// The time from the start of the recording at which the device is full if all its leaks
    /// continue, and steps pass as fast as while they grew.
    pub oom_elapsed_ns: Option<u64>,
    /// Blocks of the same call sites that were live at the last step end.
    pub survivors: Option<u64>,
    /// The number of steps that allocated the survivors of the main call site.
    pub generations: Option<u64>,
    /// The lifetimes of the main call site's blocks.
    pub cohort_survival: Vec<Survival>,
    /// The blocks of the same call sites that were freed.
    pub freed_siblings: FreedSiblings,
    /// The calls of `backward()` for which autograd threads allocated it.
    pub backward_calls: Vec<Site>,
    /// The call sites below `site`, if there are several; of a retained graph, the origins of its
    /// blocks.
    pub members: Vec<Site>,
    /// For blocks that PyTorch's cache of pinned memory requested: all lines whose requests it
    /// served so, most requests first. Any line with pinned memory may hold the blocks.
    pub host_cache_sites: Vec<Site>,
    /// What holds its blocks, largest first; `null` if the program did not scan.
    pub holders: Option<Vec<Holder>>,
    /// How many of its blocks the scan examined.
    pub holder_coverage: Option<HolderCoverage>,
    /// The statistics behind the finding.
    pub evidence: LeakEvidence,
    /// The growing stacks, and the last step before the growth of each.
    #[serde(skip)]
    pub(crate) stacks: Vec<(StackId, Option<u32>)>,
    /// `bytes` and `blocks` by stack, most bytes first: the stack as in [`WalkedBlock`], bytes and
    /// blocks. Empty if only the size grows.
    ///
    /// [`WalkedBlock`]: super::WalkedBlock
    #[serde(skip)]
    pub by_stack: Vec<(u32, u64, u64)>,
    /// Growth in bytes per step, or per interval of a run without steps: expected, least and most.
    #[serde(skip)]
    pub(crate) rate: [f64; 3],
    /// The first step, or interval, with growth, and the last complete one.
    #[serde(skip)]
    pub(crate) judged: (u64, u64),
}

impl Leak {
    /// True if a holder scan found an autograd graph on the way to its blocks.
    pub fn is_held_by_graph(&self) -> bool {
        let mut links = self.holders.iter().flatten().flat_map(|holder| &holder.chain);
        links.any(|link| link == "grad_fn chain")
    }
}

/// The statistics behind a leak.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct LeakEvidence {
    /// The number of steps at the time of judgement; `null` without steps.
    pub judged_at_step: Option<u32>,
    /// The number of steps with growth that stayed.
    pub growth_steps: usize,
    /// The share of differences that follow the period.
    pub regularity: f64,
    /// Kendall's tau of the trend.
    pub kendall_tau: f64,
    /// The Theil-Sen slope per step, in `slope_unit`.
    pub theil_sen_slope: f64,
    /// The 95% interval of the slope.
    pub theil_sen_interval: [f64; 2],
    /// The unit of the slope and of `largest_drawdown`.
    pub slope_unit: AmountUnit,
    /// The largest rise that was undone.
    pub largest_drawdown: u64,
    /// Blocks that its call sites allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_allocated: Option<u64>,
    /// Blocks of its call sites that were freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_freed: Option<u64>,
    /// Blocks that were freed in a later step than they were allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks_freed_in_later_step: Option<u64>,
    /// For reserved memory, the stream that reserves it; `null` for all streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Option<u64>>,
    /// For reserved memory, the pool that reserves it; `null` for all pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<Option<u64>>,
}

/// The step at which a device is expected to be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OomForecast {
    /// The most likely step.
    pub expected: u64,
    /// With none of PyTorch's cache and the highest rate.
    pub earliest: u64,
    /// With all of PyTorch's cache and the lowest rate; `null` if never.
    pub latest: Option<u64>,
}

/// The share of blocks that live for some number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Survival {
    /// Steps after the allocation. Each value ends a class of ages, twice as wide as the one
    /// before.
    pub after_steps: u32,
    /// The share among the blocks that could be observed for that long.
    pub share: f64,
}

/// A call site that holds more than before and does not leak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BenignGrowth {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The memory that grew.
    pub kind: LeakKind,
    /// The call site that grew.
    pub site: Site,
    /// Why it is not a leak.
    pub rule: BenignRule,
    /// The growth in bytes.
    pub bytes: u64,
    /// The growth in blocks.
    pub blocks: u64,
}

json_enum! {
    /// Why growth is not a leak.
    enum BenignRule {
        /// Allocated by an optimizer's first steps, and not again.
        OptimizerState = "optimizer_state",
        /// Blocks of the size of cuBLAS workspaces.
        LibraryWorkspace = "library_workspace",
        /// It grew a few times only.
        OneOff = "one_off",
        /// One call of a model keeps it, such as the activations of a forward pass.
        OneModelCall = "one_model_call",
        /// Reallocated for the longest batch so far.
        Ratchet = "ratchet",
        /// Allocated in one go, before other work, such as weights or a preallocated cache.
        SetUp = "set_up",
        /// Freed again before the end of the run or the history.
        Released = "released",
        /// As much other memory was freed in the same time.
        Replaced = "replaced",
        /// It stopped growing, or slows down.
        Saturating = "saturating",
        /// The run has too few steps to judge it.
        TooEarly = "too_early",
        /// It grew in the first steps only.
        WarmUp = "warm_up",
    }
}

/// The freed blocks of the same call site.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FreedSiblings {
    /// The share of all blocks of the call site.
    pub share: f64,
    /// Where most of them were freed.
    pub site: Option<Site>,
}
