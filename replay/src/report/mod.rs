//! The report, as `--json` prints it. `docs/report.schema.json` is the same for other languages.
//!
//! Constraint: other tools read this. Consequence: keys are stable, what is unknown is `null` and never 0, sizes are bytes,
//! times nanoseconds. Every text output is made from these structures and nothing else.

use serde::Serialize;

pub mod display;
mod fragmentation;
mod holders;
mod leak;
mod mps_samples;
mod part;
mod peak;
mod ranks;
mod section;
mod site;
mod snapshot;
mod trace;
mod verdict;

pub use self::{
    fragmentation::{
        AsyncPool, AsyncPoolSample, Cause, FitRow, Fragmentation, FragmentationOverTime, GapMoment,
        GapSample, PinningSite, PoolInfo, PoolRow,
    },
    holders::{Holder, HolderCoverage, HolderScan, UnresolvedBlocks},
    leak::{BenignGrowth, FreedSiblings, Leak, OomForecast, Survival},
    mps_samples::{SampledPoint, SampledRange, TorchMemory},
    part::{Filters, Omitted, OmittedLists, SinceMoment, StreamPart},
    peak::{
        CategoryBytes, CategoryShare, PassBytes, Peak, PeakBlockRow, PhaseBytes, RiseOfSite, RuleShare,
        SincePreviousStep, SiteShare,
    },
    ranks::{FirstCause, RankRow, Ranks, SiteDifference},
    section::Section,
    site::{FrameKind, Site, StackFrame},
    snapshot::Snapshot,
    trace::{Losses, Naming, NamingReason, TraceInfo},
    verdict::{Severity, Verdict},
};

/// A number that is printed without a fraction when it has none.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `gpumemtrace.report`.
    pub schema: &'static str,
    /// Of this layout.
    pub version: u32,
    /// One per file.
    pub traces: Vec<TraceInfo>,
    /// One per trace and device.
    pub devices: Vec<Device>,
    /// How steps were told, in the first trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// Parts of the run that the program gave names to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The busiest device of the first trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Every device of every trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timelines: Option<Vec<Timeline>>,
    /// Moments that the program gave names to, with the timeline; left out where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// What PyTorch said of its own memory when it was asked, with the timeline; one per trace of Metal, left out where there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub torch_memory: Vec<TorchMemory>,
    /// Worst first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaks: Option<Vec<Leak>>,
    /// Each time the program looked who holds what leaks; `None` where it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holders: Option<Vec<HolderScan>>,
    /// What has grown and is no leak, by which rule; largest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_growth: Option<Vec<BenignGrowth>>,
    /// At the peak of reserved bytes, at each out-of-memory, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<Vec<Fragmentation>>,
    /// The same over the whole run, by device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_over_time: Option<Vec<FragmentationOverTime>>,
    /// The driver's stream-ordered pools, where any was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub async_pools: Option<Vec<AsyncPool>>,
    /// Moments that were asked for, by trace, time and device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instants: Option<Vec<Snapshot>>,
    /// What filled the device at its peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Vec<Peak>>,
    /// Each time the program ran out of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom: Option<Vec<Oom>>,
    /// Devices and processes side by side, where there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
    /// What to know before anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdicts: Option<Vec<Verdict>>,
    /// Rows of the lists above that were left out because of `filters`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<OmittedLists>,
    /// What the report was limited to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Filters>,
}

/// A part of the run, all its turns together (`crate::timeline::phases`).
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Index in `traces`.
    pub trace: usize,
    /// As the program called it; each number in it is `#`.
    pub name: Option<String>,
    /// How often it began.
    pub turns: u64,
    /// How long it lasted.
    pub time_ns: u64,
    /// Where tensors were held.
    pub devices: Vec<PhaseOnDevice>,
}

/// A moment of the run (`crate::timeline::marks`).
#[derive(Clone, Debug, Serialize)]
pub struct Mark {
    /// Index in `traces`.
    pub trace: usize,
    /// As the program called it.
    pub name: Option<String>,
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
}

/// A part of the run on a device.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseOnDevice {
    /// Ordinal.
    pub device: u8,
    /// Most bytes held by tensors while it lasted; unknown where PyTorch's allocator was not seen.
    pub peak_live_bytes: Option<u64>,
    /// Bytes of tensors that were there at its end and not at its begin, added up over its turns.
    pub left_bytes: Option<i64>,
}

/// How the process ended, as far as the file shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// By itself.
    Exit,
    /// From outside, or without a word.
    Killed,
    /// By a fault of its own.
    Crashed,
    /// It has not.
    Running,
}

