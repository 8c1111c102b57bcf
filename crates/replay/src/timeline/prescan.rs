//! Detects step boundaries before the pass, without a third reading in the common case.
//!
//! The pass needs the step source before its first event, but finding it may take hundreds of
//! thousands of events; 30,000 suffice for most training loops. [`Prescan`] buffers the events that
//! it feeds to the [`StepDetector`], up to [`MAX_BUFFERED_EVENTS`], and the pass begins with that
//! buffer. If the detector needs more events, the buffer is dropped and the trace is read again
//! from its start.

use std::ops::ControlFlow;

use gpumemtrace_format::Event;

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::symbols::StackSymbols;
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::step_detector::{ResolvedEvent, StepDetector};
use crate::timeline::steps::StepRule;

/// Limit of buffered events: 6.5 MiB. Decoding them again takes less time than the page faults of a
/// larger buffer.
const MAX_BUFFERED_EVENTS: usize = 64 << 10;
/// The buffer grows by chunks of this size, so that no event is ever copied by growth.
const CHUNK_EVENTS: usize = 8 << 10;

/// A step detector and the events it has read.
#[derive(Debug)]
pub(crate) struct Prescan {
    detector: StepDetector,
    symbols: StackSymbols,
    names: StepRangeNames,
    autograd: AutogradTracker,
    chunks: Vec<Vec<Event>>,
    events: usize,
    first_ns: Option<u64>,
}

/// What the pass takes over from a prescan.
pub(crate) struct PrescanResult {
    pub(crate) symbols: StackSymbols,
    pub(crate) names: StepRangeNames,
    pub(crate) step_rule: StepRule,
    /// Time of the first event.
    pub(crate) first_ns: Option<u64>,
    /// The buffered events in order: all events read so far, or none.
    pub(crate) buffered: Vec<Vec<Event>>,
}

impl Prescan {
    pub(crate) fn new(symbols: StackSymbols, names: StepRangeNames) -> Self {
        let detector = StepDetector::new(&symbols);
        Self {
            detector,
            symbols,
            names,
            autograd: AutogradTracker::default(),
            chunks: Vec::new(),
            events: 0,
            first_ns: None,
        }
    }

    /// Feeds an event to the detector; breaks when the step source is known.
    pub(crate) fn on_event(&mut self, event: &Event) -> ControlFlow<()> {
        if self.events.is_multiple_of(CHUNK_EVENTS) && self.events < MAX_BUFFERED_EVENTS {
            self.chunks.push(Vec::with_capacity(CHUNK_EVENTS));
        }
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        if !self.has_all_events() {
            self.chunks.clear();
        } else if let Some(chunk) = self.chunks.last_mut() {
            chunk.push(*event);
        }
        let (stack, info) = self.autograd.resolve_stack(event, &mut self.symbols);
        let hint = self.names.step_hint(event, info.step_hint);
        self.detector.on_event(ResolvedEvent { event, stack, info, hint }, &mut self.symbols)
    }

    /// The step rule by the events so far, and what the pass takes over. Prepares the symbols for
    /// that rule. Call it once.
    pub(crate) fn take_result(&mut self) -> PrescanResult {
        let step_rule = self.detector.step_rule(&self.symbols);
        let mut symbols = std::mem::take(&mut self.symbols);
        symbols.set_step_hints(step_rule.recurring_stacks(), self.detector.other_phases(step_rule));
        symbols.set_module_calls(self.detector.module_calls(), step_rule.source().is_some());
        PrescanResult {
            symbols,
            names: std::mem::take(&mut self.names),
            step_rule,
            first_ns: self.first_ns,
            buffered: std::mem::take(&mut self.chunks),
        }
    }

    /// True while the buffer contains every event read so far.
    pub(crate) fn has_all_events(&self) -> bool {
        self.events <= MAX_BUFFERED_EVENTS
    }
}
