//! The two stages of a reading: the prescan until it knows the step rule, then the pass.

use std::ops::ControlFlow;

use gpumemtrace_format::Event;

use super::accounts::Accounts;
use super::clock::RunClock;
use super::event_analyses::RunningAnalyses;
use super::program_end::EndDetector;
use super::records::Records;
use super::scope::PassScope;
use super::snapshot_schedule::SnapshotSchedule;
use super::{AnalysisOptions, ReplayPass};
use crate::callsite::autograd::AutogradTracker;
use crate::ingest::TraceHead;
use crate::timeline::bin_axis::BinAxis;
use crate::timeline::prescan::{Prescan, PrescanResult};

/// What a pass needs besides the result of the prescan.
pub(super) struct PassSetup {
    pub(super) options: AnalysisOptions,
    /// Start of recording, if known.
    pub(super) started_ns: Option<u64>,
    /// End of recording, if known.
    pub(super) end_ns: Option<u64>,
    pid: Option<u64>,
    /// Number of events; 0 if unknown.
    expected_events: u64,
    pub(super) axis: BinAxis,
}

impl PassSetup {
    pub(super) fn new(head: &TraceHead, options: AnalysisOptions) -> Self {
        let (started_ns, end_ns) = (head.meta.number("started_ns"), head.end_ns());
        let span_ns = end_ns.zip(started_ns).map_or(0, |(end, start)| end.saturating_sub(start));
        let expected_events = head.expected_events();
        Self {
            options,
            started_ns,
            end_ns,
            pid: head.meta.number("pid"),
            expected_events,
            axis: BinAxis::for_run(span_ns, expected_events),
        }
    }

    /// True if the pass keeps what viewers show.
    pub(super) fn keeps_history(&self) -> bool {
        self.options.keeps_history && self.options.since.is_none()
    }

    /// Begins a pass with the step rule of a prescan, and applies the events that it buffered.
    #[inline(never)] // Called in two places; the inlined body is large.
    fn begin_pass(&self, prescan: &mut Prescan) -> Box<ReplayPass> {
        let PrescanResult { symbols, names, step_rule, first_ns, buffered } = prescan.take_result();
        let start_ns = self.started_ns.or(first_ns).unwrap_or(0);
        let schedule = SnapshotSchedule::new(&self.options.snapshot_times, start_ns, self.expected_events);
        let mut pass = Box::new(ReplayPass {
            symbols,
            backward: AutogradTracker::default(),
            clock: RunClock::new(step_rule, names, self),
            accounts: Accounts::new(self),
            records: Records::new(schedule),
            analyses: RunningAnalyses::start(self.options.more_analyses),
            steady_steps: self.options.compares_steps.then(Box::default),
            scope: PassScope::new(self),
            end: EndDetector::new(self.pid),
            awaits_history: true,
        });
        for events in &buffered {
            pass.on_slice(events);
        }
        pass
    }
}

/// The stage of a reading.
pub(super) enum Stage {
    Prescan(Box<Prescan>),
    Pass(Box<ReplayPass>),
}

impl Stage {
    /// Passes a slice to the present stage. Breaks when the prescan ends after more events than it
    /// buffers: the pass must then read the trace from its start.
    pub(super) fn on_slice(&mut self, events: &[Event], setup: &PassSetup) -> ControlFlow<()> {
        let mut rest = events.iter();
        if let Self::Prescan(prescan) = self {
            if !rest.any(|event| prescan.on_event(event).is_break()) {
                return ControlFlow::Continue(());
            }
            if !prescan.has_all_events() {
                return ControlFlow::Break(());
            }
            *self = Self::Pass(setup.begin_pass(prescan));
        }
        if let Self::Pass(pass) = self {
            pass.on_slice(rest.as_slice());
        }
        ControlFlow::Continue(())
    }

    /// The pass, and true if it has no events yet and must read the trace from its start.
    pub(super) fn into_pass(self, setup: &PassSetup) -> (Box<ReplayPass>, bool) {
        match self {
            Self::Prescan(mut prescan) => (setup.begin_pass(&mut prescan), !prescan.has_all_events()),
            Self::Pass(pass) => (pass, false),
        }
    }
}
