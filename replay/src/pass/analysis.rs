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

/// The state of all analyses after the last event of a trace.
#[derive(Debug)]
pub struct Analysis {
    /// Path of the trace as the user gave it.
    pub path: String,
    /// Metadata of the recording: program, versions and devices.
    pub meta: Meta,
    /// How the recording ended.
    pub(crate) ending: Ending,
    /// Further words about the end, such as the signal; `None` without any.
    pub(crate) ending_detail: Option<String>,
    /// The call sites and stacks of the trace with their names.
    pub(crate) symbols: StackSymbols,
    /// Which library owns the code at an address.
    pub(crate) owners: ModuleOwners,
    /// Number of events by kind.
    pub counts: Vec<(EventKind, u64)>,
    /// Counts of events and names that the trace does not contain.
    pub losses: Losses,
    /// What is missing from the trace; empty if it is complete.
    pub incomplete: Vec<TraceLoss>,
    /// Caveats and other facts about the recording.
    pub notes: Vec<TraceNote>,
    /// How far PyTorch's own tracker was of help; `None` where there was no PyTorch.
    pub tracker: Option<TrackerState>,
    /// The rule that decides where a step begins.
    pub(crate) step_rule: StepRule,
    /// The name of the ranges that are steps, where ranges are.
    pub(crate) step_range: Option<String>,
    /// Number of steps begun.
    pub steps: u32,
    /// The named phases of the program, in the order in which they first began.
    pub(crate) phases: Vec<PhaseRecord>,
    /// Time of the first event in nanoseconds; times in reports count from here.
    pub start_ns: u64,
    /// Time of the last event in nanoseconds.
    pub end_ns: u64,
    /// The devices with their ordinals, ascending.
    pub(crate) devices: Vec<(u8, DeviceState)>,
    /// The first out-of-memory events.
    pub(crate) ooms: Vec<OomRecord>,
    /// Number of out-of-memory events, including the ones not kept.
    pub oom_count: u64,
    /// Number of out-of-memory events by device ordinal.
    pub(crate) oom_counts: BTreeMap<u8, u64>,
    /// Driver calls that returned an error.
    pub(crate) failed_calls: u64,
    /// Stack of the first failed driver call; `None` without one.
    pub(crate) first_failed: Option<StackId>,
    /// Failed driver calls whose error was out of memory.
    pub(crate) refused_calls: u64,
    /// Live blocks of pinned host memory.
    pub(crate) host: LiveSet,
    /// Frames of the program's calls of `backward()`.
    pub(crate) backward_calls: Vec<NodeId>,
    /// The requested snapshots, in the order in which they were reached.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// The requested snapshots that the trace did not reach.
    pub unreached_snapshots: Vec<TimeSpec>,
    /// The analyses of rare events, at the end of the trace.
    pub(crate) analyses: RunningAnalyses,
    /// By ordinal: the phase in which each block of the peak was allocated, as an index in `phases`. Empty unless a second pass was made for it
    /// ([`crate::peak::by_phase`]).
    pub(crate) peak_phases: BTreeMap<u8, SeededMap<u64, usize>>,
    /// Start of the analysed part of the run; `None` for the whole run.
    pub since: Option<SinceScope>,
    /// Totals of the analysed stream; `None` for all streams.
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

    /// Bytes a device can hold. `None` on Apple GPUs: they share the system's memory, and a program
    /// may exceed the size that Metal recommends.
    pub(crate) fn capacity(&self, ordinal: u8) -> Option<u64> {
        self.total_bytes(ordinal).filter(|_| !metal_totals::is_metal(&self.meta))
    }

    /// Size of a device in bytes, as the driver reports it; on Metal the recommended size.
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
