//! The pass over the events of a trace.
//!
//! [`analyse`] reads a trace and returns an [`Analysis`]. Each event updates the state of its
//! device and is dropped; only the first [`oom_events::MAX_OOMS`] out-of-memory events are stored.
//! Memory is therefore proportional to live blocks and distinct stacks, not to events. `on_event`
//! is the hot loop; `tests/benches/million.rs` measures it and `crates/replay/tests/exactness.rs`
//! checks its results.

pub(crate) mod analysis;
pub(crate) mod driver_calls;
pub(crate) mod event_analyses;
pub(crate) mod failed_calls;
pub(crate) mod finish;
pub(crate) mod follow;
pub(crate) mod followed_device;
mod history_begin;
pub(crate) mod oom_events;
pub(crate) mod oom_growth;
pub(crate) mod oom_settings;
pub(crate) mod options;
pub(crate) mod program_end;
pub(crate) mod scope;
pub(crate) mod snapshot_schedule;
pub(crate) mod snapshots;
pub(crate) mod stream_filter;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind, ThreadId, TrackerState};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::module_owner::ModuleOwners;
use crate::callsite::stack_root::StackRoot;
use crate::callsite::symbols::{StackInfo, StackSymbols};
use crate::device::DeviceState;
use crate::device::device_states::{DeviceStates, device_of};
use crate::event_analysis::{AnalysisRow, EventContext, EventTime};
use crate::ingest::{Input, TraceHead, metal_totals, read_event_slices};
use crate::pass::event_analyses::RunningAnalyses;
use crate::pass::snapshot_schedule::{SnapshotRecord, SnapshotSchedule};
use crate::pass::stream_filter::StreamFilter;
use crate::state::driver::{DriverState, MemoryPlace, PlaceTotals};
use crate::state::live_set::LiveSet;
use crate::state::managed_segments::ManagedSegments;
use crate::state::pool_uses::PoolUses;
use crate::timeline::bin_axis::BinAxis;
use crate::timeline::marks::AwaitedMark;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::phase_turns::PhaseTurns;
use crate::timeline::phases::PhaseTracker;
use crate::timeline::prescan::Prescan;
use crate::timeline::steady_steps::SteadySteps;
use crate::timeline::step_coverage::CoverageCounter;
use crate::timeline::step_times::StepTimes;
use crate::timeline::steps::StepClock;
use crate::timeline::time_spec::TimeSpec;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::{SeededMap, SeededSet};
use program_end::{EndChange, EndDetector};
use scope::PassScope;
pub(crate) use scope::SinceScope;

pub(crate) use self::{analysis::Analysis, options::AnalysisOptions};
use failed_calls::RefusedAllocator;
pub(crate) use failed_calls::{FailedCallRecord, RefusedCall};
pub(crate) use oom_events::OomRecord;

/// The state of a pass, from the first event to the last.
struct ReplayPass {
    symbols: StackSymbols,
    clock: StepClock,
    coverage: CoverageCounter,
    names: StepRangeNames,
    phases: PhaseTracker,
    analyses: RunningAnalyses,
    backward: AutogradTracker,
    driver: DriverState,
    devices: DeviceStates,
    counts: [u64; 256],
    threads: SeededSet<ThreadId>,
    last_thread: Option<ThreadId>,
    time_ns: u64,
    first_ns: Option<u64>,
    step: u32,
    ooms: Vec<OomRecord>,
    oom_count: u64,
    oom_counts: BTreeMap<u8, u64>,
    failed_call_gaps: Vec<FailedCallRecord>,
    last_refused_call: Option<RefusedCall>,
    refused_allocator: Option<RefusedAllocator>,
    refused_torch_calls: u64,
    owners: ModuleOwners,
    pool_uses: PoolUses,
    non_device: PlaceTotals,
    host: LiveSet,
    non_device_peaks: SeededMap<MemoryPlace, u64>,
    managed_segments: ManagedSegments,
    tracker: Option<TrackerState>,
    schedule: SnapshotSchedule,
    snapshots: Vec<SnapshotRecord>,
    step_times: StepTimes,
    /// Present if the options ask for it.
    steady_steps: Option<Box<SteadySteps>>,
    phase_turns: Option<Box<PhaseTurns>>,
    scope: PassScope,
    end: EndDetector,
    /// The next event may still describe memory from before the recording.
    awaits_history: bool,
}

