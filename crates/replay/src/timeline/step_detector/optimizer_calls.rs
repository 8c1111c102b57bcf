//! Counts the calls of optimizers, and finds a first call that made no event.
//!
//! A call is visible if it allocates or frees. `step` of Adam does so each time; SGD without
//! momentum never does, and a fused optimizer or SGD with momentum only in its first call. Then
//! `zero_grad` counts, which frees the gradients. At the top of a loop its first call has nothing
//! to free. That call is inferred: before the first visible one, a `backward()` ran that comes
//! after `zero_grad` in the code, so the first iteration had passed the place of the call.
//!
//! Not visible at all are the calls of SGD, and of fused optimizers, with
//! `zero_grad(set_to_none=False)`, which writes zeros in place, and gradients that a DDP bucket
//! holds. A `GradScaler` shows its `step` even if gradients overflowed and the optimizer's `step`
//! was left out. A first call is not inferred if `backward()` allocates nothing, because it was
//! given a gradient, or if the two calls are in unrelated functions.

use std::cmp::Ordering;

use gpumemtrace_format::{Event, ThreadId};

use crate::callsite::call_paths::{CallPaths, PathId};
use crate::callsite::code_origin::OptimizerCall;
use crate::callsite::symbols::{AutogradRole, OptimizerLine};
use crate::timeline::step_detector::FEW_CALLS;
use crate::timeline::steps::OptimizerBursts;

/// An event as a place in the program.
#[derive(Clone, Copy, Debug)]
struct CallEvent {
    seq: u64,
    thread: ThreadId,
    path: PathId,
}

/// The first event with some path.
#[derive(Clone, Copy, Debug)]
struct FirstEvent {
    event: CallEvent,
    is_backward: bool,
}

/// The visible calls from one line.
#[derive(Clone, Debug)]
struct LineCalls {
    call: OptimizerCall,
    bursts: OptimizerBursts,
    count: u64,
    first: Option<CallEvent>,
    /// The numbers of the first events of its first and its last call.
    span: Option<(u64, u64)>,
}

/// The line whose calls are steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChosenLine {
    /// A number as in [`crate::callsite::symbols::StackInfo::optimizer`].
    pub(super) line: u16,
    /// Number of calls so far, with the unseen one.
    pub(super) calls: u64,
    /// The sequence number of the event right after a first call without events.
    pub(super) unseen_call: Option<u64>,
}

/// Counts the calls from each optimizer line.
#[derive(Debug, Default)]
pub(super) struct OptimizerCalls {
    lines: Vec<LineCalls>,
    most_calls: u64,
    /// Indexed by the number of the path.
    first_events: Vec<Option<FirstEvent>>,
}

impl OptimizerCalls {
    pub(super) fn new(lines: &[OptimizerLine]) -> Self {
        let lines = lines.iter().map(|line| LineCalls {
            call: line.call,
            bursts: OptimizerBursts::default(),
            count: 0,
            first: None,
            span: None,
        });
        Self { lines: lines.collect(), most_calls: 0, first_events: Vec::new() }
    }

    /// True if no stack goes through an optimizer.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Calls from the line with the most.
    pub(super) fn most_calls(&self) -> u64 {
        self.most_calls
    }

    /// Forgets all events, but not the lines.
    pub(super) fn restart(&mut self) {
        for line in &mut self.lines {
            (line.bursts, line.count, line.first) = (OptimizerBursts::default(), 0, None);
            line.span = None;
        }
        self.most_calls = 0;
        self.first_events.clear();
    }

    /// Observes an allocation or free. `hint` is as in
    /// [`crate::timeline::steps::StepClock::begins_step`].
    pub(super) fn on_event(
        &mut self,
        event: &Event,
        hint: u16,
        path: Option<PathId>,
        autograd: AutogradRole,
    ) {
        for (line, number) in self.lines.iter_mut().zip(1u16..) {
            if line.bursts.observe(event.thread, hint == number) {
                line.count += 1;
                line.span = Some((line.span.map_or(event.seq, |(first, _)| first), event.seq));
                self.most_calls = self.most_calls.max(line.count);
                let first = path.map(|path| CallEvent { seq: event.seq, thread: event.thread, path });
                line.first = line.first.or(first);
            }
        }
        if let Some(path) = path
            && !self.lines.is_empty()
        {
            self.note_first_event(CallEvent { seq: event.seq, thread: event.thread, path }, autograd);
        }
    }

