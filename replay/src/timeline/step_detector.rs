//! Chooses the rule for step boundaries from the first events of a run.
//!
//! Marks decide at once. Optimizer lines, named ranges and recurring allocations are counted until
//! one of them is sure, or until the events end. [`crate::timeline::steps`] has the rules and their
//! order. The tests below check optimizer lines and periods.

use std::ops::ControlFlow;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{Event, EventKind};

use crate::callsite::code_origin::OptimizerCall;
use crate::callsite::symbols::OptimizerLine;
use crate::timeline::nvtx_ranges::RangeDetector;
use crate::timeline::steps::{OptimizerBursts, StepRule, StepToken, TIME_BINS};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// Optimizer steps after which the detector is sure, given [`ENOUGH_EVENTS`] events.
const ENOUGH_STEPS: u64 = 16;
/// Events after which [`ENOUGH_STEPS`] optimizer steps suffice.
const ENOUGH_EVENTS: u64 = 30_000;
/// The search for a period covers this many allocations from the start.
const PERIOD_WINDOW: u64 = 300_000;
/// A period must repeat at least this often.
const MIN_PERIODS: u64 = 8;

fn is_allocation(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::BLOCK_ALLOC | EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC | EventKind::MANAGED_ALLOC
    )
}

/// The occurrences of one allocation, with the majority candidate for their distance.
#[derive(Clone, Copy, Debug)]
struct Recurrence {
    count: u64,
    /// Index of the first occurrence among all allocations.
    first: u64,
    /// Index of the last occurrence.
    last: u64,
    /// Candidate for the distance of two occurrences.
    gap: u64,
    /// Majority vote for `gap`.
    votes: u64,
    /// Distances equal to `gap` since it became the candidate.
    matches: u64,
}

/// Reads events to find the step source.
#[derive(Debug)]
pub(crate) struct StepDetector {
    lines: Vec<OptimizerLine>,
    /// For each of `lines`: its calls, and their count.
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
    /// `end_ns` is the end of the run, if known.
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

    /// Observes an event; breaks once the step source will not change. `hint` is as in
    /// [`crate::timeline::steps::StepClock::count_begins`].
    pub(crate) fn on_event(&mut self, event: &Event, stack: StackId, hint: u16) -> ControlFlow<()> {
        self.events += 1;
        self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        if event.kind == EventKind::MARK && event.aux[0] == MARK_STEP {
            self.has_marks = true;
            return ControlFlow::Break(());
        }
        if matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            for (index, (bursts, count)) in self.bursts.iter_mut().enumerate() {
                *count += u64::from(bursts.observe(event.thread, hint as usize == index + 1));
            }
        }
        self.ranges.on_event(event, hint);
        if is_allocation(event.kind) && self.allocations < PERIOD_WINDOW {
            // With PyTorch, only its blocks count: the driver calls of its allocator are irregular
            // and would disturb the distances.
            if event.kind == EventKind::BLOCK_ALLOC {
                if self.torch_allocations == 0 {
                    self.recurrences.clear();
                    self.allocations = 0;
                }
                self.torch_allocations += 1;
            }
            if event.kind == EventKind::BLOCK_ALLOC || self.torch_allocations == 0 {
                self.record_occurrence(StepToken { kind: event.kind, stack, size: event.size });
            }
        }
        let steps = self.bursts.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let is_sure = steps >= ENOUGH_STEPS && self.events >= ENOUGH_EVENTS;
        // If the program defines an optimizer line, its first call may come late, so keep reading.
        // Otherwise only the window matters, unless the end of the run must be found.
        let is_exhausted =
            self.lines.is_empty() && self.allocations >= PERIOD_WINDOW && self.end_ns.is_some();
        if is_sure || is_exhausted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn record_occurrence(&mut self, token: StepToken) {
        let index = self.allocations;
        self.allocations += 1;
        let new = Recurrence { count: 0, first: index, last: index, gap: 0, votes: 0, matches: 0 };
        let recurrence = self.recurrences.entry(token).or_insert(new);
        if recurrence.count > 0 {
            // Boyer-Moore majority vote: a gap in more than half of the cases ends as the
            // candidate.
            let gap = index - recurrence.last;
            if gap == recurrence.gap {
                recurrence.votes += 1;
                recurrence.matches += 1;
            } else if recurrence.votes == 0 {
                (recurrence.gap, recurrence.votes, recurrence.matches) = (gap, 1, 1);
            } else {
                recurrence.votes -= 1;
            }
        }
        recurrence.count += 1;
        recurrence.last = index;
    }

