//! The pass over the events of a trace.
//!
//! [`analyse`] reads a trace and returns an [`Analysis`]. Each event updates the state of its
//! device and is dropped; only the first [`oom_events::MAX_OOMS`] out-of-memory events are stored.
//! Memory is therefore proportional to live blocks and distinct stacks, not to events. `on_event`
//! is the hot loop; `tests/benches/million.rs` measures it and `crates/replay/tests/exactness.rs`
//! checks its results.

mod accounts;
pub(crate) mod analysis;
mod clock;
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
mod records;
pub(crate) mod scope;
pub(crate) mod snapshot_schedule;
pub(crate) mod snapshots;
mod stage;
pub(crate) mod stream_filter;

use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind, TrackerState};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::stack_root::StackRoot;
use crate::callsite::symbols::{StackInfo, StackSite, StackSymbols};
use crate::device::device_states::device_of;
use crate::event_analysis::EventContext;
use crate::ingest::metal_totals::MetalTotals;
use crate::ingest::{Input, TraceHead, read_event_slices};
use crate::state::async_pools::AsyncPools;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::prescan::Prescan;
use crate::timeline::steady_steps::SteadySteps;
use crate::util::ids::StackId;
use accounts::Accounts;
use clock::RunClock;
use driver_calls::DriverCall;
use event_analyses::RunningAnalyses;
use program_end::{EndChange, EndDetector};
use records::{PresentState, Records};
use scope::PassScope;
use stage::{PassSetup, Stage};

pub(crate) use self::{analysis::Analysis, options::AnalysisOptions};
pub(crate) use failed_calls::FailedCallRecord;
pub(crate) use oom_events::OomRecord;

/// The state of a pass, from the first event to the last.
///
/// Only this file, [`scope`], [`history_begin`], [`snapshots`] and [`finish`] see all of it; they
/// pass events and moments on to the parts. All other files know one part.
struct ReplayPass {
    symbols: StackSymbols,
    backward: AutogradTracker,
    clock: RunClock,
    accounts: Accounts,
    records: Records,
    /// The analyses of rare events.
    analyses: RunningAnalyses,
    /// Present if the options ask for it.
    steady_steps: Option<Box<SteadySteps>>,
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
    mut options: AnalysisOptions,
) -> Result<(Analysis, TraceHead), OpenError> {
    let (path, open) = (input.path.to_owned(), input.open);
    let mut head = TraceHead::read(input)?;
    let (definitions, user_code) = (&mut head.definitions, &mut options.user_code);
    let symbols = StackSymbols::new(std::mem::take(definitions), std::mem::take(user_code));
    let names = StepRangeNames::new(symbols.definitions().codes.values());
    let setup = PassSetup::new(&head, options);
    let mut stage = Stage::Prescan(Box::new(Prescan::new(symbols, names)));
    let mut totals = MetalTotals::new(&head.meta);
    let mut body =
        read_event_slices(open, &head, &mut |events| stage.on_slice(totals.fill_totals(events), &setup))?;
    let (mut pass, needs_rereading) = stage.into_pass(&setup);
    if needs_rereading {
        let mut totals = MetalTotals::new(&head.meta);
        body = read_event_slices(open, &head, &mut |events| {
            pass.on_slice(totals.fill_totals(events));
            ControlFlow::Continue(())
        })?;
    }
    let analysis = pass.finish(path, &head, &body);
    Ok((analysis, head))
}

impl ReplayPass {
    /// Applies a slice of consecutive events, and takes the snapshots that are due in it.
    fn on_slice(&mut self, events: &[Event]) {
        if self.awaits_history {
            return self.on_first_slice(events);
        }
        if self.records.snapshots.schedule.is_idle_during(events) {
            self.on_slice_in_scope(events);
        } else {
            self.on_slice_with_snapshots(events);
        }
    }

