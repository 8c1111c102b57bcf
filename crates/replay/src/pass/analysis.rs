//! The result of the pass over one trace, from which reports are built.

use std::collections::BTreeMap;

use gpumemtrace_format::{CodeId, EventKind, Meta, NO_DEVICE, NodeId, TrackerState};

use crate::callsite::module_owner::ModuleOwners;
use crate::callsite::symbols::StackSymbols;
use crate::device::DeviceState;
use crate::ingest::metal_totals;
use crate::ingest::trace_head::is_torch_snapshot;
use crate::pass::event_analyses::RunningAnalyses;
use crate::pass::failed_calls::{FailedCallRecord, RefusedCall};
use crate::pass::finish::other_accelerator;
use crate::pass::oom_events::OomRecord;
use crate::pass::program_end::ProgramEnd;
use crate::pass::scope::SinceScope;
use crate::pass::snapshot_schedule::SnapshotRecord;
use crate::pass::stream_filter::StreamTotals;
use crate::report::{
    Accelerator, Ending, FirstOom, Losses, OomPredictions, PluggableMode, SettingEffects, StepSource,
    TraceLoss, TraceNote,
};
use crate::state::live_set::LiveSet;
use crate::state::pool_uses::PoolUses;
use crate::timeline::marks::MarkLog;
use crate::timeline::phase_turns::PhaseTurns;
use crate::timeline::phases::PhaseRecord;
use crate::timeline::step_coverage::StepCoverage;
use crate::timeline::step_times::StepTimes;
use crate::timeline::steps::{StepLayer, StepRule};
use crate::timeline::time_spec::TimeSpec;
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// The analysis of one trace.
#[derive(Debug)]
pub struct Analysis {
    /// The path as the user gave it.
    pub path: String,
    /// Metadata of the process and its environment.
    pub meta: Meta,
    /// How the process ended.
    pub(crate) ending: Ending,
    /// Details of the end, such as the exit status.
    pub(crate) ending_detail: Option<String>,
    /// False if nothing says how the process ended.
    pub(crate) knows_end: bool,
    /// Definitions, sites and stacks.
    pub(crate) symbols: StackSymbols,
    /// The libraries that own driver memory.
    pub(crate) owners: ModuleOwners,
    /// Large driver memory by requesting stack.
    pub(crate) pool_uses: PoolUses,
    /// Number of events of each kind that occurs.
    pub counts: Vec<(EventKind, u64)>,
    /// Counts of lost events and other defects of the trace.
    pub losses: Losses,
    /// What is missing from the trace; empty for a complete trace.
    pub incomplete: Vec<TraceLoss>,
    /// Notes about the trace that do not make it incomplete.
    pub notes: Vec<TraceNote>,
    /// State of the tracker of PyTorch's allocator; `None` if PyTorch was not used.
    pub tracker: Option<TrackerState>,
    /// The rule for step boundaries.
    pub(crate) step_rule: StepRule,
    /// The name of the NVTX ranges that are steps, for that step rule.
    pub(crate) step_range: Option<String>,
    /// Number of steps begun.
    pub steps: u32,
    /// How much of the run the steps cover; `None` if no step began.
    pub(crate) step_coverage: Option<StepCoverage>,
    /// Named phases in the order of their first begin.
    pub(crate) phases: Vec<PhaseRecord>,
    /// Start of recording, which is time 0 in reports.
    pub start_ns: u64,
    /// End of recording, or the last event if that is later.
    pub end_ns: u64,
    /// The end of the program, before interpreter teardown.
    pub(crate) end: ProgramEnd,
    /// Devices by ascending ordinal; [`NO_DEVICE`] for memory on an unknown device.
    pub(crate) devices: Vec<(u8, DeviceState)>,
    /// The first out-of-memory events.
    pub(crate) ooms: Vec<OomRecord>,
    /// Count of all out-of-memory events.
    pub oom_count: u64,
    /// The first out-of-memory error, if settings of PyTorch's allocator may be predicted for it:
    /// the trace has every event, and no other allocator serves PyTorch.
    pub first_oom: Option<FirstOom>,
    /// The predictions for it, which the caller adds before it makes a report.
    pub oom_predictions: OomPredictions,
    /// What other settings would have reserved, by device; the caller adds it before it makes a
    /// report with the section `fragmentation`.
    pub setting_effects: Vec<SettingEffects>,
    /// Count of out-of-memory events by device.
    pub(crate) oom_counts: BTreeMap<u8, u64>,
    /// The first driver calls of other libraries that failed while PyTorch had unused memory.
    pub(crate) failed_call_gaps: Vec<FailedCallRecord>,
    /// The last driver call for memory of another library that failed for lack of it.
    pub(crate) last_refused_call: Option<RefusedCall>,
    /// Number of driver calls that returned an error.
    pub(crate) failed_calls: u64,
    /// The stack of the first failed call.
    pub(crate) first_failed: Option<StackId>,
    /// Number of failed calls that returned an out-of-memory error.
    pub(crate) refused_calls: u64,
    /// Number of those that PyTorch's allocator had made.
    pub(crate) refused_torch_calls: u64,
    /// Live blocks of pinned host memory.
    pub(crate) host: LiveSet,
    /// Frames of the program's calls of `backward()`.
    pub(crate) backward_calls: Vec<NodeId>,
    /// Requested snapshots, in order of time.
    pub(crate) snapshots: Vec<SnapshotRecord>,
    /// Requested snapshots at moments that the run did not reach.
    pub unreached_snapshots: Vec<TimeSpec>,
    /// When steps began, or the intervals of a run without steps.
    pub(crate) step_times: StepTimes,
    /// The step from which on all steps make the same requests to PyTorch's allocator. `None` if
    /// the run does not end so, or if the options did not ask for it.
    pub first_equal_step: Option<u32>,
    /// Times of phases, if the options ask for a history.
    pub(crate) phase_turns: Option<Box<PhaseTurns>>,
    /// The analyses of rare events, at the end of the trace.
    pub(crate) analyses: RunningAnalyses,
    /// By device: the phase (index in `phases`) in which each block of the peak was allocated, by
    /// the number of its event. Filled by a second pass ([`crate::peak::by_phase`]), else empty.
    pub(crate) peak_phases: BTreeMap<u8, SeededMap<u64, usize>>,
    /// By device: the label of each labelled block of the peak, by the number of its event. Filled
    /// by the same pass.
    pub(crate) peak_labels: BTreeMap<u8, SeededMap<u64, CodeId>>,
    /// The moment at which the analysis begins; `None` for the whole run.
    pub since: Option<SinceScope>,
    /// The stream to which the analysis is restricted; `None` for all streams.
    pub stream: Option<StreamTotals>,
}