    fn note_first_event(&mut self, event: CallEvent, autograd: AutogradRole) {
        let index = event.path.0 as usize;
        if index >= self.first_events.len() {
            self.first_events.resize(index + 1, None);
        }
        // A thread of autograd has the stack of a forward line, but is not there.
        if self.first_events[index].is_none() && autograd != AutogradRole::WorksFor {
            let is_backward = matches!(autograd, AutogradRole::Runs(_));
            self.first_events[index] = Some(FirstEvent { event, is_backward });
        }
    }

    /// The line whose calls are steps.
    pub(super) fn choose_line(&self, paths: &CallPaths) -> Option<ChosenLine> {
        let most_frequent = |call: OptimizerCall| {
            let lines = self.lines.iter().zip(1u16..);
            let called = lines.filter(|(line, _)| line.call == call && line.count > 0);
            let (line, number) =
                called.max_by_key(|(line, number)| (line.count, std::cmp::Reverse(*number)))?;
            let is_zero_grad = call == OptimizerCall::ZeroGrad;
            let unseen_call =
                line.first.filter(|_| is_zero_grad).and_then(|first| self.find_unseen_call(first, paths));
            let calls = line.count + u64::from(unseen_call.is_some());
            Some(ChosenLine { line: number, calls, unseen_call })
        };
        match (most_frequent(OptimizerCall::Step), most_frequent(OptimizerCall::ZeroGrad)) {
            // An optimizer that allocates only once, for its state, has events in its first step
            // only. Its zero_grad then has more.
            (Some(step), Some(zero_grad)) if step.calls * 2 <= zero_grad.calls => Some(zero_grad),
            (Some(step), _) => Some(step),
            (None, zero_grad) => zero_grad,
        }
    }

    /// The other lines whose calls are steps: those of earlier and later phases of the program. All
    /// their calls come before the first or after the last one of `chosen`, and of each other.
    pub(super) fn other_phases(&self, chosen: u16) -> Vec<u16> {
        let Some(main) = self.lines.get(usize::from(chosen).wrapping_sub(1)) else { return Vec::new() };
        let others =
            self.lines.iter().zip(1u16..).filter(|(line, number)| {
                line.call == main.call && line.count >= FEW_CALLS && *number != chosen
            });
        let mut others: Vec<(&LineCalls, u16)> = others.collect();
        others.sort_by_key(|(line, number)| (std::cmp::Reverse(line.count), *number));
        let mut phases = Vec::new();
        let mut spans: Vec<(u64, u64)> = main.span.into_iter().collect();
        for (line, number) in others {
            let Some(own) = line.span else { continue };
            if spans.iter().all(|phase| own.1 < phase.0 || own.0 > phase.1) {
                spans.push(own);
                phases.push(number);
            }
        }
        phases
    }

    /// The first event after a call without events before `first`, the first visible call.
    fn find_unseen_call(&self, first: CallEvent, paths: &CallPaths) -> Option<u64> {
        let earlier = || {
            let known = self.first_events.iter().flatten();
            known.filter(|one| one.event.thread == first.thread && one.event.seq < first.seq)
        };
        let depth_past_call = |path: PathId| {
            let fork = paths.fork(first.path, path)?;
            let order = paths.order(fork.before, fork.after)?;
            (order == Ordering::Less).then(|| paths.frame(fork.after).depth)
        };
        let backward = earlier().filter(|one| one.is_backward);
        let depth = backward.filter_map(|one| depth_past_call(one.event.path)).max()?;
        let past_call = earlier().filter(|one| depth_past_call(one.event.path).is_some_and(|at| at >= depth));
        past_call.map(|one| one.event.seq).min()
    }
}
