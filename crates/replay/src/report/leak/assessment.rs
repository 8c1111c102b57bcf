//! Whether leaks could be assessed, and growth that is not known to be a leak.
//! `docs/analyses/index.md` has the rules.

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::json_enum::json_enum;
use crate::report::{GrowsBy, Holder, Leak, LeakKind, Omitted, PoolFramework, Quantity, Site};

json_enum! {
    /// Whether the trace allows a verdict on leaks.
    enum AssessmentStatus {
        /// All growth was judged.
        Assessed = "assessed",
        /// A part of the run, or of the memory, was not judged.
        Partly = "partly",
        /// The run is too short, or its memory is not visible.
        NotAssessed = "not_assessed",
    }
}

json_enum! {
    /// What is known of growth that is not known to be a leak.
    enum GrowthClass {
        /// Blocks stay, but came too few times to tell.
        PossibleLeak = "possible_leak",
        /// Each step frees its blocks and allocates larger or more ones.
        GrowingSizes = "growing_sizes",
        /// Blocks stay in a container that has a limit, or come ever more slowly.
        Filling = "filling",
        /// It grew until the device was full.
        TowardsOom = "towards_oom",
        /// All live memory grows, and no call site explains it.
        Unknown = "unknown",
    }
}

/// Whether leaks of a trace could be assessed, and what grew without being called a leak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeakAssessment {
    /// Index in the list `traces`.
    pub trace: usize,
    /// Whether the trace allows a verdict on leaks.
    pub status: AssessmentStatus,
    /// Why not everything was judged, in one sentence; `null` if everything was.
    pub reason: Option<String>,
    /// What to do about it, in one sentence; `null` if nothing helps.
    pub remedy: Option<String>,
    /// What was not judged; empty if everything was.
    pub limits: Vec<AssessmentLimit>,
    /// Growth that is not known to be a leak, most bytes first.
    pub growth: Vec<GrowingSite>,
    /// Rows removed from `growth`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<Omitted>,
}

/// Something that was not judged.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AssessmentLimit {
    /// The run has too few steps.
    FewSteps {
        /// Steps that have ended, from the begin of the scope on.
        steps: u64,
        /// Steps that are needed.
        needed: u64,
    },
    /// The run has no steps, and too few allocations.
    FewAllocations {
        /// Intervals of equal numbers of allocations.
        intervals: u64,
        /// Intervals that are needed.
        needed: u64,
    },
    /// The run has no steps. It was judged over intervals of equal numbers of allocations, which
    /// may hide a slow leak.
    NoSteps {
        /// How many intervals the run has.
        intervals: u64,
        /// Allocations in each interval.
        allocations: u64,
    },
    /// PyTorch's blocks have no Python stacks, and the run has no steps. The layers of a model
    /// repeat like the iterations of a loop.
    NoStacks,
    /// A long part of the run comes after the last step boundary.
    AfterLastStep {
        /// Number of steps before it.
        steps: u64,
        /// Allocations in this part.
        allocations: u64,
        /// Its share of all allocations.
        share: f64,
    },
    /// A library serves its own blocks from memory of the driver.
    OpaquePool {
        /// Ordinal of the GPU.
        device: u32,
        /// The library that requested it.
        owner: String,
        /// The framework that the memory serves; `null` if it is not a known one.
        framework: Option<PoolFramework>,
        /// The most bytes that it held.
        bytes: u64,
        /// Its share of the most memory that the process held on the GPU.
        share: f64,
    },
    /// A snapshot of PyTorch shows the recorded history only.
    SnapshotHistory {
        /// The number of events in it; 0 if no history was recorded.
        events: u64,
    },
    /// The trace lacks events.
    MissingEvents,
    /// Only the blocks of one stream were judged.
    OneStream,
}

/// A call site that grows and is not known to leak.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct GrowingSite {
    /// The user's line that allocates it; for `unknown`, the deepest line below which most of it
    /// was allocated.
    pub site: Site,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The memory that grows.
    pub memory: LeakKind,
    /// How much more it holds than at first.
    pub bytes: u64,
    /// The blocks that stayed; for `growing_sizes`, the blocks at the last step end.
    pub blocks: u64,
    /// What is known of it.
    pub class: GrowthClass,
    /// For `growing_sizes`: whether blocks get larger or more; `null` for other classes.
    pub grows_by: Option<GrowsBy>,
    /// How many times it grew; `null` if that is unknown.
    pub events: Option<u64>,
    /// For `possible_leak`: how many more times it must grow to be called a leak; `null` if it grew
    /// often enough, but too unevenly.
    pub needs: Option<u64>,
    /// The mean growth per step; `null` without steps.
    pub bytes_per_step: Option<Quantity>,
    /// What holds its blocks, largest first; `null` if that is unknown.
    pub holders: Option<Vec<Holder>>,
    /// For `possible_leak` and `filling`: all that is known of it, as in `leaks`. The `confidence`
    /// of a possible leak is `null`.
    pub finding: Option<Box<Leak>>,
}

/// Growth below this size is worth knowing, but no warning.
const MIN_WARNING_BYTES: u64 = 1 << 20;

impl GrowingSite {
    /// True if it may be a leak, and is large enough for a warning.
    pub fn is_warning(&self) -> bool {
        let may_leak = match self.class {
            GrowthClass::PossibleLeak | GrowthClass::TowardsOom | GrowthClass::Unknown => true,
            GrowthClass::GrowingSizes | GrowthClass::Filling => false,
        };
        may_leak && self.bytes >= MIN_WARNING_BYTES
    }
}
