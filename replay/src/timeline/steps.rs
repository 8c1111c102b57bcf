//! Divides a run into steps.
//!
//! Step boundaries come from the first of these that is present:
//! 1. **marks**: `mark` events with aux0 = 1, which the program sets.
//! 2. **nvtx**: beginnings of NVTX ranges that are named like steps
//!    ([`crate::timeline::nvtx_ranges`]).
//! 3. **optimizer**: events with a Python stack through an optimizer's `step`, or else `zero_grad`.
//!    A step begins at the first such event of a thread after an event of that thread outside the
//!    optimizer. Frees carry stacks, so `zero_grad` appears as the frees of gradients. If several
//!    user lines call an optimizer, the most frequent one counts.
//! 4. **period**: an allocation (stack and size) that recurs after a constant number of
//!    allocations. Of several, the one with the longest period counts: it belongs to the outermost
//!    loop.
//! 5. **time**: the run has no steps, and growth is measured over intervals of equal length.
//!
//! Step 0 is the time before the first boundary, mostly set-up; step k begins at boundary k. A mark
//! at the top of a loop makes the first iteration step 1. An optimizer call comes late in an
//! iteration, so the forward pass before it belongs to the previous step.
//!
//! A pass needs a fixed rule. A [`crate::timeline::step_detector::StepDetector`] reads ahead to
//! choose the [`StepRule`]; then a [`StepClock`] counts boundaries.

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{Event, EventKind, ThreadId};

use crate::report::StepSource;
use crate::util::ids::StackId;

/// Number of equal intervals in a run without steps.
pub(crate) const TIME_BINS: u64 = 64;

/// An allocation by kind, stack and size. The kind separates a tensor from the segment that
/// PyTorch's allocator requests for it: both have the same stack and often the same size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StepToken {
    pub(super) kind: EventKind,
    pub(super) stack: StackId,
    pub(super) size: u64,
}

/// The rule for step boundaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StepRule {
    /// Marks of the program.
    Marks,
    /// Ranges with this name, numbered by [`crate::timeline::nvtx_ranges::StepRangeNames`].
    Range(u16),
    /// Calls from this optimizer line, indexed like
    /// [`crate::callsite::symbols::StackInfo::optimizer`].
    Optimizer(u16),
    /// Recurrences of this allocation.
    Period(StepToken),
    /// No steps: intervals of `width_ns` from `start_ns` on.
    Time { start_ns: u64, width_ns: u64 },
}

impl StepRule {
    /// The source of steps that reports show; `None` for a run without steps.
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

/// Detects the first event of each optimizer call.
#[derive(Clone, Debug, Default)]
pub(super) struct OptimizerBursts {
    /// The thread inside a call.
    inside: Option<ThreadId>,
}

impl OptimizerBursts {
    /// Observes an event of `thread`, inside or outside an optimizer call. True for the first event
    /// of a call.
    #[inline]
    pub(super) fn observe(&mut self, thread: ThreadId, is_inside: bool) -> bool {
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

/// Counts step boundaries by a fixed [`StepRule`].
#[derive(Clone, Debug)]
pub(crate) struct StepClock {
    source: StepRule,
    bursts: OptimizerBursts,
    boundaries: u32,
}

impl StepClock {
    pub(crate) fn new(source: StepRule) -> Self {
        Self { source, bursts: OptimizerBursts::default(), boundaries: 0 }
    }

    pub(crate) fn step_rule(&self) -> StepRule {
        self.source
    }

    /// The number of steps that begin immediately before `event`. Times must ascend. `hint` is the
    /// event's [`crate::timeline::nvtx_ranges::StepRangeNames::step_hint`].
    #[inline]
    pub(crate) fn count_begins(&mut self, event: &Event, stack: StackId, hint: u16, time_ns: u64) -> u32 {
        // The common case: the event is neither in an optimizer call nor the first after one.
        if let StepRule::Optimizer(line) = self.source
            && hint != line
            && self.bursts.inside != Some(event.thread)
        {
            return 0;
        }
        let is_block = matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE);
        let begin = match self.source {
            StepRule::Marks => u32::from(event.kind == EventKind::MARK && event.aux[0] == MARK_STEP),
            StepRule::Range(name) => u32::from(event.kind == EventKind::RANGE_BEGIN && hint == name),
            StepRule::Optimizer(line) => {
                u32::from(is_block && self.bursts.observe(event.thread, hint == line))
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