/// Analyses a trace with default options.
pub fn analyse(input: Input<'_>) -> Result<Analysis, OpenError> {
    analyse_with(input, AnalysisOptions::default())
}

/// Analyses a trace with the given options. Fails if the trace cannot be opened or is no trace.
pub fn analyse_with(input: Input<'_>, options: AnalysisOptions) -> Result<Analysis, OpenError> {
    analyse_with_head(input, options).map(|(analysis, _)| analysis)
}

/// Like [`analyse_with`], but also returns the head, for callers that read the events once more.
/// The definitions of the head are moved to the analysis.
pub fn analyse_with_head(
    input: Input<'_>,
    options: AnalysisOptions,
) -> Result<(Analysis, TraceHead), OpenError> {
    let (path, open) = (input.path.to_owned(), input.open);
    let (since, stream) = (options.since.clone(), options.stream);
    let mut head = TraceHead::read(input)?;
    let symbols = StackSymbols::new(std::mem::take(&mut head.definitions), options.user_code);
    let names = StepRangeNames::new(symbols.definitions().codes.values());
    let started = head.meta.number("started_ns");
    let span_ns = head.end_ns().zip(started).map_or(0, |(end, start)| end.saturating_sub(start));
    let follows_step_peaks = options.step_before_peak;
    let keeps_history = options.keeps_history && since.is_none();
    let compares_steps = options.compares_steps;
    let scope = || PassScope {
        compares_steps,
        follows_step_peaks,
        keeps_history,
        since: since.clone().map(|spec| SinceScope { spec, reached: None }),
        since_mark: since.as_ref().and_then(|spec| match spec {
            TimeSpec::Mark(name) => Some(AwaitedMark::new(name)),
            _ => None,
        }),
        stream: stream.map(StreamFilter::new),
        started_ns: started,
        end_ns: head.end_ns(),
    };
    let pid = head.meta.number("pid");
    let expected_events = head.expected_events();
    let axis = BinAxis::for_run(span_ns, expected_events);
    let begin_pass = |prescan: Prescan| {
        let start_ns = started.or(prescan.first_ns).unwrap_or(0);
        let schedule = SnapshotSchedule::new(&options.snapshot_times, start_ns, expected_events);
        let end = EndDetector::new(pid);
        ReplayPass::from_prescan(prescan, schedule, axis, (scope(), end), options.more_analyses)
    };
    // Events go to the prescan until it has the step source, and then to the pass.
    let mut prescan = Some(Prescan::new(symbols, names));
    let mut pass: Option<ReplayPass> = None;
    let mut totals = metal_totals::MetalTotals::new(&head.meta);
    let mut body = read_event_slices(open, &head, &mut |events| {
        let mut events = totals.fill_totals(events).iter();
        while let Some(unfinished) = &mut prescan
            && let Some(event) = events.next()
        {
            if unfinished.on_event(event).is_break() {
                if !unfinished.has_all_events() {
                    return ControlFlow::Break(());
                }
                pass = prescan.take().map(begin_pass);
            }
        }
        if let Some(pass) = &mut pass {
            pass.on_slice(events.as_slice());
        }
        ControlFlow::Continue(())
    })?;
    let needs_rereading = prescan.as_ref().is_some_and(|prescan| !prescan.has_all_events());
    let Some(mut pass) = pass.or_else(|| prescan.map(begin_pass)) else {
        unreachable!("the prescan exists until the pass begins")
    };
    if needs_rereading {
        let mut totals = metal_totals::MetalTotals::new(&head.meta);
        body = read_event_slices(open, &head, &mut |events| {
            pass.on_slice(totals.fill_totals(events));
            ControlFlow::Continue(())
        })?;
    }
    let analysis = pass.finish(path, &head, &body);
    Ok((analysis, head))
}