    /// The step source for the whole run, by the events so far.
    pub(crate) fn step_rule(&self) -> StepRule {
        if self.has_marks {
            return StepRule::Marks;
        }
        if let Some(name) = self.ranges.find_step_name() {
            return StepRule::Range(name);
        }
        let most_frequent = |call: OptimizerCall| {
            let lines = self.lines.iter().zip(&self.bursts).zip(1u16..);
            lines
                .filter(|((line, (_, count)), _)| line.call == call && *count > 0)
                .map(|((_, (_, count)), index)| (*count, index))
                .max_by_key(|(count, index)| (*count, std::cmp::Reverse(*index)))
        };
        let (step, zero_grad) = (most_frequent(OptimizerCall::Step), most_frequent(OptimizerCall::ZeroGrad));
        let chosen = match (step, zero_grad) {
            // An optimizer that allocates only once, for its state, has events in its first step
            // only. Its zero_grad then has more.
            (Some((steps, _)), Some((zeros, index))) if steps * 2 < zeros => Some((zeros, index)),
            (Some(step), _) => Some(step),
            (None, zero_grad) => zero_grad,
        };
        match (chosen, self.find_period()) {
            (Some((count, index)), period) if count >= 3 || period.is_none() => StepRule::Optimizer(index),
            (_, Some(token)) => StepRule::Period(token),
            _ => {
                let start_ns = self.first_ns.unwrap_or(0);
                let end_ns = self.end_ns.unwrap_or(self.last_ns);
                StepRule::Time { start_ns, width_ns: (end_ns.saturating_sub(start_ns) / TIME_BINS).max(1) }
            }
        }
    }

    /// The regular allocation with the longest period. Regular means: at least 95% of the distances
    /// are equal, and the occurrences span at least half of the allocations.
    fn find_period(&self) -> Option<StepToken> {
        let regular = self.recurrences.iter().filter(|(_, recurrence)| {
            recurrence.count >= MIN_PERIODS
                && recurrence.matches * 20 >= (recurrence.count - 1) * 19
                && (recurrence.last - recurrence.first) * 2 >= self.allocations
        });
        let longest = regular.max_by_key(|(token, recurrence)| {
            (recurrence.gap, std::cmp::Reverse((recurrence.first, token.size)))
        });
        longest.map(|(token, _)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::StepSource;
    use crate::timeline::steps::StepClock;
    use crate::util::ids::SiteId;
    use gpumemtrace_format::ThreadId;

    fn event(thread: u32, kind: EventKind, size: u64) -> Event {
        Event { thread: ThreadId(thread), size, aux: [1, 0], ..Event::new(kind) }
    }

    fn line(call: OptimizerCall) -> OptimizerLine {
        OptimizerLine { call, site: SiteId(0) }
    }

    /// The step source and the number of steps of a run. `events` has thread, optimizer line and
    /// size of allocations.
    fn detect(lines: &[OptimizerLine], events: &[(u32, u16, u64)]) -> (StepRule, u32) {
        let mut detector = StepDetector::new(lines, Some(1));
        let kind = EventKind::BLOCK_ALLOC;
        for (thread, optimizer, size) in events {
            let _ = detector.on_event(&event(*thread, kind, *size), StackId(0), *optimizer);
        }
        let source = detector.step_rule();
        let mut clock = StepClock::new(source);
        let mut steps = 0;
        for (thread, optimizer, size) in events {
            steps += clock.count_begins(&event(*thread, kind, *size), StackId(0), *optimizer, 0);
        }
        (source, steps)
    }

    #[test]
    fn events_of_other_threads_do_not_split_a_step() {
        let iteration = [(1, 0, 8), (2, 0, 8), (1, 1, 8), (2, 0, 8), (1, 1, 8)];
        let events: Vec<_> = iteration.iter().cycle().take(50).copied().collect();
        assert_eq!(detect(&[line(OptimizerCall::Step)], &events), (StepRule::Optimizer(1), 10));
    }

    #[test]
    fn zero_grad_counts_steps_of_an_optimizer_that_allocates_once() {
        let mut events = vec![(1, 0, 8), (1, 1, 8)];
        for _ in 0..10 {
            events.extend([(1, 0, 8), (1, 2, 8)]);
        }
        let lines = [line(OptimizerCall::Step), line(OptimizerCall::ZeroGrad)];
        assert_eq!(detect(&lines, &events), (StepRule::Optimizer(2), 10));
    }

    #[test]
    fn period_of_the_outer_loop_is_found_without_an_optimizer() {
        let mut events = vec![(1, 0, 3), (1, 0, 5)];
        for _ in 0..20 {
            events.push((1, 0, 100));
            events.extend([(1, 0, 7); 6]);
        }
        let (source, steps) = detect(&[], &events);
        assert_eq!((source.source(), steps), (Some(StepSource::Period), 20));
    }

    #[test]
    fn driver_call_of_the_same_stack_and_size_as_its_tensor_begins_no_step() {
        let kinds = [EventKind::DEVICE_ALLOC, EventKind::BLOCK_ALLOC, EventKind::BLOCK_FREE];
        let events: Vec<Event> =
            kinds.iter().cycle().take(60).map(|kind| event(1, *kind, 20 << 20)).collect();
        let mut detector = StepDetector::new(&[], Some(1));
        for event in &events {
            let _ = detector.on_event(event, StackId(0), 0);
        }
        let mut clock = StepClock::new(detector.step_rule());
        let steps: u32 = events.iter().map(|event| clock.count_begins(event, StackId(0), 0, 0)).sum();
        assert_eq!((clock.step_rule().source(), steps), (Some(StepSource::Period), 20));
    }

    #[test]
    fn irregular_allocations_have_no_steps() {
        let events: Vec<_> = (0..200u64).map(|i| (1, 0, i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 7)).collect();
        assert_eq!(detect(&[], &events).0.source(), None);
    }
}
