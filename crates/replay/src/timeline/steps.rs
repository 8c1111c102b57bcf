//! Divides a run into steps.
//!
//! Step boundaries come from the first of these that is present:
//! 1. **marks**: `mark` events with aux0 = 1, which the program sets.
//! 2. **nvtx**: beginnings of NVTX ranges that are named like steps
//!    ([`crate::timeline::nvtx_ranges`]).
//! 3. **optimizer**: events with a Python stack through an optimizer's `step`, or else `zero_grad`.
//!    A step begins at the first such event of a thread after an event of that thread outside the
//!    optimizer. Frees carry stacks, so `zero_grad` appears as the frees of gradients. If several
//!    user lines call an optimizer, the most frequent one counts, and with it those of earlier and
//!    later phases ([`crate::timeline::step_detector::optimizer_calls`]).
//! 4. **period**: an allocation that occurs once in each iteration of the outermost loop
//!    ([`crate::timeline::step_detector::outermost_loop`]). If iterations take different paths, the
//!    call that the loop makes ([`crate::timeline::step_detector::repeated_call`]). Without Python
//!    stacks, an allocation that recurs after a constant number of allocations
//!    ([`crate::timeline::step_detector::recurrences`]).
//! 5. **allocations**: the run has no steps, and growth is measured over intervals with an equal
//!    number of allocations. They depend on the program alone: not on its speed, nor on its
//!    teardown, which allocates nothing.
//!
//! Step 0 is the time before the first boundary, mostly set-up; step k begins at boundary k. A mark
//! at the top of a loop makes the first iteration step 1. An optimizer call comes late in an
//! iteration, so the forward pass before it belongs to the previous step.
//!
//! A pass needs a fixed rule. A [`crate::timeline::step_detector::StepDetector`] reads ahead to
//! choose the [`StepRule`]; then a [`StepClock`] counts boundaries.

use gpumemtrace_format::event::{FLAG_EXISTED, MARK_STEP, NO_SEQ};
use gpumemtrace_format::{Event, EventKind, NodeId, ThreadId};

use crate::callsite::call_paths::PathId;
use crate::callsite::symbols::{OTHER_TASK, RECURRING, RecurringStacks};
use crate::report::StepSource;
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededSet;

/// The layer whose allocations and frees divide a run. With PyTorch's blocks, the driver calls of
/// its allocator are irregular, and the same tensor would count twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum StepLayer {
    /// Driver calls. The run has no blocks of PyTorch's allocator: it uses no PyTorch, or a backend
    /// without them.
    #[default]
    Driver,
    /// Blocks of PyTorch's allocator.
    Blocks,
}

impl StepLayer {
    #[inline]
    pub(crate) fn is_allocation(self, kind: EventKind) -> bool {
        match self {
            Self::Blocks => kind == EventKind::BLOCK_ALLOC,
            Self::Driver => {
                matches!(kind, EventKind::DEVICE_ALLOC | EventKind::ASYNC_ALLOC | EventKind::MANAGED_ALLOC)
            }
        }
    }

    /// Number of allocations among events that are counted by kind.
    pub(crate) fn count_allocations(self, counts: &[u64; 256]) -> u64 {
        let count = |kind: EventKind| counts[usize::from(kind.0)];
        match self {
            Self::Blocks => count(EventKind::BLOCK_ALLOC),
            Self::Driver => [EventKind::DEVICE_ALLOC, EventKind::ASYNC_ALLOC, EventKind::MANAGED_ALLOC]
                .map(count)
                .iter()
                .sum(),
        }
    }

    #[inline]
    pub(crate) fn is_free(self, kind: EventKind) -> bool {
        match self {
            Self::Blocks => kind == EventKind::BLOCK_FREE,
            Self::Driver => matches!(kind, EventKind::DEVICE_FREE | EventKind::ASYNC_FREE),
        }
    }
}

/// The allocation that begins steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum StepToken {
    /// Any size at this Python stack. Its stacks have the hint [`RECURRING`].
    Path(PathId),
    /// The first allocation of each call at this place. Stacks below it have the hint
    /// [`RECURRING`].
    Call(PathId),
    /// One size at a stack without Python frames. The kind separates a tensor from the segment that
    /// PyTorch's allocator requests for it: both have the same stack and often the same size.
    Exact { kind: EventKind, stack: StackId, size: u64 },
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
    Optimizer {
        line: u16,
        layer: StepLayer,
        /// The sequence number of the event right after a first call without events.
        unseen_call: Option<u64>,
    },
    /// Recurrences of this allocation.
    Period { token: StepToken, layer: StepLayer },
    /// No steps: an interval has this number of allocations, and ends before the next one.
    Allocations { every: u64, layer: StepLayer },
}

impl StepRule {
    /// The source of steps that reports show; `None` for a run without steps.
    pub(crate) fn source(self) -> Option<StepSource> {
        match self {
            Self::Marks => Some(StepSource::Marks),
            Self::Range(_) => Some(StepSource::Nvtx),
            Self::Optimizer { .. } => Some(StepSource::Optimizer),
            Self::Period { .. } => Some(StepSource::Period),
            Self::Allocations { .. } => None,
        }
    }