impl Analysis {
    /// Ordinals of the devices in the trace, ascending; without unknown devices.
    pub fn device_ordinals(&self) -> impl Iterator<Item = u8> + '_ {
        self.visible_devices().map(|(ordinal, _)| ordinal)
    }

    /// Names of the program's marks in order, at most the first 1,000.
    pub fn mark_names(&self) -> impl Iterator<Item = &str> {
        self.analyses.find::<MarkLog>().into_iter().flat_map(|log| &log.first).map(|mark| mark.name.as_str())
    }

    /// The step source as in `steps.source` of a report; `None` without steps.
    pub fn step_source(&self) -> Option<StepSource> {
        self.step_rule.source()
    }

    /// True if the last frees may be those of a program that ends. The history of a PyTorch
    /// snapshot ends before.
    pub(crate) fn ends_in_teardown(&self) -> bool {
        !is_torch_snapshot(&self.meta)
    }

    /// True if the program failed: it exited with a code other than 0, as after an exception that
    /// nothing caught, or crashed. False if the exit code is unknown.
    pub(crate) fn ended_with_error(&self) -> bool {
        match self.ending {
            Ending::Crashed => true,
            Ending::Exit => self
                .ending_detail
                .as_deref()
                .and_then(|detail| detail.strip_prefix("exit ")?.parse::<i32>().ok())
                .is_some_and(|code| code != 0),
            Ending::Killed | Ending::Running => false,
        }
    }

    /// True if only numbers of PyTorch's blocks divide the run: it has no Python stacks, and no
    /// other sign of steps.
    pub(crate) fn lacks_stacks(&self) -> bool {
        matches!(self.step_rule, StepRule::Allocations { layer: StepLayer::Blocks, .. })
            && self.symbols.definitions().python.is_empty()
    }

    /// True for a trace of Metal instead of CUDA.
    pub(crate) fn is_metal(&self) -> bool {
        metal_totals::is_metal(&self.meta)
    }

    /// The kind of the devices of a snapshot, if their allocator is not that of CUDA.
    pub(crate) fn other_accelerator(&self) -> Option<Accelerator> {
        other_accelerator(&self.meta)
    }

    /// How gpumemtrace's pluggable allocator was used; `None` if it was not.
    pub(crate) fn pluggable(&self) -> Option<PluggableMode> {
        self.meta.text("pluggable").and_then(PluggableMode::from_name)
    }

    /// Memory of a device in bytes. `None` on Apple GPUs: they share the system's memory, and a
    /// process may exceed the size that Metal recommends.
    pub(crate) fn capacity(&self, ordinal: u8) -> Option<u64> {
        self.total_bytes(ordinal).filter(|_| !metal_totals::is_metal(&self.meta))
    }

    /// Memory of a device as the driver reports it, in bytes; on Metal the recommended limit.
    pub(crate) fn total_bytes(&self, ordinal: u8) -> Option<u64> {
        self.meta.number(&format!("device.{ordinal}.total_bytes"))
    }

    /// Devices with a known ordinal.
    pub(crate) fn visible_devices(&self) -> impl Iterator<Item = (u8, &DeviceState)> {
        self.devices
            .iter()
            .filter(|(ordinal, _)| *ordinal != NO_DEVICE)
            .map(|(ordinal, state)| (*ordinal, state))
    }

    /// A step number for reports; `None` if the run has no steps.
    pub(crate) fn reported_step(&self, step: u32) -> Option<u64> {
        self.step_rule.source().map(|_| u64::from(step))
    }
}
