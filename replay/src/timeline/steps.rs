//! What a step is in this run.
//!
//! In order of preference:
//! 1. **marks**: the program said so (`mark` events whose aux0 is 1). A step begins at each.
//! 2. **nvtx**: ranges that are called steps ([`crate::timeline::nvtx_ranges`]). A step begins with each.
//! 3. **optimizer**: events whose Python stack passes through an optimizer's `step` (else `zero_grad`). A step begins at the
//!    first such event of a thread after an event of that thread outside of it. Frees carry stacks, so `zero_grad` shows as
//!    the frees of gradients. If several user lines call an optimizer, the one that does so most often counts.
//! 4. **period**: an allocation (stack and size) that comes back after the same number of allocations again and again, and
//!    of those the one with the longest period: the outermost loop. A step begins at each.
//! 5. otherwise nothing is called a step, and growth is judged over equal times.
//!
//! Step 0 is what happens before the first beginning, set-up; step k what happens from the k-th beginning on. Where a sign stands at the
//! top of a loop, its first turn is step 1; the calls of an optimizer come late in a turn, whose forward pass is of the step before.
//!
//! Constraint: which rule holds depends on events, and a stream can be judged only by a rule that is fixed. Consequence: a
//! [`StepDetector`] reads ahead until it has seen enough, then the real pass uses the [`StepRule`] it found.

use std::ops::ControlFlow;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{Event, EventKind, ThreadId};

use crate::callsite::code_origin::OptimizerCall;
use crate::callsite::symbols::{OptimizerLine, StackId};
use crate::report::StepSource;
use crate::timeline::nvtx_ranges::RangeDetector;
use crate::util::seeded_map::SeededMap;

/// Steps after which the scout is sure.
const ENOUGH_STEPS: u64 = 16;
/// Events after which the scout looks no further if it has seen enough steps.
const ENOUGH_EVENTS: u64 = 30_000;
/// Allocations among which a period is looked for.
const PERIOD_WINDOW: u64 = 300_000;
/// Fewest repetitions that make a period.
const MIN_PERIODS: u64 = 8;
/// Equal times, where there are no steps.
pub(crate) const TIME_BINS: u64 = 64;

/// An allocation by its kind, stack and size. PyTorch's allocator gets its own memory from the driver under the stack of the
/// tensor that asks, and often in its size: these are two tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StepToken {
    kind: EventKind,
    stack: StackId,
    size: u64,
}

/// When a step begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepRule {
    /// At marks.
    Marks,
    /// At ranges of this name (number as of [`crate::timeline::nvtx_ranges::StepRangeNames`]).
    Range(u16),
    /// At calls of this optimizer line (index as in [`crate::callsite::symbols::StackInfo::optimizer`]).
    Optimizer(u16),
    /// At this allocation.
    Period(StepToken),
    /// Not at all; time is cut in pieces of this length.
    Time {
        /// Where the first begins.
        start_ns: u64,
        /// How long each is.
        width_ns: u64,
    },
}

impl StepRule {
    /// What begins a step, for reports; `None` if there are no steps.
    pub(crate) fn source(self) -> Option<StepSource> {
        match self {
            Self::Marks => Some(StepSource::Marks),
            Self::Range(_) => Some(StepSource::Nvtx),
            Self::Optimizer(_) => Some(StepSource::Optimizer),
            Self::Period(_) => Some(StepSource::Period),
            Self::Time { .. } => None,
        }
    }
}

/// Notices the first event of each burst of one thread.
#[derive(Clone, Debug, Default)]
struct OptimizerBursts {
    inside: Option<ThreadId>,
}

impl OptimizerBursts {
    #[inline]
    fn begins(&mut self, thread: ThreadId, is_inside: bool) -> bool {
        if is_inside {
            let begins = self.inside != Some(thread);
            self.inside = Some(thread);
            return begins;
        }
        if self.inside == Some(thread) {
            self.inside = None;
        }
        false
    }
}

/// Says at which events steps begin.
#[derive(Clone, Debug)]
pub(crate) struct StepClock {
    source: StepRule,
    bursts: OptimizerBursts,
    boundaries: u32,
}

impl StepClock {
    /// For this rule.
    pub(crate) fn new(source: StepRule) -> Self {
        Self { source, bursts: OptimizerBursts::default(), boundaries: 0 }
    }

    /// The rule.
    pub(crate) fn step_rule(&self) -> StepRule {
        self.source
    }

