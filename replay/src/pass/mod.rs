//! One pass over the events of a trace, and what it leaves for the reports.
//!
//! Constraint: memory in proportion to live blocks and stacks. Consequence: each event updates the books of its device and
//! is forgotten; only out-of-memory events are kept, the first [`oom_events::MAX_OOMS`] of them.

pub(crate) mod analysis;
pub(crate) mod driver_calls;
pub(crate) mod event_analyses;
pub(crate) mod finish;
pub(crate) mod follow;
pub(crate) mod oom_events;
pub(crate) mod options;
pub(crate) mod scope;
pub(crate) mod snapshot_schedule;
pub(crate) mod snapshots;
pub(crate) mod stream_filter;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind, NO_DEVICE, ThreadId, TrackerState};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::module_owner::ModuleOwners;
use crate::callsite::symbols::{SiteId, StackId, StackInfo, StackSymbols};
use crate::event_analysis::{AnalysisRow, EventContext};
use crate::ingest::metal_totals;
use crate::ingest::prescan::Prescan;
use crate::ingest::{Input, TraceHead, read_together};
use crate::pass::event_analyses::RunningAnalyses;
use crate::pass::snapshot_schedule::{SnapshotRecord, SnapshotSchedule};
use crate::pass::stream_filter::StreamFilter;
use crate::state::device_states::{DeviceStates, device_of};
use crate::state::driver::{DriverState, MemoryPlace, PlaceTotals};
use crate::state::live_set::LiveSet;
use crate::timeline::marks::AwaitedMark;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::phases::PhaseTracker;
use crate::timeline::steps::StepClock;
use crate::timeline::time_spec::TimeSpec;
use crate::util::seeded_map::{SeededMap, SeededSet};
use scope::PassScope;
pub(crate) use scope::SinceScope;

pub(crate) use self::{analysis::Analysis, options::AnalysisOptions};
pub(crate) use oom_events::OomRecord;

struct ReplayPass {
    symbols: StackSymbols,
    clock: StepClock,
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
    owners: ModuleOwners,
    non_device: PlaceTotals,
    host: LiveSet,
    non_device_peaks: SeededMap<MemoryPlace, u64>,
    tracker: Option<TrackerState>,
    schedule: SnapshotSchedule,
    snapshots: Vec<SnapshotRecord>,
    scope: PassScope,
}

/// Analyses a trace.
pub fn analyse(input: Input<'_>) -> Result<Analysis, OpenError> {
    analyse_with(input, AnalysisOptions::default())
}

/// Analyses a trace for whom wants to know this.
pub fn analyse_with(input: Input<'_>, asked: AnalysisOptions) -> Result<Analysis, OpenError> {
    analyse_with_head(input, asked).map(|(analysis, _)| analysis)
}

/// As [`analyse_with`], for whom reads the events once more: what that takes comes along, without definitions.
pub(crate) fn analyse_with_head(
    input: Input<'_>,
    asked: AnalysisOptions,
) -> Result<(Analysis, TraceHead), OpenError> {
    let (path, open) = (input.path.to_owned(), input.open);
    let (since, stream) = (asked.since.clone(), asked.stream);
    let mut head = TraceHead::read(input)?;
    let symbols = StackSymbols::new(std::mem::take(&mut head.definitions), asked.own);
    let names = StepRangeNames::new(symbols.definitions().codes.values());
    let started = head.meta.number("started_ns");
    let span_ns = head.end_ns().zip(started).map_or(0, |(end, start)| end.saturating_sub(start));
    let step_before = asked.step_before;
    let scope = || PassScope {
        follows_step_peaks: step_before,
        since: since.clone().map(|asked| SinceScope { asked, come: None }),
        since_mark: since.as_ref().and_then(|asked| match asked {
            TimeSpec::Mark(name) => Some(AwaitedMark::new(name)),
            _ => None,
        }),
        stream: stream.map(StreamFilter::new),
        started_ns: started,
        end_ns: head.end_ns(),
    };
    let mut ahead = Some(Prescan::new(symbols, names, head.end_ns()));
    let schedule =
        |ahead: &Prescan| SnapshotSchedule::new(&asked.at, started.or(ahead.first_ns).unwrap_or(0), span_ns);
    let mut pass: Option<ReplayPass> = None;
    let mut totals = metal_totals::MetalTotals::of(&head.meta);
    let mut body = read_together(open, &head, &mut |events| {
        let mut events = totals.with_totals(events).iter();
        while let Some(prescan) = &mut ahead
            && let Some(event) = events.next()
        {
            if prescan.event(event).is_break() {
                if !prescan.has_all() {
                    return ControlFlow::Break(());
                }
                pass = ahead.take().map(|ahead| {
                    let schedule = schedule(&ahead);
                    ReplayPass::from_prescan(ahead, schedule, span_ns, scope(), asked.more_analyses)
                });
            }
        }
        if let Some(pass) = &mut pass {
            pass.on_batch(events.as_slice());
        }
        ControlFlow::Continue(())
    })?;
    let is_whole = ahead.as_ref().is_none_or(Prescan::has_all);
    let after = |ahead: Prescan| {
        let schedule = schedule(&ahead);
        ReplayPass::from_prescan(ahead, schedule, span_ns, scope(), asked.more_analyses)
    };
    let Some(mut pass) = pass.or_else(|| ahead.map(after)) else {
        unreachable!("the scout is there until the pass is")
    };
    if !is_whole {
        let mut totals = metal_totals::MetalTotals::of(&head.meta);
        body = read_together(open, &head, &mut |events| {
            pass.on_batch(totals.with_totals(events));
            ControlFlow::Continue(())
        })?;
    }
    let analysis = pass.finish(path, &head, &body);
    Ok((analysis, head))
}

