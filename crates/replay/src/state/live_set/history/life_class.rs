//! Classes of blocks by what decides their category: where they were allocated and freed, and how
//! long they lived.
//!
//! The category of a class is decided after the pass ([`crate::peak::category::over_time`]), when
//! the steps and the end of the run are known.

use std::collections::VecDeque;

use crate::callsite::call_context::CallContext;
use crate::state::live_set::LiveBlock;
use crate::state::live_set::live_block::BlockOutcome;
use crate::state::live_set::peak_blocks::BlockFree;
use crate::state::workspace_size::{WorkspaceSize, workspace_size};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// Limit of classes that differ in their size.
const MAX_SIZED_CLASSES: usize = 1024;
/// Limit of remembered allocations before forward passes. Only those of two steps are used.
const MAX_BEFORE_FORWARD: usize = 64;
/// Limit of remembered steps with an out-of-memory error.
const MAX_FAILED_STEPS: usize = 64;
/// The highest age that a class has; older blocks have it, too.
pub(crate) const MAX_AGE_STEPS: u32 = 2;

/// What decides the category of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // The facts are independent of each other.
pub(crate) struct LifeClass {
    /// Context of the allocation.
    pub allocated_in: CallContext,
    pub outcome: BlockOutcome,
    /// Age at the free or at the end, at most [`MAX_AGE_STEPS`].
    pub age_steps: u32,
    /// A backward pass ran while the block was live.
    pub saw_backward: bool,
    /// The block was allocated just before a forward pass.
    pub is_before_forward: bool,
    /// Allocated in a step with an out-of-memory error.
    pub is_of_failed_step: bool,
    /// Its size is that of a library's workspace.
    pub workspace: Option<WorkspaceSize>,
    /// The requested bytes where blocks of equal size are compared; else 0.
    pub bytes: u64,
}

/// How the life of a block ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LifeEnd {
    /// `None` if the block was live at the end of the run.
    free: Option<BlockFree>,
    step: u32,
    /// The event that removed it.
    event: u64,
    /// The last event in a backward pass up to then.
    last_backward: u64,
}

/// Allocations of one step by plain program code just before a forward pass.
#[derive(Clone, Copy, Debug)]
struct BeforeForward {
    step: u32,
    /// The allocations are between these events.
    begin: u64,
    end: u64,
}

/// Finds the classes of blocks, and numbers them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LifeClasses {
    all: Vec<LifeClass>,
    /// Number of blocks by class.
    counts: Vec<u64>,
    numbers: SeededMap<LifeClass, usize>,
    contexts: Vec<CallContext>,
    /// The last event in a backward pass.
    last_backward: u64,
    /// The last allocation in any pass, with its context and step.
    last_pass: (u64, Option<(CallContext, u32)>),
    before_forward: VecDeque<BeforeForward>,
    /// Steps with an out-of-memory error, the last ones.
    failed_steps: Vec<u32>,
}

impl LifeClasses {
    /// Follows an allocation. `context` is that of the block's stack.
    #[inline]
    pub(crate) fn on_alloc(&mut self, block: &LiveBlock, context: CallContext) {
        self.note_context(block.stack, context);
        match context {
            CallContext::Program
            | CallContext::Unknown
            | CallContext::Data
            | CallContext::ZeroGrad
            | CallContext::Seed => {}
            _ => self.on_pass(block, context),
        }
    }

    fn on_pass(&mut self, block: &LiveBlock, context: CallContext) {
        let (begin, last) = self.last_pass;
        let pass = Some((context, block.step));
        if context == CallContext::Forward && last != pass && begin + 1 < block.serial {
            self.before_forward.push_back(BeforeForward { step: block.step, begin, end: block.serial });
            if self.before_forward.len() > MAX_BEFORE_FORWARD {
                self.before_forward.pop_front();
            }
        }
        if context == CallContext::Backward {
            self.last_backward = block.serial;
        }
        self.last_pass = (block.serial, pass);
    }

    /// Follows a free by an event in `context`.
    #[inline]
    pub(crate) fn on_free(&mut self, stack: StackId, context: CallContext, event: u64) {
        self.note_context(stack, context);
        if context == CallContext::Backward {
            self.last_backward = event;
        }
    }

    /// The end of a block that event number `event` removes.
    #[inline]
    pub(crate) fn end_of_life(&self, free: BlockFree, event: u64) -> LifeEnd {
        LifeEnd { free: Some(free), step: free.step, event, last_backward: self.last_backward }
    }

    /// The end of blocks that are never freed. `step` is the last step.
    pub(crate) fn end_of_run(&self, step: u32) -> LifeEnd {
        LifeEnd { free: None, step, event: u64::MAX, last_backward: self.last_backward }
    }

    /// Follows an out-of-memory error.
    pub(crate) fn on_oom(&mut self, step: u32) {
        if self.failed_steps.last() != Some(&step) {
            self.failed_steps.push(step);
        }
        if self.failed_steps.len() > MAX_FAILED_STEPS {
            self.failed_steps.remove(0);
        }
    }

    #[inline]
    fn note_context(&mut self, stack: StackId, context: CallContext) {
        let stack = stack.0 as usize;
        if stack >= self.contexts.len() {
            self.contexts.resize(stack + 1, CallContext::Unknown);
        }
        self.contexts[stack] = context;
    }

    /// The number of a block's class.
    pub(crate) fn number_of_block(&mut self, block: &LiveBlock, life: LifeEnd) -> usize {
        let context_of = |stack: StackId| self.contexts.get(stack.0 as usize).copied();
        let allocated_in = context_of(block.stack).unwrap_or_default();
        let outcome = life.free.map_or(BlockOutcome::Live, |free| {
            free.stack.and_then(context_of).map_or(BlockOutcome::Unknown, BlockOutcome::FreedIn)
        });
        let age_steps = life.step.saturating_sub(block.step).min(MAX_AGE_STEPS);
        let is_freed = matches!(outcome, BlockOutcome::FreedIn(_));
        let stays = age_steps == MAX_AGE_STEPS || !is_freed;
        let workspace = workspace_size(block.bytes);
        let is_compared = stays && matches!(allocated_in, CallContext::Program | CallContext::Backward)
            || workspace.is_some();
        let number = self.number_of(LifeClass {
            allocated_in,
            outcome,
            age_steps,
            saw_backward: life.last_backward > block.serial,
            is_before_forward: allocated_in == CallContext::Program
                && self.is_before_forward(block, life.event),
            is_of_failed_step: self.failed_steps.contains(&block.step),
            workspace,
            bytes: if is_compared { block.requested_bytes.unwrap_or(block.bytes) } else { 0 },
        });
        self.counts[number] += 1;
        number
    }

    fn number_of(&mut self, class: LifeClass) -> usize {
        if let Some(number) = self.numbers.get(&class) {
            return *number;
        }
        if class.bytes > 0 && self.all.len() >= MAX_SIZED_CLASSES {
            return self.number_of(LifeClass { bytes: 0, ..class });
        }
        let number = self.all.len();
        self.all.push(class);
        self.counts.push(0);
        self.numbers.insert(class, number);
        number
    }

    /// True if the block, removed by event number `removed`, was there when the pass began.
    fn is_before_forward(&self, block: &LiveBlock, removed: u64) -> bool {
        let is_in =
            |one: &&BeforeForward| one.begin < block.serial && block.serial < one.end && one.end < removed;
        self.before_forward.iter().rev().find(is_in).is_some_and(|one| one.step == block.step)
    }

    /// The classes by number, with the number of blocks that were live at a high.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&LifeClass, u64)> {
        self.all.iter().zip(self.counts.iter().copied())
    }
}