    /// How many steps begin just before this event. Times ascend. `what` is the optimizer line of the event's stack or, where a
    /// range begins, the number of its name.
    #[inline]
    pub(crate) fn begins(&mut self, event: &Event, stack: StackId, what: u16, time_ns: u64) -> u32 {
        // Nearly always: neither in a call of the optimizer nor right behind one.
        if let StepRule::Optimizer(line) = self.source
            && what != line
            && self.bursts.inside != Some(event.thread)
        {
            return 0;
        }
        let is_block = matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE);
        let begin = match self.source {
            StepRule::Marks => u32::from(event.kind == EventKind::MARK && event.aux[0] == MARK_STEP),
            StepRule::Range(name) => u32::from(event.kind == EventKind::RANGE_BEGIN && what == name),
            StepRule::Optimizer(line) => {
                u32::from(is_block && self.bursts.begins(event.thread, what == line))
            }
            StepRule::Period(token) => {
                u32::from(StepToken { kind: event.kind, stack, size: event.size } == token)
            }
            StepRule::Time { start_ns, width_ns } => {
                let bin = time_ns.saturating_sub(start_ns) / width_ns.max(1);
                (bin.min(2 * TIME_BINS) as u32).saturating_sub(self.boundaries)
            }
        };
        self.boundaries += begin;
        begin
    }
}

fn is_allocation(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::BLOCK_ALLOC | EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC | EventKind::MANAGED_ALLOC
    )
}

#[derive(Clone, Copy, Debug)]
struct Recurrence {
    count: u64,
    first: u64,
    last: u64,
    gap: u64,
    votes: u64,
    matches: u64,
}

/// Reads ahead to find the rule.
#[derive(Debug)]
pub(crate) struct StepDetector {
    lines: Vec<OptimizerLine>,
    bursts: Vec<(OptimizerBursts, u64)>,
    ranges: RangeDetector,
    has_marks: bool,
    events: u64,
    allocations: u64,
    torch_allocations: u64,
    recurrences: SeededMap<StepToken, Recurrence>,
    first_ns: Option<u64>,
    last_ns: u64,
    end_ns: Option<u64>,
}

impl StepDetector {
    /// `end_ns` is when the run ended, if that is known.
    pub(crate) fn new(lines: &[OptimizerLine], end_ns: Option<u64>) -> Self {
        Self {
            lines: lines.to_vec(),
            bursts: vec![(OptimizerBursts::default(), 0); lines.len()],
            ranges: RangeDetector::default(),
            has_marks: false,
            events: 0,
            allocations: 0,
            torch_allocations: 0,
            recurrences: SeededMap::default(),
            first_ns: None,
            last_ns: 0,
            end_ns,
        }
    }

