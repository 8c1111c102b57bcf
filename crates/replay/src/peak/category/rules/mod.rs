//! Decides the category of one block from evidence, in one pure function.
//!
//! [`judge_block`] looks at where a block was allocated and where it was freed. A block allocated
//! in the forward pass and freed in the backward pass is an activation; one allocated in the
//! backward pass and freed in `zero_grad` is a gradient. The allocation alone decides only for
//! modules and optimizers. Blocks that no rule covers are [`Category::Unknown`]. Every verdict
//! names its rule and its confidence.
//!
//! `docs/analyses/index.md`, "Peak by category", has the same table. `rules::tests` checks the
//! usual cases, and properties that hold for every possible evidence.

use crate::callsite::call_context::CallContext;
pub(crate) use crate::report::{Category, CategoryRule, Confidence};
pub(crate) use crate::state::live_set::live_block::BlockOutcome;
pub(crate) use crate::state::workspace_size::WorkspaceSize;

/// How long a block lived, in steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockLifetime {
    /// Freed in the step that allocated it.
    WithinStep,
    /// Freed in the step after that.
    NextStep,
    /// Live for at least one whole step.
    Lasting,
    /// The trace has no steps, or their exact boundaries are unknown.
    Unknown,
}

/// Evidence about one block of the peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools)] // The facts are independent of each other.
pub(crate) struct BlockEvidence {
    /// Context of the allocation.
    pub allocated_in: CallContext,
    pub outcome: BlockOutcome,
    pub lifetime: BlockLifetime,
    /// A backward pass ran while the block was live.
    pub saw_backward: bool,
    /// The block was allocated just before a forward pass.
    pub is_before_forward: bool,
    /// The run or the step ended abnormally while the block was live, so its outcome means nothing.
    pub is_cut_short: bool,
    /// The backward pass frees most blocks of the same line.
    pub line_is_freed_in_backward: bool,
    /// How strongly its size indicates a workspace. `None` if it is not the size of one.
    pub workspace: Option<WorkspaceSize>,
}

impl BlockEvidence {
    /// True if the block is live at the end, or was for at least a whole step.
    pub(super) fn stays(self) -> bool {
        self.lifetime == BlockLifetime::Lasting || self.outcome == BlockOutcome::Live
    }
}

/// The category of a block, and how it was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CategoryVerdict {
    pub category: Category,
    /// `None` for an unknown category.
    pub confidence: Option<Confidence>,
    /// The rule that decided.
    pub rule: CategoryRule,
}

const fn verdict(category: Category, confidence: Confidence, rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category, confidence: Some(confidence), rule }
}

/// A verdict of unknown; `rule` names the reason.
pub(super) const fn unknown(rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category: Category::Unknown, confidence: None, rule }
}

/// Lasting blocks of plain program code. [`super::sizes`] may refine the verdict.
pub(super) const KEPT: CategoryRule = CategoryRule::RetainedByProgram;

/// Lasting blocks of a workspace's size. [`super::sizes`] may refine a verdict of low confidence.
pub(super) const WORKSPACE: CategoryRule = CategoryRule::WorkspaceSize;

/// The outcome is unknown, since the run or the step ended abnormally.
pub(super) const CUT: CategoryRule = CategoryRule::Interrupted;

/// Decides the category of a block.
pub(crate) fn judge_block(evidence: BlockEvidence) -> CategoryVerdict {
    use Category as C;
    use Confidence::{High, Medium};
    let BlockEvidence { allocated_in, outcome, lifetime, .. } = evidence;
    let lasts = lifetime == BlockLifetime::Lasting;
    if let Some(confidence) = workspace_confidence(evidence) {
        return verdict(C::Workspaces, confidence, WORKSPACE);
    }
    match allocated_in {
        CallContext::Module => {
            let is_moved = outcome == BlockOutcome::FreedIn(CallContext::Module);
            verdict(C::Parameters, if is_moved { Medium } else { High }, CategoryRule::AllocatedInModule)
        }
        CallContext::Initial if lasts => verdict(C::Parameters, Medium, CategoryRule::AllocatedInModule),
        CallContext::Initial => verdict(C::Temporaries, Medium, CategoryRule::AllocatedInInitialization),
        CallContext::Loading if outcome == BlockOutcome::FreedIn(CallContext::Loading) && !lasts => {
            verdict(C::Temporaries, Medium, CategoryRule::FreedInSamePass)
        }
        CallContext::Loading => verdict(C::Parameters, Medium, CategoryRule::AllocatedWhileLoading),
        CallContext::Data => {
            verdict(C::Inputs, if lasts { Medium } else { High }, CategoryRule::AllocatedWhileFetching)
        }
        CallContext::Seed => verdict(C::Temporaries, High, CategoryRule::BeginsBackward),
        CallContext::ZeroGrad => verdict(C::Temporaries, Medium, CategoryRule::AllocatedInZeroGrad),
        CallContext::Optimizer | CallContext::OptimizerState => judge_optimizer_block(evidence),
        CallContext::Backward => judge_backward_block(evidence),
        CallContext::Forward => judge_forward_block(evidence),
        CallContext::Program => judge_program_block(evidence),
        CallContext::Unknown => unknown(CategoryRule::NoPythonStack),
    }
}