impl ReplayPass {
    /// Begins a pass with the step source of a prescan, and applies the events that it buffered.
    #[inline(never)] // Called in two places; the inlined body is large.
    fn from_prescan(
        mut prescan: Prescan,
        schedule: SnapshotSchedule,
        axis: BinAxis,
        (scope, end): (PassScope, EndDetector),
        more_analyses: &[AnalysisRow],
    ) -> Self {
        let buffered = prescan.take_events();
        let clock = StepClock::new(prescan.choose_step_rule());
        let mut pass = Self {
            scope,
            end,
            ..Self::new(prescan.symbols, (clock, prescan.names), schedule, axis, more_analyses)
        };
        pass.devices.follows_step_peaks = pass.scope.follows_step_peaks;
        pass.devices.keeps_history = pass.scope.keeps_history;
        pass.steady_steps = pass.scope.compares_steps.then(Box::default);
        pass.phase_turns = pass.scope.keeps_history.then(Box::default);
        for events in &buffered {
            pass.on_slice(events);
        }
        pass
    }

    fn new(
        symbols: StackSymbols,
        (clock, names): (StepClock, StepRangeNames),
        schedule: SnapshotSchedule,
        axis: BinAxis,
        more_analyses: &[AnalysisRow],
    ) -> Self {
        Self {
            symbols,
            clock,
            coverage: CoverageCounter::default(),
            names,
            phases: PhaseTracker::default(),
            analyses: RunningAnalyses::start(more_analyses),
            backward: AutogradTracker::default(),
            driver: DriverState::default(),
            devices: DeviceStates {
                all: (0..256).map(|_| None).collect(),
                used: Vec::new(),
                axis,
                first_step: 0,
                follows_step_peaks: false,
                keeps_history: false,
            },
            counts: [0; 256],
            threads: SeededSet::default(),
            last_thread: None,
            time_ns: 0,
            first_ns: None,
            step: 0,
            ooms: Vec::new(),
            oom_count: 0,
            oom_counts: BTreeMap::new(),
            failed_call_gaps: Vec::new(),
            last_refused_call: None,
            refused_allocator: None,
            refused_torch_calls: 0,
            owners: ModuleOwners::default(),
            pool_uses: PoolUses::default(),
            non_device: PlaceTotals::default(),
            host: LiveSet::at_step(0, axis),
            non_device_peaks: SeededMap::default(),
            managed_segments: ManagedSegments::default(),
            tracker: None,
            schedule,
            snapshots: Vec::new(),
            step_times: StepTimes::default(),
            steady_steps: None,
            phase_turns: None,
            scope: PassScope::default(),
            end: EndDetector::new(None),
            awaits_history: true,
        }
    }

    /// Applies a slice of consecutive events, and takes the snapshots that are due in it.
    fn on_slice(&mut self, events: &[Event]) {
        if self.awaits_history {
            return self.on_first_slice(events);
        }
        if self.schedule.is_idle_during(events) {
            self.on_slice_in_scope(events);
        } else {
            self.on_slice_with_snapshots(events);
        }
    }

    /// Applies the events of the slice that are in the scope of the pass.
    fn on_slice_in_scope(&mut self, events: &[Event]) {
        if !self.awaits_history {
            self.schedule.gaps.count_events(events.len());
        }
        if self.scope.is_whole_run() {
            self.on_events(events);
        } else {
            self.on_scoped_slice(events);
        }
    }

    #[inline(never)] // One copy of the loop: `on_event` is inlined into it and large.
    fn on_events(&mut self, events: &[Event]) {
        for event in events {
            self.on_event(event);
        }
    }

    /// The time of the current event.
    fn now(&self) -> EventTime {
        EventTime { time_ns: self.time_ns, step: self.step }
    }

