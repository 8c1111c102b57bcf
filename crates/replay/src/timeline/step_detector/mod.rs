//! Chooses the rule for step boundaries from the first events of a run.
//!
//! Marks decide at once. Optimizer lines, named ranges and loops are observed until one of them is
//! sure, or until the events end. [`crate::timeline::steps`] has the rules and their order. The
//! tests below run programs with loops and optimizers in the abstract.

pub(crate) mod loop_detector;
pub(crate) mod optimizer_calls;
pub(crate) mod outermost_loop;
pub(crate) mod recurrences;
pub(crate) mod repeated_call;

use std::ops::ControlFlow;

use gpumemtrace_format::event::{FLAG_EXISTED, MARK_STEP};
use gpumemtrace_format::{Event, EventKind, NodeId};

use crate::callsite::module_calls::ModuleCalls;
use crate::callsite::symbols::{AutogradRole, StackInfo, StackSymbols};
use crate::timeline::nvtx_ranges::RangeDetector;
use crate::timeline::steps::{StepLayer, StepRule, StepToken};
use crate::util::ids::StackId;
use loop_detector::LoopDetector;
use optimizer_calls::OptimizerCalls;
use outermost_loop::find_outermost_loop;
use recurrences::Recurrences;
use repeated_call::find_repeated_call;

/// Optimizer steps after which the detector is sure, given [`ENOUGH_EVENTS`] events.
const ENOUGH_STEPS: u64 = 16;
/// Events after which [`ENOUGH_STEPS`] optimizer steps suffice.
const ENOUGH_EVENTS: u64 = 30_000;
/// Fewer optimizer calls than this count only if nothing recurs.
const FEW_CALLS: u64 = 3;
/// The search for a loop or period covers this many allocations from the start.
const PERIOD_WINDOW: u64 = 300_000;
/// A run without steps has about this many intervals, or more if it is long.
const INTERVALS: u64 = 64;
/// The largest number of allocations in an interval.
const MAX_PER_INTERVAL: u64 = 1024;

/// An event with its resolved stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedEvent<'a> {
    pub(crate) event: &'a Event,
    pub(crate) stack: StackId,
    pub(crate) info: StackInfo,
    /// The hint for [`crate::timeline::steps::StepClock::begins_step`].
    pub(crate) hint: u16,
}

/// Reads events to find the step source.
#[derive(Debug)]
pub(crate) struct StepDetector {
    optimizer: OptimizerCalls,
    ranges: RangeDetector,
    loops: LoopDetector,
    recurrences: Recurrences,
    module_calls: ModuleCalls,
    layer: StepLayer,
    has_marks: bool,
    events: u64,
    allocations: u64,
}

impl StepDetector {
    pub(crate) fn new(symbols: &StackSymbols) -> Self {
        Self {
            optimizer: OptimizerCalls::new(symbols.optimizer_lines()),
            ranges: RangeDetector::default(),
            loops: LoopDetector::default(),
            recurrences: Recurrences::default(),
            module_calls: ModuleCalls::default(),
            layer: StepLayer::default(),
            has_marks: false,
            events: 0,
            allocations: 0,
        }
    }

    /// Observes an event; breaks once the step source will not change.
    pub(crate) fn on_event(&mut self, one: ResolvedEvent<'_>, symbols: &mut StackSymbols) -> ControlFlow<()> {
        let event = one.event;
        self.events += 1;
        if event.kind == EventKind::MARK && event.aux[0] == MARK_STEP {
            self.has_marks = true;
            return ControlFlow::Break(());
        }
        self.ranges.on_event(event, one.hint);
        if self.layer == StepLayer::Driver
            && matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE)
        {
            self.begin_blocks();
        }
        let existed_before = event.flags & FLAG_EXISTED != 0;
        if existed_before {
            // It says nothing about the steps of the recording.
        } else if self.layer.is_allocation(event.kind) {
            self.on_memory_event(one, true, symbols);
        } else if self.layer.is_free(event.kind) {
            self.on_memory_event(one, false, symbols);
        }
        let is_sure = self.optimizer.most_calls() >= ENOUGH_STEPS && self.events >= ENOUGH_EVENTS;
        // If the program defines an optimizer line, its first call may come late, so keep reading.
        // Otherwise only the window matters.
        let is_exhausted = self.optimizer.is_empty() && self.allocations >= PERIOD_WINDOW;
        if is_sure || is_exhausted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// From PyTorch's first block on, only its blocks count.
    fn begin_blocks(&mut self) {
        self.layer = StepLayer::Blocks;
        self.optimizer.restart();
        (self.loops, self.recurrences) = (LoopDetector::default(), Recurrences::default());
        self.allocations = 0;
    }