/// How certain it is that a block is a library's workspace; `None` if it is not one. A workspace
/// is allocated at the first matrix multiplication of a thread, and stays. Where parameters,
/// gradients or the program's own tensors are allocated, a power of two means little.
fn workspace_confidence(evidence: BlockEvidence) -> Option<Confidence> {
    let lasts = evidence.lifetime == BlockLifetime::Lasting;
    match (evidence.workspace?, evidence.allocated_in) {
        (
            WorkspaceSize::Distinctive,
            CallContext::Forward | CallContext::Backward | CallContext::Program | CallContext::Unknown,
        ) => Some(if lasts { Confidence::High } else { Confidence::Medium }),
        _ if !evidence.stays() => None,
        (WorkspaceSize::PowerOfTwo, CallContext::Forward) => Some(Confidence::Medium),
        (WorkspaceSize::PowerOfTwo, CallContext::Backward) => Some(Confidence::Low),
        _ => None,
    }
}

fn judge_optimizer_block(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Medium};
    let makes_state = evidence.allocated_in == CallContext::OptimizerState;
    match (evidence.outcome, evidence.lifetime) {
        (
            BlockOutcome::FreedIn(CallContext::Optimizer | CallContext::OptimizerState),
            BlockLifetime::WithinStep,
        ) => verdict(Category::Temporaries, High, CategoryRule::FreedInSamePass),
        (
            BlockOutcome::FreedIn(CallContext::Optimizer | CallContext::OptimizerState),
            BlockLifetime::Unknown,
        ) if !makes_state => verdict(Category::Temporaries, Medium, CategoryRule::FreedInSamePass),
        _ if makes_state => verdict(Category::OptimizerState, High, CategoryRule::AllocatedAsState),
        _ if evidence.is_cut_short => unknown(CUT),
        (_, BlockLifetime::Lasting) => {
            verdict(Category::OptimizerState, High, CategoryRule::OutlivedOptimizer)
        }
        _ => verdict(Category::OptimizerState, Medium, CategoryRule::OutlivedOptimizer),
    }
}

fn judge_backward_block(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match (evidence.outcome, evidence.lifetime) {
        (BlockOutcome::FreedIn(CallContext::ZeroGrad), _) => {
            verdict(Category::Gradients, High, CategoryRule::FreedInZeroGrad)
        }
        (BlockOutcome::FreedIn(CallContext::Backward), BlockLifetime::WithinStep) => {
            verdict(Category::Temporaries, High, CategoryRule::FreedInSamePass)
        }
        (
            BlockOutcome::FreedIn(CallContext::Backward | CallContext::Unknown),
            BlockLifetime::WithinStep | BlockLifetime::Unknown,
        ) => verdict(Category::Temporaries, Medium, CategoryRule::FreedInSamePass),
        _ if evidence.is_cut_short => verdict(Category::Temporaries, Low, CUT),
        _ => verdict(Category::Gradients, Medium, CategoryRule::OutlivedBackward),
    }
}

fn judge_forward_block(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match evidence.outcome {
        BlockOutcome::FreedIn(CallContext::Backward) => {
            let is_late = evidence.lifetime == BlockLifetime::Lasting;
            verdict(Category::Activations, if is_late { Medium } else { High }, CategoryRule::FreedInBackward)
        }
        _ if evidence.is_cut_short => {
            let confidence = if evidence.line_is_freed_in_backward { Medium } else { Low };
            verdict(Category::Activations, confidence, CUT)
        }
        _ if evidence.lifetime == BlockLifetime::Lasting => {
            verdict(Category::Retained, High, CategoryRule::RetainedByForward)
        }
        // A block that is live at the end may also be leaked.
        BlockOutcome::Live if evidence.saw_backward => {
            verdict(Category::Activations, Low, CategoryRule::OutlivedBackward)
        }
        _ if evidence.saw_backward => verdict(Category::Activations, Medium, CategoryRule::OutlivedBackward),
        BlockOutcome::FreedIn(CallContext::Forward) => {
            verdict(Category::Temporaries, High, CategoryRule::FreedInSamePass)
        }
        BlockOutcome::FreedIn(_) => verdict(Category::Temporaries, Medium, CategoryRule::FreedBeforeBackward),
        BlockOutcome::Live | BlockOutcome::Unknown => unknown(CategoryRule::RetainedByForward),
    }
}

fn judge_program_block(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{Low, Medium};
    if evidence.lifetime == BlockLifetime::Lasting {
        return unknown(KEPT);
    }
    match evidence.outcome {
        _ if evidence.is_before_forward => {
            verdict(Category::Inputs, Medium, CategoryRule::AllocatedBeforeForward)
        }
        BlockOutcome::FreedIn(CallContext::Backward) => {
            verdict(Category::Activations, Medium, CategoryRule::FreedInBackward)
        }
        _ if evidence.is_cut_short => unknown(CUT),
        BlockOutcome::FreedIn(_) if evidence.saw_backward => {
            verdict(Category::Activations, Low, CategoryRule::OutlivedBackward)
        }
        BlockOutcome::FreedIn(_) => verdict(Category::Temporaries, Low, CategoryRule::FreedBeforeBackward),
        BlockOutcome::Live | BlockOutcome::Unknown => unknown(KEPT),
    }
}

#[cfg(test)]
mod tests;