impl ReplayPass {
    /// Begins with what the scout has kept: everything that it has seen, or nothing.
    #[inline(never)] // As below.
    fn from_prescan(
        mut ahead: Prescan,
        schedule: SnapshotSchedule,
        span_ns: u64,
        scope: PassScope,
        more_analyses: &[AnalysisRow],
    ) -> Self {
        let kept = ahead.take_kept();
        let clock = StepClock::new(ahead.detector.step_rule());
        let mut pass = Self {
            scope,
            ..Self::new(ahead.symbols, (clock, ahead.names), schedule, span_ns, more_analyses)
        };
        pass.devices.follows_step_peaks = pass.scope.follows_step_peaks;
        for events in &kept {
            pass.on_batch(events);
        }
        pass
    }

    fn new(
        symbols: StackSymbols,
        (clock, names): (StepClock, StepRangeNames),
        schedule: SnapshotSchedule,
        span_ns: u64,
        more_analyses: &[AnalysisRow],
    ) -> Self {
        Self {
            symbols,
            clock,
            names,
            phases: PhaseTracker::default(),
            analyses: RunningAnalyses::start(more_analyses),
            backward: AutogradTracker::default(),
            driver: DriverState::default(),
            devices: DeviceStates {
                all: (0..256).map(|_| None).collect(),
                span_ns,
                first_step: 0,
                follows_step_peaks: false,
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
            owners: ModuleOwners::default(),
            non_device: PlaceTotals::default(),
            host: LiveSet::at_step(0, span_ns),
            non_device_peaks: SeededMap::default(),
            tracker: None,
            schedule,
            snapshots: Vec::new(),
            scope: PassScope::default(),
        }
    }

    fn on_batch(&mut self, events: &[Event]) {
        // Nearly in order of time: a slice that ends before an alarm has nothing for it that matters.
        if events.last().is_some_and(|event| event.time_ns > self.schedule.next_ns()) {
            self.on_slice_with_snapshots(events);
        } else {
            self.on_slice(events);
        }
    }

    fn on_slice(&mut self, events: &[Event]) {
        if self.scope.is_all() {
            self.on_events(events);
        } else {
            self.on_scoped_slice(events);
        }
    }

    #[inline(never)] // Once: it is much.
    fn on_events(&mut self, events: &[Event]) {
        for event in events {
            self.on_event(event);
        }
    }

    /// What every event is counted for, whosever it is: steps too. Its stack.
    #[inline(always)]
    #[allow(clippy::inline_always)] // As below.
    fn account(&mut self, event: &Event) -> (StackId, StackInfo) {
        self.counts[event.kind.0 as usize] += 1;
        if self.last_thread != Some(event.thread) {
            self.last_thread = Some(event.thread);
            self.threads.insert(event.thread);
        }
        // Threads stamp times themselves: a little disorder is normal and must not run a chart backwards.
        self.time_ns = self.time_ns.max(event.time_ns);
        self.first_ns.get_or_insert(event.time_ns);
        let (stack, facts) = self.backward.stack_of(event, &mut self.symbols);
        let what = self.names.or_optimizer(event, facts.optimizer);
        let begun = self.clock.begins(event, stack, what, self.time_ns);
        if begun > 0 {
            self.begin_steps(begun);
        }
        (stack, facts)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // For the loop above.
    fn on_event(&mut self, event: &Event) {
        let (stack, facts) = self.account(event);
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                let when = (self.time_ns, self.step);
                let device = device_of(&mut self.devices, event.device, self.step);
                device.block_alloc(event, (stack, facts.site), when, &self.driver);
                self.phases.held(event.device, device.torch.total().bytes);
            }
            EventKind::BLOCK_FREE => {
                let when = (self.time_ns, self.step);
                let device = device_of(&mut self.devices, event.device, self.step);
                device.block_free(event, (stack, facts.site), when, &self.driver);
            }
            _ => self.on_rare_event(event, stack, facts.site),
        }
    }

    #[inline(never)] // What is here would make the rest wait: it takes most of the registers.
    fn begin_steps(&mut self, begun: u32) {
        for _ in 0..begun {
            for device in self.devices.all.iter_mut().flatten() {
                device.step_boundary();
            }
            self.host.step_boundary();
            self.step += 1;
            let come = self.schedule.at_step(self.step);
            self.take_snapshots(&come);
        }
        self.on_step_begin();
    }

    #[inline(never)] // As above.
    fn on_rare_event(&mut self, event: &Event, stack: StackId, site: SiteId) {
        match event.kind {
            EventKind::PHASE_BEGIN | EventKind::PHASE_END => {
                let held = self.devices.held();
                self.phases.event(event, self.time_ns, self.symbols.definitions(), held);
            }
            EventKind::MARK => self.on_mark(event),
            EventKind::BLOCK_OOM => self.on_oom(event, stack),
            EventKind::BLOCK_FREE_COMPLETED
            | EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => {
                let when = (self.time_ns, self.step);
                device_of(&mut self.devices, event.device, self.step).tracked(event, stack, when);
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

    fn on_memory_sample(&mut self, event: &Event) {
        if event.result == 0 && !event.in_flight && event.device != NO_DEVICE {
            let device = device_of(&mut self.devices, event.device, self.step);
            device.attribution.sample(event, self.time_ns);
        }
    }
}