    fn on_memory_event(&mut self, one: ResolvedEvent<'_>, is_allocation: bool, symbols: &mut StackSymbols) {
        let ResolvedEvent { event, stack, info, hint } = one;
        let path = symbols.path_of_node(info.python);
        self.optimizer.on_event(event, hint, path, info.autograd);
        if self.allocations >= PERIOD_WINDOW {
            return;
        }
        match path {
            _ if info.autograd == AutogradRole::WorksFor => self.module_calls.on_backward(),
            Some(path) => self.module_calls.on_event(event.thread, path, symbols.paths()),
            None => {}
        }
        // Autograd's threads have stacks of other threads, in an order of their own.
        let is_own = event.python_stack != NodeId::NONE && info.autograd != AutogradRole::WorksFor;
        if !is_allocation {
            self.loops.on_free(event.thread, path.filter(|_| is_own), symbols.paths());
            self.recurrences.on_free();
            return;
        }
        match path {
            Some(_) if !is_own => {}
            Some(path) => {
                self.loops.on_allocation(event.thread, self.allocations as usize, path, symbols.paths());
            }
            None => {
                let token = StepToken::Exact { kind: event.kind, stack, size: event.size };
                self.recurrences.on_allocation(token, self.allocations);
            }
        }
        self.allocations += 1;
    }

    /// The calls of models among the observed events.
    pub(crate) fn module_calls(&self) -> &ModuleCalls {
        &self.module_calls
    }

    /// The step source for the whole run, by the events so far.
    pub(crate) fn step_rule(&mut self, symbols: &StackSymbols) -> StepRule {
        if self.has_marks {
            return StepRule::Marks;
        }
        if let Some(name) = self.ranges.find_step_name() {
            return StepRule::Range(name);
        }
        let layer = self.layer;
        let chosen = self.optimizer.choose_line(symbols.paths());
        if let Some(chosen) = chosen.filter(|chosen| chosen.calls >= FEW_CALLS) {
            return StepRule::Optimizer { line: chosen.line, layer, unseen_call: chosen.unseen_call };
        }
        match (self.find_period(symbols), chosen) {
            (Some(token), _) => StepRule::Period { token, layer },
            (None, Some(chosen)) => {
                StepRule::Optimizer { line: chosen.line, layer, unseen_call: chosen.unseen_call }
            }
            (None, None) => {
                let every = (self.allocations / INTERVALS).clamp(1, MAX_PER_INTERVAL);
                StepRule::Allocations { every, layer }
            }
        }
    }

    /// For an optimizer rule: the lines of other phases, whose calls are steps as well.
    pub(crate) fn other_phases(&self, rule: StepRule) -> (u16, Vec<u16>) {
        match rule {
            StepRule::Optimizer { line, .. } => (line, self.optimizer.other_phases(line)),
            _ => (0, Vec::new()),
        }
    }

    /// What begins the iterations of the outermost loop: an allocation or a call. Sizes and
    /// distances count only for a native program without PyTorch: without stacks, the layers of a
    /// model repeat like iterations.
    fn find_period(&mut self, symbols: &StackSymbols) -> Option<StepToken> {
        if self.loops.allocations() >= self.recurrences.allocations() {
            let threads = self.loops.finish_threads();
            let (allocations, paths) = (self.allocations as usize, symbols.paths());
            let begin = find_outermost_loop(threads, allocations, paths, &self.module_calls);
            let call = find_repeated_call(threads, allocations, paths);
            return match (begin, call) {
                // The loop calls several functions, and one of them seems to be a loop.
                (Some((_, depth)), Some(call)) if paths.frame(call).depth < depth => {
                    Some(StepToken::Call(call))
                }
                (Some((path, _)), _) => Some(StepToken::Path(path)),
                (None, call) => call.map(StepToken::Call),
            };
        }
        match self.layer {
            StepLayer::Driver => self.recurrences.find_period(self.allocations),
            StepLayer::Blocks => None,
        }
    }
}

#[cfg(test)]
mod tests;