    /// Counts an event, also one outside the scope: its kind, thread, time and step. Returns its
    /// stack.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Part of the loop in `on_events`.
    fn account(&mut self, event: &Event) -> (StackId, StackInfo) {
        self.counts[event.kind.0 as usize] += 1;
        if self.last_thread != Some(event.thread) {
            self.last_thread = Some(event.thread);
            self.threads.insert(event.thread);
            self.end.on_thread(event.thread);
        }
        let (stack, info) = self.backward.resolve_stack(event, &mut self.symbols);
        if !self.end.ignores(info.root) {
            self.observe_end(event, info.root);
        }
        // Each thread reads the clock itself, so times are slightly out of order.
        self.time_ns = self.time_ns.max(event.time_ns);
        self.first_ns.get_or_insert(event.time_ns);
        let hint = self.names.step_hint(event, info.step_hint);
        if self.clock.begins_step(event, stack, hint) {
            self.begin_step(event.kind);
        }
        (stack, info)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // The body of the loop in `on_events`.
    fn on_event(&mut self, event: &Event) {
        let (stack, info) = self.account(event);
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                self.coverage.add_block(event.size);
                let time = self.now();
                let device = device_of(&mut self.devices, event.device, self.step);
                device.block_alloc(event, info.origin(stack), time, &self.driver);
                self.phases.on_live_bytes(event.device, device.torch.total().bytes);
                if let Some(steps) = &mut self.steady_steps {
                    steps.on_alloc(event);
                }
            }
            EventKind::BLOCK_FREE => {
                let time = self.now();
                let device = device_of(&mut self.devices, event.device, self.step);
                let age_events = device.block_free(event, info.origin(stack), time, &self.driver);
                if let Some(steps) = &mut self.steady_steps {
                    steps.on_free(event, age_events);
                }
            }
            _ => self.on_rare_event(event, stack, info.site),
        }
    }

    /// Sets or withdraws the end of the program at the present moment.
    #[inline(never)] // Few events change it.
    fn observe_end(&mut self, event: &Event, root: StackRoot) {
        let before = self.now();
        match self.end.on_event(event, root, before) {
            Some(EndChange::Set) => self.set_end(before),
            Some(EndChange::Withdrawn) => {
                self.devices.change_all(DeviceState::withdraw_end);
                self.host.withdraw_end();
            }
            None => {}
        }
    }

    fn set_end(&mut self, time: EventTime) {
        let driver = &self.driver;
        self.devices.change_all(|device| device.set_end(time, driver));
        self.host.set_end();
    }

    #[inline(never)] // Inlined, it would take registers from the loop in `on_events`.
    fn begin_step(&mut self, first: EventKind) {
        let (time_ns, driver) = (self.time_ns, &self.driver);
        self.devices.change_all(|device| device.end_step(time_ns, driver));
        self.host.end_step();
        self.step += 1;
        self.step_times.begin_step(self.time_ns);
        if let Some(steps) = &mut self.steady_steps {
            steps.begin_step(self.step);
        }
        self.coverage.begin_step(&self.counts, first);
        let due = self.schedule.take_due_at_step(self.step);
        self.take_snapshots(&due);
        self.on_step_begin();
    }

    #[inline(never)] // Inlined, it would take registers from the loop in `on_events`.
    fn on_rare_event(&mut self, event: &Event, stack: StackId, site: SiteId) {
        if let Some(steps) = &mut self.steady_steps {
            steps.on_other_event(event);
        }
        match event.kind {
            EventKind::PHASE_BEGIN | EventKind::PHASE_END => {
                self.phase_turns.iter_mut().for_each(|turns| turns.on_phase_event(event, self.time_ns));
                let live = self.devices.torch_live_bytes();
                self.phases.on_phase_event(event, self.time_ns, self.symbols.definitions(), live);
            }
            EventKind::MARK => self.on_mark(event),
            EventKind::BLOCK_OOM => self.on_oom(event, stack),
            EventKind::BLOCK_FREE_COMPLETED
            | EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => {
                let time = self.now();
                self.managed_segments.on_segment_event(event, &self.driver);
                let device = device_of(&mut self.devices, event.device, self.step);
                device.on_tracker_event(event, stack, time);
            }
            EventKind::TRACKER => self.tracker = TrackerState::from_number(event.aux[0]).or(self.tracker),
            EventKind::MEMORY_SAMPLE => self.on_memory_sample(event),
            kind if kind.is_driver_call() => self.on_driver_call(event, stack, site),
            _ => {}
        }
        let definitions = self.symbols.definitions();
        let context =
            EventContext { time_ns: self.time_ns, step: self.step, definitions, live: &self.devices };
        self.analyses.on_event(event, &context);
    }
}
