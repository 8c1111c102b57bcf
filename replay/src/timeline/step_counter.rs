//! How many steps a run that goes on has made.
//!
//! Constraint: what a step is shows only after some of them, and the frames that tell it may be defined at any time. Consequence:
//! the first [`MAX_KEPT`] events are kept and judged anew at each look, until the scout is sure; from then on steps are
//! counted as they come. Where it never becomes sure, what it thought last holds.

use gpumemtrace_format::Event;

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::symbols::{StackId, StackSymbols};
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::steps::{StepClock, StepDetector, StepRule};

/// Most events that are kept and judged again.
const MAX_KEPT: usize = 256 << 10;

/// Counts steps.
#[derive(Debug, Default)]
pub(crate) struct StepCounter {
    names: StepRangeNames,
    kept: Vec<Event>,
    clock: Option<(StepClock, u32)>,
    /// Nothing is called a step in this run.
    has_none: bool,
}

impl StepCounter {
    /// More is defined.
    pub(crate) fn names_changed(&mut self, symbols: &StackSymbols) {
        let codes = symbols.definitions().codes.values();
        if self.clock.is_some() {
            codes.for_each(|code| self.names.learn(code));
        } else {
            self.names = StepRangeNames::new(codes);
        }
    }

    /// Takes an event in order.
    pub(crate) fn event(&mut self, event: &Event, stack: StackId, symbols: &mut StackSymbols) {
        if let Some((clock, steps)) = &mut self.clock {
            let what = self.names.or_optimizer(event, symbols.stack_info(stack).optimizer);
            *steps += clock.begins(event, stack, what, event.time_ns);
        } else if !self.has_none {
            self.kept.push(*event);
            if self.kept.len() >= MAX_KEPT {
                self.judge(symbols, true);
            }
        }
    }

    /// Steps begun, if it is known what a step is.
    pub(crate) fn count(&mut self, symbols: &mut StackSymbols) -> Option<u32> {
        if self.clock.is_none() && !self.has_none {
            return self.judge(symbols, false);
        }
        self.clock.as_ref().map(|(_, steps)| *steps)
    }

    /// The steps of what is kept. For good if the scout is sure, or has to be.
    fn judge(&mut self, symbols: &mut StackSymbols, for_good: bool) -> Option<u32> {
        let mut detector = StepDetector::new(symbols.optimizer_lines(), None);
        let mut backward = AutogradTracker::default();
        let mut whats = Vec::with_capacity(self.kept.len());
        let mut is_sure = for_good;
        for event in &self.kept {
            let (stack, facts) = backward.stack_of(event, symbols);
            let what = self.names.or_optimizer(event, facts.optimizer);
            whats.push((stack, what));
            is_sure |= detector.event(event, stack, what).is_break();
        }
        let source = detector.step_rule();
        if matches!(source, StepRule::Time { .. }) {
            self.has_none = for_good;
            if for_good {
                self.kept = Vec::new();
            }
            return None;
        }
        let mut clock = StepClock::new(source);
        let begun = self.kept.iter().zip(whats);
        let steps = begun.map(|(event, (stack, what))| clock.begins(event, stack, what, event.time_ns)).sum();
        if is_sure {
            self.clock = Some((clock, steps));
            self.kept = Vec::new();
        }
        Some(steps)
    }
}
