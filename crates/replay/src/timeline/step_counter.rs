//! Counts the steps of a running program (`replay --follow`).
//!
//! The step source is known only after several steps, and the frames that identify an optimizer may
//! be defined at any time. [`StepCounter`] therefore buffers the first [`MAX_BUFFERED_EVENTS`]
//! events and repeats the detection for each call of [`StepCounter::count_steps`]. Once the
//! detector is sure, or the buffer is full, the step source is final and events are only counted.

use gpumemtrace_format::Event;

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::symbols::StackSymbols;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::step_detector::{ResolvedEvent, StepDetector};
use crate::timeline::step_growth::StepGrowth;
use crate::timeline::steps::StepClock;
use crate::util::ids::StackId;

/// Limit of buffered events.
const MAX_BUFFERED_EVENTS: usize = 256 << 10;

/// Detects the step source and counts steps.
#[derive(Debug, Default)]
pub(crate) struct StepCounter {
    names: StepRangeNames,
    buffered: Vec<Event>,
    /// The final step source and the steps begun.
    clock: Option<(StepClock, u32)>,
    /// The buffer was full and the run has no steps.
    has_no_steps: bool,
    /// Up to the last event, or up to the last count of steps while the step source is not final.
    growth: StepGrowth,
    /// The number of buffered events at the last count, and the steps then.
    last_count: (usize, Option<u32>),
}

impl StepCounter {
    /// Updates the range names after new definitions.
    pub(crate) fn update_names(&mut self, symbols: &StackSymbols) {
        let codes = symbols.definitions().codes.values();
        if self.clock.is_some() {
            codes.for_each(|code| self.names.add_id(code));
        } else {
            self.names = StepRangeNames::new(codes);
        }
    }

    /// Observes the next event.
    pub(crate) fn on_event(&mut self, event: &Event, stack: StackId, symbols: &mut StackSymbols) {
        if let Some((clock, steps)) = &mut self.clock {
            let hint = self.names.step_hint(event, symbols.stack_info(stack).step_hint);
            let begins_step = clock.begins_step(event, stack, hint);
            *steps += u32::from(begins_step);
            self.growth.on_event(event, begins_step);
        } else if !self.has_no_steps {
            self.buffered.push(*event);
            if self.buffered.len() >= MAX_BUFFERED_EVENTS {
                self.detect_steps(symbols, true);
            }
        }
    }

    /// Growth of allocated bytes per step, as of the last count of steps.
    pub(crate) fn growth_of(&self, device: u8) -> Option<f64> {
        self.growth.growth_of(device)
    }

    /// Number of steps begun; `None` while no step source is known.
    pub(crate) fn count_steps(&mut self, symbols: &mut StackSymbols) -> Option<u32> {
        if self.clock.is_none() && !self.has_no_steps {
            if self.last_count.0 != self.buffered.len() {
                let buffered = self.buffered.len();
                self.last_count = (buffered, self.detect_steps(symbols, false));
            }
            return self.last_count.1;
        }
        self.clock.as_ref().map(|(_, steps)| *steps)
    }

    /// Detects and counts the steps of the buffered events. The result is final if `is_final` or if
    /// the detector is sure.
    fn detect_steps(&mut self, symbols: &mut StackSymbols, is_final: bool) -> Option<u32> {
        symbols.set_step_hints(None, (0, Vec::new()));
        let mut detector = StepDetector::new(symbols);
        let mut autograd = AutogradTracker::default();
        let mut stacks = Vec::with_capacity(self.buffered.len());
        let mut is_sure = is_final;
        for event in &self.buffered {
            let (stack, info) = autograd.resolve_stack(event, symbols);
            let hint = self.names.step_hint(event, info.step_hint);
            stacks.push(stack);
            let resolved = ResolvedEvent { event, stack, info, hint };
            is_sure |= detector.on_event(resolved, symbols).is_break();
        }
        let rule = detector.step_rule(symbols);
        if rule.source().is_none() {
            self.has_no_steps = is_final;
            if is_final {
                self.buffered = Vec::new();
            }
            return None;
        }
        symbols.set_step_hints(rule.recurring_stacks(), detector.other_phases(rule));
        let mut clock = StepClock::new(rule);
        let mut steps = 0;
        self.growth = StepGrowth::default();
        for (event, stack) in self.buffered.iter().zip(stacks) {
            let hint = self.names.step_hint(event, symbols.stack_info(stack).step_hint);
            let begins_step = clock.begins_step(event, stack, hint);
            steps += u32::from(begins_step);
            self.growth.on_event(event, begins_step);
        }
        if is_sure {
            self.clock = Some((clock, steps));
            self.buffered = Vec::new();
        }
        Some(steps)
    }
}
