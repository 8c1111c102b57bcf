//! What the pass over a trace leaves for the reports.

use std::collections::BTreeMap;

use crate::callsite::module_owner::ModuleOwners;
use crate::callsite::symbols::StackId;
use crate::callsite::symbols::StackSymbols;
use crate::ingest::metal_totals;
use crate::pass::event_analyses::RunningAnalyses;
use crate::pass::oom_events::OomRecord;
use crate::pass::scope::SinceScope;
use crate::pass::snapshot_schedule::SnapshotRecord;
use crate::pass::stream_filter::StreamTotals;
use crate::report::{Ending, Losses, PluggableMode, StepSource, TraceLoss, TraceNote};
use crate::state::device::DeviceState;
use crate::state::live_set::LiveSet;
use crate::timeline::marks::MarkLog;
use crate::timeline::phases::PhaseRecord;
use crate::timeline::steps::StepRule;
use crate::timeline::time_spec::TimeSpec;
use crate::util::seeded_map::SeededMap;
use gpumemtrace_format::NodeId;
use gpumemtrace_format::{EventKind, Meta, NO_DEVICE, TrackerState};

/// A trace, analysed.
#[derive(Debug)]
pub struct Analysis {
    /// As the user named it.
    pub path: String,
    /// Who was traced.
    pub meta: Meta,
    /// How it ended.
    pub(crate) ending: Ending,
    /// More of that.
    pub(crate) ending_detail: Option<String>,
    /// Sites and stacks.
    pub(crate) symbols: StackSymbols,
    /// Whose memory.
    pub(crate) owners: ModuleOwners,
    /// Events by kind.
    pub counts: Vec<(EventKind, u64)>,
    /// What is missing.
    pub losses: Losses,
    /// What is missing from the trace; empty if it is complete.
    pub incomplete: Vec<TraceLoss>,
    /// Caveats and other facts about the recording.
    pub notes: Vec<TraceNote>,
    /// How far PyTorch's own tracker was of help; `None` where there was no PyTorch.
    pub tracker: Option<TrackerState>,
    /// How steps were told.
    pub(crate) step_rule: StepRule,
    /// The name of the ranges that are steps, where ranges are.
    pub(crate) step_range: Option<String>,
    /// Steps begun.
    pub steps: u32,
    /// What the program gave names to, in the order in which they first began.
    pub(crate) phases: Vec<PhaseRecord>,
    /// Zero of all times in reports.
    pub start_ns: u64,
    /// The last moment.
    pub end_ns: u64,
    /// By ordinal.
    pub(crate) devices: Vec<(u8, DeviceState)>,
    /// The first ones.
    pub(crate) ooms: Vec<OomRecord>,
    /// All of them.
    pub oom_count: u64,
    /// The same by device.
    pub(crate) oom_counts: BTreeMap<u8, u64>,
    /// Driver calls that returned an error.
    pub(crate) failed_calls: u64,
    /// Who made the first of them.
    pub(crate) first_failed: Option<StackId>,
    /// Of these, the ones for which no memory was left.
    pub(crate) refused_calls: u64,
    /// Pinned host memory.
    pub(crate) host: LiveSet,
    /// Frames of the program's calls of `backward()`.
    pub(crate) backward_calls: Vec<NodeId>,
    /// Moments that were asked for, as they came.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// Those that did not.
    pub unreached_snapshots: Vec<TimeSpec>,
    /// The analyses of rare events, at the end of the trace.
    pub(crate) analyses: RunningAnalyses,
    /// By ordinal: in which named part of the run, as an index in `phases`, the event that brought
    /// a block of the peak came. Empty unless a second pass was made for it
    /// ([`crate::peak::by_phase`]).
    pub(crate) peak_phases: BTreeMap<u8, SeededMap<u64, usize>>,
    /// From when on all of this is; the whole run where there is none.
    pub since: Option<SinceScope>,
    /// Of which stream all of this is; of all where there is none.
    pub stream: Option<StreamTotals>,
}

impl Analysis {
    /// Known ordinals of the devices in the trace, ascending.
    pub fn device_ordinals(&self) -> impl Iterator<Item = u8> + '_ {
        self.visible_devices().map(|(ordinal, _)| ordinal)
    }

    /// Names of the program's marks in their order; only the first ones of a run with many.
    pub fn mark_names(&self) -> impl Iterator<Item = &str> {
        self.analyses.find::<MarkLog>().into_iter().flat_map(|log| &log.first).map(|mark| mark.name.as_str())
    }

    /// What begins a step; `None` without steps.
    pub fn step_source(&self) -> Option<StepSource> {
        self.step_rule.source()
    }

    /// True for a trace of Metal instead of CUDA.
    pub(crate) fn is_metal(&self) -> bool {
        metal_totals::is_metal(&self.meta)
    }

    /// How gpumemtrace's pluggable allocator was used; `None` if it was not.
    pub(crate) fn pluggable(&self) -> Option<PluggableMode> {
        self.meta.text("pluggable").and_then(PluggableMode::from_name)
    }

    /// What a device can hold. On Apple GPUs nobody tells: they share the system's memory, and what
    /// Metal recommends may be exceeded.
    pub(crate) fn capacity(&self, ordinal: u8) -> Option<u64> {
        self.total_bytes(ordinal).filter(|_| !metal_totals::is_metal(&self.meta))
    }

    /// Its size as the driver tells it; of Metal's what is recommended.
    pub(crate) fn total_bytes(&self, ordinal: u8) -> Option<u64> {
        self.meta.number(&format!("device.{ordinal}.total_bytes"))
    }

    /// Devices whose ordinal is known. Memory of the others is in the notes.
    pub(crate) fn visible_devices(&self) -> impl Iterator<Item = (u8, &DeviceState)> {
        self.devices
            .iter()
            .filter(|(ordinal, _)| *ordinal != NO_DEVICE)
            .map(|(ordinal, state)| (*ordinal, state))
    }

    /// A step in reports; of equal times nothing is said.
    pub(crate) fn reported_step(&self, step: u32) -> Option<u64> {
        self.step_rule.source().map(|_| u64::from(step))
    }
}
