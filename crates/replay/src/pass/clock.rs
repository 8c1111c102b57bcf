//! The clock of a pass: time, steps and phases, and how many events of each kind there were.

use gpumemtrace_format::{Event, EventKind, ThreadId};

use super::stage::PassSetup;
use crate::callsite::symbols::StackInfo;
use crate::event_analysis::EventTime;
use crate::ingest::definitions::Definitions;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::phase_turns::PhaseTurns;
use crate::timeline::phases::PhaseTracker;
use crate::timeline::step_coverage::CoverageCounter;
use crate::timeline::step_times::StepTimes;
use crate::timeline::steps::{StepClock, StepRule};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededSet;

/// Where in the run the pass is.
pub(super) struct RunClock {
    /// The time of the present event, and the number of steps begun.
    pub(super) now: EventTime,
    /// The time of the first event.
    pub(super) first_ns: Option<u64>,
    steps: StepClock,
    pub(super) names: StepRangeNames,
    pub(super) coverage: CoverageCounter,
    pub(super) step_times: StepTimes,
    pub(super) phases: PhaseTracker,
    /// Present if the options ask for a history.
    pub(super) phase_turns: Option<Box<PhaseTurns>>,
    /// Number of events by kind.
    pub(super) counts: [u64; 256],
    pub(super) threads: SeededSet<ThreadId>,
    last_thread: Option<ThreadId>,
}

impl RunClock {
    pub(super) fn new(step_rule: StepRule, names: StepRangeNames, setup: &PassSetup) -> Self {
        Self {
            now: EventTime::default(),
            first_ns: None,
            steps: StepClock::new(step_rule),
            names,
            coverage: CoverageCounter::default(),
            step_times: StepTimes::default(),
            phases: PhaseTracker::default(),
            phase_turns: setup.keeps_history().then(Box::default),
            counts: [0; 256],
            threads: SeededSet::default(),
            last_thread: None,
        }
    }

    /// Counts an event. Returns true if it is from another thread than the one before it.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Part of the loop in `ReplayPass::on_events`.
    pub(super) fn count_event(&mut self, event: &Event) -> bool {
        self.counts[event.kind.0 as usize] += 1;
        if self.last_thread == Some(event.thread) {
            return false;
        }
        self.last_thread = Some(event.thread);
        self.threads.insert(event.thread);
        true
    }

    /// Advances the time to an event. Returns true if a step begins immediately before it.
    #[inline(always)]
    #[allow(clippy::inline_always)] // Part of the loop in `ReplayPass::on_events`.
    pub(super) fn advance(&mut self, event: &Event, stack: StackId, info: &StackInfo) -> bool {
        // Each thread reads the clock itself, so times are slightly out of order.
        self.now.time_ns = self.now.time_ns.max(event.time_ns);
        self.first_ns.get_or_insert(event.time_ns);
        let hint = self.names.step_hint(event, info.step_hint);
        self.steps.begins_step(event, stack, hint)
    }

    /// Begins a step immediately before an event of kind `first`, which is counted already.
    pub(super) fn begin_step(&mut self, first: EventKind) {
        self.now.step += 1;
        self.step_times.begin_step(self.now.time_ns);
        self.coverage.begin_step(&self.counts, first);
    }

    /// Begins or ends a phase. `live` are the live bytes of each device.
    pub(super) fn on_phase_event(
        &mut self,
        event: &Event,
        definitions: &Definitions,
        live: impl Iterator<Item = (u8, u64)>,
    ) {
        if let Some(turns) = &mut self.phase_turns {
            turns.on_phase_event(event, self.now.time_ns);
        }
        self.phases.on_phase_event(event, self.now.time_ns, definitions, live);
    }

    /// Number of events so far.
    pub(super) fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Number of events of each kind that occurred.
    pub(super) fn counts_by_kind(&self) -> Vec<(EventKind, u64)> {
        let kinds = (0..=u8::MAX).map(EventKind).zip(self.counts);
        kinds.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn step_rule(&self) -> StepRule {
        self.steps.step_rule()
    }

    /// False if steps are intervals of a run without a sign of steps.
    pub(super) fn has_steps(&self) -> bool {
        self.step_rule().source().is_some()
    }

    /// The name of the NVTX ranges that are steps, for that step rule.
    pub(super) fn step_range(&self) -> Option<String> {
        match self.step_rule() {
            StepRule::Range(name) => self.names.name(name).map(str::to_owned),
            _ => None,
        }
    }
}