    /// The stacks for [`crate::callsite::symbols::StackSymbols::set_step_hints`].
    pub(crate) fn recurring_stacks(self) -> Option<RecurringStacks> {
        match self {
            Self::Period { token: StepToken::Path(path), .. } => Some(RecurringStacks::At(path)),
            Self::Period { token: StepToken::Call(place), .. } => Some(RecurringStacks::Below(place)),
            _ => None,
        }
    }
}

/// Detects the first event of each optimizer call.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptimizerBursts {
    /// The thread inside a call.
    inside: Option<ThreadId>,
}

impl OptimizerBursts {
    /// Observes an event of `thread`, inside or outside an optimizer call. True for the first event
    /// of a call.
    #[inline]
    pub(crate) fn observe(&mut self, thread: ThreadId, is_inside: bool) -> bool {
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
    /// The hint of events that begin steps; `None` if the rule does not go by hints.
    hint: Option<u16>,
    bursts: OptimizerBursts,
    /// The threads inside a call that begins steps.
    inside_call: SeededSet<ThreadId>,
    /// The unseen call of an optimizer rule that has not been counted, else the largest number.
    unseen_call: u64,
    /// Allocations before the interval ends.
    allocations_left: u64,
}

impl StepClock {
    pub(crate) fn new(source: StepRule) -> Self {
        let unseen_call = match source {
            StepRule::Optimizer { unseen_call, .. } => unseen_call,
            _ => None,
        };
        let allocations_left = match source {
            StepRule::Allocations { every, .. } => every,
            _ => 0,
        };
        let hint = match source {
            StepRule::Range(name) => Some(name),
            StepRule::Optimizer { line, .. } => Some(line),
            StepRule::Period { token: StepToken::Path(_), .. } => Some(RECURRING),
            _ => None,
        };
        Self {
            source,
            hint,
            bursts: OptimizerBursts::default(),
            inside_call: SeededSet::default(),
            unseen_call: unseen_call.unwrap_or(u64::MAX),
            allocations_left,
        }
    }

    pub(crate) fn step_rule(&self) -> StepRule {
        self.source
    }

    /// True if a step begins immediately before `event`. `hint` is the event's
    /// [`crate::timeline::nvtx_ranges::StepRangeNames::step_hint`].
    #[inline]
    pub(crate) fn begins_step(&mut self, event: &Event, stack: StackId, hint: u16) -> bool {
        // The common case: the event is neither in an optimizer call nor the first after one.
        if self.hint.is_some_and(|of_steps| of_steps != hint)
            && self.bursts.inside != Some(event.thread)
            && event.seq < self.unseen_call
        {
            return false;
        }
        self.applies_to(event, stack, hint)
    }

    /// As [`Self::begins_step`], for any event.
    #[inline(never)] // Inlined, it would take registers from the loop over events.
    fn applies_to(&mut self, event: &Event, stack: StackId, hint: u16) -> bool {
        // Memory from before the recording is listed at its begin, in no order.
        if event.flags & FLAG_EXISTED != 0 && !event.kind.is_driver_call() {
            return false;
        }
        match self.source {
            StepRule::Marks => event.kind == EventKind::MARK && event.aux[0] == MARK_STEP,
            StepRule::Range(name) => event.kind == EventKind::RANGE_BEGIN && hint == name,
            StepRule::Optimizer { line, layer, .. } => {
                let is_counted = layer.is_allocation(event.kind) || layer.is_free(event.kind);
                let is_first = is_counted && self.bursts.observe(event.thread, hint == line);
                let is_after_unseen_call = event.seq >= self.unseen_call && event.seq != NO_SEQ;
                if is_after_unseen_call {
                    self.unseen_call = u64::MAX;
                }
                is_first || is_after_unseen_call
            }
            StepRule::Period { token: StepToken::Path(_), layer } => {
                hint == RECURRING && layer.is_allocation(event.kind)
            }
            StepRule::Period { token: StepToken::Call(_), layer } => self.begins_call(event, hint, layer),
            StepRule::Period { token: StepToken::Exact { kind, stack: of_token, size }, .. } => {
                event.kind == kind && stack == of_token && event.size == size
            }
            StepRule::Allocations { every, layer } => self.counts_up(event, every, layer),
        }
    }

    /// True for the first allocation of a call. A call has ended if its thread was seen outside.
    fn begins_call(&mut self, event: &Event, hint: u16, layer: StepLayer) -> bool {
        let is_allocation = layer.is_allocation(event.kind);
        let is_seen = is_allocation || layer.is_free(event.kind);
        if !is_seen || hint == OTHER_TASK || event.python_stack == NodeId::NONE {
            return false;
        }
        if hint != RECURRING {
            self.inside_call.remove(&event.thread);
            return false;
        }
        is_allocation && self.inside_call.insert(event.thread)
    }

    /// Counts an allocation; true if it is the first of an interval.
    fn counts_up(&mut self, event: &Event, every: u64, layer: StepLayer) -> bool {
        if !layer.is_allocation(event.kind) {
            return false;
        }
        let begins = self.allocations_left == 0;
        if begins {
            self.allocations_left = every;
        }
        self.allocations_left -= 1;
        begins
    }
}
