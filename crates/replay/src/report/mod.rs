//! The report of `replay`, as `--json` prints it.
//!
//! Other tools read this: keys are stable, unknown values are `null` and never 0, sizes are bytes
//! and times nanoseconds. All text is made from these structures. `gpumemtrace schema report`
//! prints their JSON Schema.

mod category_rule;
mod device;
mod filters;
mod fragmentation;
mod holders;
pub(crate) mod json_enum;
mod leak;
mod mps_samples;
mod note;
mod oom;
mod origin;
mod peak;
mod ranks;
mod recording;
mod run;
mod section;
mod site;
mod snapshot;
mod trace;
mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::trace::{METAL_MODE, SNAPSHOT_MODE};
pub use self::{
    category_rule::CategoryRule,
    device::{
        Device, DeviceEnd, DeviceLevels, DevicePeak, DeviceStepEnd, OpaquePool, OwnerBytes, PoolFramework,
        Residual, ResidualSource, SleepMode,
    },
    filters::{Filters, Omitted, OmittedLists, SinceMoment, StreamPart},
    fragmentation::{
        AsyncPool, AsyncPoolSample, Cause, CauseKind, FailedCall, FitRow, Fragmentation,
        FragmentationOverTime, GapMoment, GapReason, GapSample, PinningSite, PoolBlocks, PoolBytes, PoolInfo,
        PoolMemory, PoolRow, ReservedCurve, SettingEffect, SettingEffects,
    },
    holders::{Holder, HolderCoverage, HolderScan, ScanTrigger, UnresolvedBlocks, UnresolvedReason},
    leak::{
        AmountUnit, AssessmentLimit, AssessmentStatus, BenignGrowth, BenignRule, BlocksOfLeak, BlocksOfStack,
        FreedSiblings, GrowingSite, GrowsBy, GrowthClass, Leak, LeakAssessment, LeakEvidence, LeakKind,
        LeakShape, OomForecast, Survival,
    },
    mps_samples::{SampledPoint, SampledRange, TorchMemory},
    note::{BlockContent, TraceLoss, TraceNote, Worded},
    oom::{
        FirstOom, Oom, OomCause, OomGrowth, OomGrowthPattern, OomPredictions, RefusedRequest, Remedy,
        RemedyKind, SettingVerdict, StepPeakBytes,
    },
    origin::TraceOrigin,
    peak::{
        Category, CategoryBytes, CategoryShare, Confidence, LabelDifference, LabelPair, MemoryLayer,
        PassBytes, Peak, PeakBlockRow, PeakLabels, PhaseBytes, RiseOfSite, RuleShare, SincePreviousStep,
        SiteBytes, SiteShare, TrainingPass,
    },
    ranks::{FirstCause, RankAlignment, RankRow, Ranks},
    recording::{Accelerator, EndMoment, Ending, PluggableMode, UnnamedReason},
    run::{
        BlockChange, BlockLayer, BlockSum, ComparedSteps, DeviceBytes, DeviceGauges, GapPoint, LevelGauge,
        Mark, OptimizerMethod, Phase, PhaseOnDevice, RunGauges, RunView, SegmentChange, SegmentPlace,
        StepSource, Steps, Timeline, TimelineBand, TimelinePoint, WalkEnd, WalkedBlock, WalkedEvent,
        WalkedSegment,
    },
    section::{Section, SectionData},
    site::{FrameKind, Site, StackFrame, StackOrder},
    snapshot::Snapshot,
    trace::{Losses, Naming, NamingReason, TorchReleases, TraceInfo, shell_exit_code},
    verdict::{HiddenOwner, PressureEvidence, Severity, Verdict, VerdictEvidence},
};

/// A number that is printed without a fraction if it has none.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema)]
#[schemars(inline)]
pub struct Quantity(pub f64);

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && self.0.abs() < 9e15 {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

/// The report of `gpumemtrace replay --json`.
///
/// Sizes are bytes, times nanoseconds from the start of the recording, unknown values `null` and
/// never 0. Steps are counted from 0. Keys may be added. A section is absent unless it was
/// selected, or no section was.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace report", extend("$id" = "urn:gpumemtrace:report:1"))]
pub struct Report {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.report"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// One entry per trace.
    pub traces: Vec<TraceInfo>,
    /// One entry per trace and device.
    pub devices: Vec<Device>,
    /// How the steps of the first trace were found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// Named phases of the run; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The device of the first trace with the highest peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Every device of every trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timelines: Option<Vec<Timeline>>,
    /// Named moments, the first 1,000 of each trace; with the timeline, absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// PyTorch's own counters on Metal, sampled; with the timeline, one per trace of Metal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub torch_memory: Vec<TorchMemory>,
    /// Whether leaks could be assessed, by trace; with the leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leak_assessment: Option<Vec<LeakAssessment>>,
    /// All leaks, worst first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<Vec<Leak>>,
    /// Scans for the holders of leaks (`gpumemtrace run --holders`), the last 64; absent if there
    /// were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<HolderScan>>,
    /// Growth that is not a leak, largest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub benign_growth: Option<Vec<BenignGrowth>>,
    /// Unused reserved memory at the peak of reserved memory, at each out-of-memory error, and at
    /// the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<Vec<Fragmentation>>,
    /// Unused reserved memory over the run, by device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmentation_over_time: Option<Vec<FragmentationOverTime>>,
    /// What other settings of PyTorch's allocator would have reserved; absent if it was not
    /// predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting_effects: Option<Vec<SettingEffects>>,
    /// Memory pools of the CUDA driver; absent if none was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_pools: Option<Vec<AsyncPool>>,
    /// Snapshots that `--at` requested, by trace, time and device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<Vec<Snapshot>>,
    /// The memory of each device at its peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Vec<Peak>>,
    /// All out-of-memory errors, in time order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Vec<Oom>>,
    /// Devices and processes side by side; absent if there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
    /// The findings, by trace, most severe first. Only in a report with all sections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<Vec<Verdict>>,
    /// Rows of the lists above that `filters` removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<OmittedLists>,
    /// The filters of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Filters>,
    /// Sections of registered analyses, by key.
    #[serde(flatten)]
    #[schemars(skip)]
    pub extra: BTreeMap<&'static str, Vec<Arc<dyn SectionData>>>,
}

impl Report {
    /// A report without traces and sections.
    pub(crate) fn empty() -> Self {
        Self {
            schema: "gpumemtrace.report",
            version: 1,
            traces: Vec::new(),
            devices: Vec::new(),
            steps: None,
            phases: Vec::new(),
            timeline: None,
            timelines: None,
            marks: Vec::new(),
            torch_memory: Vec::new(),
            leak_assessment: None,
            leaks: None,
            holders: None,
            benign_growth: None,
            fragmentation: None,
            fragmentation_over_time: None,
            setting_effects: None,
            async_pools: None,
            snapshots: None,
            peak: None,
            oom: None,
            ranks: None,
            verdicts: None,
            omitted: None,
            filters: None,
            extra: BTreeMap::new(),
        }
    }
}
