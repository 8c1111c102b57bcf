//! Reading ahead for the rule of steps, without reading twice.
//!
//! Constraint: the pass needs the rule before its first event, and the rule may take hundreds of thousands of events to find.
//! Consequence: what the scout has seen is kept, [`MAX_KEPT`] events at most, and the pass begins with that. Only where the scout
//! needs more is the trace read again from its start.

use std::ops::ControlFlow;

use gpumemtrace_format::Event;

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::symbols::StackSymbols;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::steps::StepDetector;

/// Most events that are kept: 64 MiB of them.
const MAX_KEPT: usize = 640 << 10;
/// Kept in pieces, so that none is ever copied to make room.
const PIECE_EVENTS: usize = 8 << 10;

/// A scout and what it has seen.
#[derive(Debug)]
pub(crate) struct Prescan {
    pub(crate) detector: StepDetector,
    pub(crate) symbols: StackSymbols,
    pub(crate) names: StepRangeNames,
    backward: AutogradTracker,
    kept: Vec<Vec<Event>>,
    events: usize,
    pub(crate) first_ns: Option<u64>,
}

impl Prescan {
    /// `end_ns` is when the run ended, if that is known.
    pub(crate) fn new(symbols: StackSymbols, names: StepRangeNames, end_ns: Option<u64>) -> Self {
        let detector = StepDetector::new(symbols.optimizer_lines(), end_ns);
        Self {
            detector,
            symbols,
            names,
            backward: AutogradTracker::default(),
            kept: Vec::new(),
            events: 0,
            first_ns: None,
        }
    }

    /// Takes an event; breaks when the rule is known.
    pub(crate) fn event(&mut self, event: &Event) -> ControlFlow<()> {
        if self.events.is_multiple_of(PIECE_EVENTS) && self.events < MAX_KEPT {
            self.kept.push(Vec::with_capacity(PIECE_EVENTS));
        }
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        if !self.has_all() {
            self.kept.clear();
        } else if let Some(piece) = self.kept.last_mut() {
            piece.push(*event);
        }
        let (stack, facts) = self.backward.stack_of(event, &mut self.symbols);
        let what = self.names.or_optimizer(event, facts.optimizer);
        self.detector.event(event, stack, what)
    }

    /// True while everything it has seen is kept.
    pub(crate) fn has_all(&self) -> bool {
        self.events <= MAX_KEPT
    }

    /// What it has seen, if that is everything; else nothing.
    pub(crate) fn take_kept(&mut self) -> Vec<Vec<Event>> {
        std::mem::take(&mut self.kept)
    }
}