/// A device's numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// Its name.
    pub name: Option<String>,
    /// Its size.
    pub total_bytes: Option<u64>,
    /// Maxima, each of its own series.
    pub peak: DevicePeak,
    /// Last values.
    pub end: DeviceLevels,
    /// Who held the driver's memory when `peak.device_bytes` was reached; sums to it.
    pub ledger: Vec<OwnerBytes>,
    /// What was in use beyond what calls handed out, nearest to then: contexts, code, what pools keep.
    pub residual_bytes: Option<u64>,
    /// How that is known.
    pub residual: Option<Residual>,
}

/// What no call shows.
#[derive(Clone, Debug, Serialize)]
pub struct Residual {
    /// In use, minus handed out by then.
    pub bytes: u64,
    /// Who was asked: `nvml` (this process alone), `driver` or `program` (all processes on the device).
    pub witness: &'static str,
    /// When.
    pub time_ns: u64,
    /// Their answer.
    pub in_use_bytes: u64,
    /// How often anybody was asked.
    pub samples: u64,
    /// Over all samples of that witness.
    pub least_bytes: u64,
    /// Over all samples of that witness.
    pub most_bytes: u64,
}

/// Maxima.
#[derive(Clone, Debug, Serialize)]
pub struct DevicePeak {
    /// Handed to tensors.
    pub live_bytes: Option<u64>,
    /// Held by PyTorch.
    pub reserved_bytes: Option<u64>,
    /// Handed out by the driver.
    pub device_bytes: Option<u64>,
    /// Of the peak of live bytes (of device bytes without PyTorch), from the start of recording.
    pub time_ns: Option<u64>,
    /// Then.
    pub step: Option<u64>,
}

/// The three series at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceLevels {
    /// Handed to tensors.
    pub live_bytes: Option<u64>,
    /// Held by PyTorch.
    pub reserved_bytes: Option<u64>,
    /// Handed out by the driver.
    pub device_bytes: Option<u64>,
}

/// A share of the device.
#[derive(Clone, Debug, Serialize)]
pub struct OwnerBytes {
    /// Who.
    pub owner: String,
    /// How much.
    pub bytes: u64,
}

/// How steps were told.
#[derive(Clone, Debug, Serialize)]
pub struct Steps {
    /// `marks`, `nvtx`, `optimizer`, `period` or nothing.
    pub source: Option<&'static str>,
    /// How many began.
    pub count: Option<u64>,
    /// The line whose call begins a step, where there is one.
    pub site: Option<Site>,
    /// What the ranges that are steps are called, where it is ranges. Numbers are `#`.
    pub range: Option<String>,
}

/// A device over time.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// Two per bin at most: the moment of its highest and of its lowest live bytes. The other series give their own
    /// maximum and minimum of the bin, so that no extreme of any series is lost.
    pub points: Vec<TimelinePoint>,
    /// Largest sites.
    pub bands: Vec<TimelineBand>,
    /// Those of them that a filter left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
}

/// One moment.
#[derive(Clone, Debug, Serialize)]
pub struct TimelinePoint {
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// Handed to tensors.
    pub live_bytes: Option<u64>,
    /// Held by PyTorch.
    pub reserved_bytes: Option<u64>,
    /// Handed out by the driver.
    pub device_bytes: Option<u64>,
}

/// One site over time.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineBand {
    /// Whose.
    pub site: Site,
    /// One per point.
    pub bytes: Vec<u64>,
}

/// A site's share.
#[derive(Clone, Debug, Serialize)]
pub struct SiteBytes {
    /// Whose.
    pub site: Site,
    /// How much.
    pub bytes: u64,
}

/// The program ran out of memory.
#[derive(Clone, Debug, Serialize)]
pub struct Oom {
    /// Index in `traces`.
    pub trace: usize,
    /// Ordinal.
    pub device: u32,
    /// From the start of recording.
    pub time_ns: u64,
    /// Steps begun.
    pub step: Option<u64>,
    /// Asked for.
    pub requested_bytes: u64,
    /// By whom.
    pub site: Site,
    /// Handed to tensors.
    pub live_bytes: u64,
    /// Held by PyTorch.
    pub reserved_bytes: u64,
    /// Not handed out by the driver to this process.
    pub device_free_bytes: Option<u64>,
    /// One sentence.
    pub why: String,
    /// The largest piece PyTorch could have given.
    pub largest_free_block_bytes: Option<u64>,
    /// What could be done.
    pub remedies: Vec<Remedy>,
    /// What filled the device, largest first.
    pub sites: Vec<SiteShare>,
    /// Reserved and used by no tensor then, by cause; as in `fragmentation`.
    pub unused: Vec<Cause>,
    /// What had grown until then, most first.
    pub growth: Vec<SiteBytes>,
    /// What of `sites` a filter left out, and what is beyond the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<Omitted>,
}

/// Something to try.
#[derive(Clone, Debug, Serialize)]
pub struct Remedy {
    /// What.
    pub action: String,
    /// `null`: the trace does not tell.
    pub works: Option<bool>,
}