    /// Applies the events of the slice that are in the scope of the pass.
    fn on_slice_in_scope(&mut self, events: &[Event]) {
        if !self.awaits_history {
            self.records.snapshots.schedule.gaps.count_events(events.len());
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

    /// The records, and the state of the run that they are made from.
    fn split_records(&mut self) -> (&mut Records, PresentState<'_>) {
        let present = PresentState {
            accounts: &mut self.accounts,
            symbols: &self.symbols,
            now: self.clock.now,
            has_steps: self.clock.has_steps(),
        };
        (&mut self.records, present)
    }

    /// Counts an event, also one outside the scope: its kind, thread, time and step. Returns its
    /// stack.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Part of the loop in `on_events`.
    fn account(&mut self, event: &Event) -> (StackId, StackInfo) {
        if self.clock.count_event(event) {
            self.end.on_thread(event.thread);
        }
        let (stack, info) = self.backward.resolve_stack(event, &mut self.symbols);
        if !self.end.ignores(info.root) {
            self.observe_end(event, info.root);
        }
        if self.clock.advance(event, stack, &info) {
            self.begin_step(event.kind);
        }
        (stack, info)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // The body of the loop in `on_events`.
    fn on_event(&mut self, event: &Event) {
        let (stack, info) = self.account(event);
        let time = self.clock.now;
        let Accounts { devices, driver, .. } = &mut self.accounts;
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                self.clock.coverage.add_block(event.size);
                let device = device_of(devices, event.device, time.step);
                device.block_alloc(event, info.origin(stack), time, driver);
                self.clock.phases.on_live_bytes(event.device, device.torch.total().bytes);
                if let Some(steps) = &mut self.steady_steps {
                    steps.on_alloc(event);
                }
            }
            EventKind::BLOCK_FREE => {
                let device = device_of(devices, event.device, time.step);
                let age_events = device.block_free(event, info.origin(stack), time, driver);
                if let Some(steps) = &mut self.steady_steps {
                    steps.on_free(event, age_events);
                }
            }
            _ => self.on_rare_event(event, info.origin(stack)),
        }
    }

    /// Sets or withdraws the end of the program at the present moment.
    #[inline(never)] // Few events change it.
    fn observe_end(&mut self, event: &Event, root: StackRoot) {
        let before = self.clock.now;
        match self.end.on_event(event, root, before) {
            Some(EndChange::Set) => self.accounts.set_end(before),
            Some(EndChange::Withdrawn) => self.accounts.withdraw_end(),
            None => {}
        }
    }

    #[inline(never)] // Inlined, it would take registers from the loop in `on_events`.
    fn begin_step(&mut self, first: EventKind) {
        self.accounts.end_step(self.clock.now.time_ns);
        self.clock.begin_step(first);
        let step = self.clock.now.step;
        if let Some(steps) = &mut self.steady_steps {
            steps.begin_step(step);
        }
        let (Records { snapshots, .. }, mut present) = self.split_records();
        let due = snapshots.schedule.take_due_at_step(step);
        snapshots.take(&due, &mut present);
        self.on_step_begin();
    }

    #[inline(never)] // Inlined, it would take registers from the loop in `on_events`.
    fn on_rare_event(&mut self, event: &Event, origin: StackSite) {
        if let Some(steps) = &mut self.steady_steps {
            steps.on_other_event(event);
        }
        let now = self.clock.now;
        match event.kind {
            EventKind::PHASE_BEGIN | EventKind::PHASE_END => {
                let live = self.accounts.devices.torch_live_bytes();
                self.clock.on_phase_event(event, self.symbols.definitions(), live);
            }
            EventKind::MARK => self.on_mark(event),
            EventKind::BLOCK_OOM => {
                let (records, mut present) = self.split_records();
                records.ooms.on_oom(event, origin.stack, &mut present);
            }
            EventKind::BLOCK_FREE_COMPLETED
            | EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_UNMAP => self.accounts.on_tracker_event(event, origin.stack, now),
            EventKind::TRACKER => {
                let state = TrackerState::from_number(event.aux[0]);
                self.accounts.tracker = state.or(self.accounts.tracker);
            }
            EventKind::MEMORY_SAMPLE => {
                let pools = self.analyses.find::<AsyncPools>();
                let pooled_bytes = pools.map_or(0, |pools| pools.kept_bytes(event.device));
                self.accounts.on_memory_sample(event, pooled_bytes, now);
            }
            kind if kind.is_driver_call() => self.on_driver_call(event, origin),
            _ => {}
        }
        let definitions = self.symbols.definitions();
        let live = &self.accounts.devices;
        self.analyses
            .on_event(event, &EventContext { time_ns: now.time_ns, step: now.step, definitions, live });
    }

    #[inline(never)] // Few events are driver calls.
    fn on_driver_call(&mut self, event: &Event, caller: StackSite) {
        self.accounts.driver.on_driver_call(event, caller.stack);
        self.clock.coverage.add_driver_call(event.kind, event.size);
        let (records, mut present) = self.split_records();
        records.on_driver_call(event, caller.stack, &mut present);
        let PresentState { accounts, symbols, now, .. } = present;
        accounts.apply_driver_call(DriverCall { event, caller, now, symbols });
    }
}