    /// Takes an event; breaks when it has seen enough. `what` as in [`StepClock::begins`].
    pub(crate) fn event(&mut self, event: &Event, stack: StackId, what: u16) -> ControlFlow<()> {
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        if event.kind == EventKind::MARK && event.aux[0] == MARK_STEP {
            self.has_marks = true;
            return ControlFlow::Break(());
        }
        if matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            for (index, (bursts, count)) in self.bursts.iter_mut().enumerate() {
                *count += u64::from(bursts.begins(event.thread, what as usize == index + 1));
            }
        }
        self.ranges.event(event, what);
        if is_allocation(event.kind) && self.allocations < PERIOD_WINDOW {
            // Driver calls of PyTorch's allocator come now and then and would disturb the count.
            if event.kind == EventKind::BLOCK_ALLOC {
                if self.torch_allocations == 0 {
                    self.recurrences.clear();
                    self.allocations = 0;
                }
                self.torch_allocations += 1;
            }
            if event.kind == EventKind::BLOCK_ALLOC || self.torch_allocations == 0 {
                self.recur(StepToken { kind: event.kind, stack, size: event.size });
            }
        }
        let steps = self.bursts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let sure = steps >= ENOUGH_STEPS && self.events >= ENOUGH_EVENTS;
        // With an optimizer about, its first call may come late: look on. Without, the window is all that is looked at,
        // unless the end of the run is unknown and must be found.
        let hopeless = self.lines.is_empty() && self.allocations >= PERIOD_WINDOW && self.end_ns.is_some();
        if sure || hopeless { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn recur(&mut self, token: StepToken) {
        let at = self.allocations;
        self.allocations += 1;
        let new = Recurrence { count: 0, first: at, last: at, gap: 0, votes: 0, matches: 0 };
        let seen = self.recurrences.entry(token).or_insert(new);
        if seen.count > 0 {
            // Majority vote: if one gap makes up more than half, it ends up as the candidate.
            let gap = at - seen.last;
            if gap == seen.gap {
                seen.votes += 1;
                seen.matches += 1;
            } else if seen.votes == 0 {
                (seen.gap, seen.votes, seen.matches) = (gap, 1, 1);
            } else {
                seen.votes -= 1;
            }
        }
        seen.count += 1;
        seen.last = at;
    }

    /// The rule for the whole run.
    pub(crate) fn step_rule(&self) -> StepRule {
        if self.has_marks {
            return StepRule::Marks;
        }
        if let Some(name) = self.ranges.steps() {
            return StepRule::Range(name);
        }
        let best = |call: OptimizerCall| {
            let lines = self.lines.iter().zip(&self.bursts).zip(1u16..);
            lines
                .filter(|((line, (_, count)), _)| line.call == call && *count > 0)
                .map(|((_, (_, count)), index)| (*count, index))
                .max_by_key(|(count, index)| (*count, std::cmp::Reverse(*index)))
        };
        let (step, zero_grad) = (best(OptimizerCall::Step), best(OptimizerCall::ZeroGrad));
        let chosen = match (step, zero_grad) {
            // An optimizer that allocates only once (its state) shows a single step: then zero_grad tells more.
            (Some((steps, _)), Some((zeros, index))) if steps * 2 < zeros => Some((zeros, index)),
            (Some(step), _) => Some(step),
            (None, zero_grad) => zero_grad,
        };
        match (chosen, self.period()) {
            (Some((count, index)), period) if count >= 3 || period.is_none() => StepRule::Optimizer(index),
            (_, Some(token)) => StepRule::Period(token),
            _ => {
                let start_ns = self.first_ns.unwrap_or(0);
                let end_ns = self.end_ns.unwrap_or(self.last_ns);
                StepRule::Time { start_ns, width_ns: (end_ns.saturating_sub(start_ns) / TIME_BINS).max(1) }
            }
        }
    }

    fn period(&self) -> Option<StepToken> {
        let regular = self.recurrences.iter().filter(|(_, seen)| {
            seen.count >= MIN_PERIODS
                && seen.matches * 20 >= (seen.count - 1) * 19
                && (seen.last - seen.first) * 2 >= self.allocations
        });
        let best =
            regular.max_by_key(|(token, seen)| (seen.gap, std::cmp::Reverse((seen.first, token.size))));
        best.map(|(token, _)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite::symbols::SiteId;

    fn event(thread: u32, kind: EventKind, size: u64) -> Event {
        Event { thread: ThreadId(thread), size, aux: [1, 0], ..Event::new(kind) }
    }

    fn line(call: OptimizerCall) -> OptimizerLine {
        OptimizerLine { call, site: SiteId(0) }
    }

    /// (thread, optimizer line) of alloc events.
    fn rule_and_steps(lines: &[OptimizerLine], events: &[(u32, u16, u64)]) -> (StepRule, u32) {
        let mut detector = StepDetector::new(lines, Some(1));
        let kind = EventKind::BLOCK_ALLOC;
        for (thread, optimizer, size) in events {
            let _ = detector.event(&event(*thread, kind, *size), StackId(0), *optimizer);
        }
        let source = detector.step_rule();
        let mut clock = StepClock::new(source);
        let mut steps = 0;
        for (thread, optimizer, size) in events {
            steps += clock.begins(&event(*thread, kind, *size), StackId(0), *optimizer, 0);
        }
        (source, steps)
    }

    #[test]
    fn events_of_other_threads_do_not_split_a_step() {
        let iteration = [(1, 0, 8), (2, 0, 8), (1, 1, 8), (2, 0, 8), (1, 1, 8)];
        let events: Vec<_> = iteration.iter().cycle().take(50).copied().collect();
        assert_eq!(rule_and_steps(&[line(OptimizerCall::Step)], &events), (StepRule::Optimizer(1), 10));
    }

    #[test]
    fn zero_grad_tells_the_steps_of_an_optimizer_that_never_allocates_again() {
        let mut events = vec![(1, 0, 8), (1, 1, 8)];
        for _ in 0..10 {
            events.extend([(1, 0, 8), (1, 2, 8)]);
        }
        let lines = [line(OptimizerCall::Step), line(OptimizerCall::ZeroGrad)];
        assert_eq!(rule_and_steps(&lines, &events), (StepRule::Optimizer(2), 10));
    }

    #[test]
    fn a_loop_without_optimizer_is_told_by_what_recurs_and_the_outer_loop_wins() {
        let mut events = vec![(1, 0, 3), (1, 0, 5)];
        for _ in 0..20 {
            events.push((1, 0, 100));
            events.extend([(1, 0, 7); 6]);
        }
        let (source, steps) = rule_and_steps(&[], &events);
        assert_eq!((source.source(), steps), (Some(StepSource::Period), 20));
    }

    #[test]
    fn a_driver_call_like_the_tensor_it_serves_begins_no_step() {
        let kinds = [EventKind::DEVICE_ALLOC, EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE];
        let events: Vec<Event> =
            kinds.iter().cycle().take(60).map(|kind| event(1, *kind, 20 << 20)).collect();
        let mut detector = StepDetector::new(&[], Some(1));
        for event in &events {
            let _ = detector.event(event, StackId(0), 0);
        }
        let mut clock = StepClock::new(detector.step_rule());
        let steps: u32 = events.iter().map(|event| clock.begins(event, StackId(0), 0, 0)).sum();
        assert_eq!((clock.step_rule().source(), steps), (Some(StepSource::Period), 20));
    }

    #[test]
    fn without_regularity_nothing_is_called_a_step() {
        let events: Vec<_> = (0..200u64).map(|i| (1, 0, i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 7)).collect();
        assert_eq!(rule_and_steps(&[], &events).0.source(), None);
    }
}
