//! From evidence to a category: one block, one pure function.
//!
//! Definition: `docs/analyses.md`, "Peak by category", has the same table. What a block is for shows in where it was born and
//! how it went: what the forward pass makes and the backward pass gives back is an activation, what the backward pass makes
//! and `zero_grad` gives back a gradient. A birth alone says that only of modules and of optimizers.
//!
//! Constraint: a number in a report is believed. Consequence: what the rules do not tell is `unknown`, and every answer says
//! by which rule it was found and how sure that is.

use super::context::CallContext;
pub(crate) use crate::report::{Category, CategoryRule, Confidence};

/// How a block went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockFate {
    /// It is there at the end.
    Never,
    /// The event is missing.
    Lost,
    /// It was given back in such a place.
    In(CallContext),
}

/// How long it was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockLifetime {
    /// It went in the step in which it came.
    Step,
    /// In the next one.
    Next,
    /// It was there for at least one whole step.
    Lasting,
    /// Steps are not told, or not where they begin.
    Untold,
}

/// How much a size says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkspaceSize {
    /// Hardly a tensor has it.
    Odd,
    /// A power of two.
    Round,
}

/// What is known of a block of the peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
pub(crate) struct BlockEvidence {
    /// Where it was allocated.
    pub born: CallContext,
    /// How it went.
    pub gone: BlockFate,
    /// How long it was there.
    pub lifetime: BlockLifetime,
    /// A backward pass ran after it came and before it went.
    pub saw_backward: bool,
    /// It came when a forward pass was about to begin.
    pub is_before_forward: bool,
    /// The run, or the step, was broken off while it was there: how it went says nothing.
    pub is_cut: bool,
    /// Blocks of its line are mostly given back by the backward pass.
    pub line_dies_backward: bool,
    /// It has the size of a workspace: one that nothing else has, or one that tensors have as well.
    pub workspace: Option<WorkspaceSize>,
}

impl BlockEvidence {
    /// It is there at the end, or was for at least a whole step.
    pub(super) fn stays(self) -> bool {
        self.lifetime == BlockLifetime::Lasting || self.gone == BlockFate::Never
    }
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CategoryVerdict {
    /// What it is for.
    pub category: Category,
    /// How sure that is; nobody is sure of what is not known.
    pub confidence: Option<Confidence>,
    /// What told it.
    pub rule: CategoryRule,
}

const fn verdict(category: Category, confidence: Confidence, rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category, confidence: Some(confidence), rule }
}

/// No rule tells.
pub(super) const fn unknown(rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category: Category::Unknown, confidence: None, rule }
}

/// What lasts, and was made by lines that tell nothing: sizes may tell more ([`super::sizes`]).
pub(super) const KEPT: CategoryRule = CategoryRule::KeptByProgram;

/// A size and a stay: where it is less than medium sure, [`super::sizes`] tells more.
pub(super) const WORKSPACE: CategoryRule = CategoryRule::WorkspaceSize;

/// How it went says nothing, because the run or the step was broken off.
pub(super) const CUT: CategoryRule = CategoryRule::CutShort;

/// The category of a block.
pub(crate) fn judge(evidence: BlockEvidence) -> CategoryVerdict {
    use Category as C;
    use Confidence::{High, Medium};
    let BlockEvidence { born, gone, lifetime, .. } = evidence;
    let lasts = lifetime == BlockLifetime::Lasting;
    if let Some(sure) = workspace(evidence) {
        return verdict(C::Workspaces, sure, WORKSPACE);
    }
    match born {
        CallContext::Module => {
            let moved_on = gone == BlockFate::In(CallContext::Module);
            verdict(C::Parameters, if moved_on { Medium } else { High }, CategoryRule::BornInModule)
        }
        CallContext::Initial if lasts => verdict(C::Parameters, Medium, CategoryRule::BornInModule),
        CallContext::Initial => verdict(C::Temporaries, Medium, CategoryRule::BornInInitialisation),
        CallContext::Loading if gone == BlockFate::In(CallContext::Loading) && !lasts => {
            verdict(C::Temporaries, Medium, CategoryRule::DiedWhereBorn)
        }
        CallContext::Loading => verdict(C::Parameters, Medium, CategoryRule::BornWhileLoading),
        CallContext::Data => {
            verdict(C::Inputs, if lasts { Medium } else { High }, CategoryRule::BornWhileFetching)
        }
        CallContext::Seed => verdict(C::Temporaries, High, CategoryRule::BeginsBackward),
        CallContext::ZeroGrad => verdict(C::Temporaries, Medium, CategoryRule::BornInZeroGrad),
        CallContext::Optimizer | CallContext::OptimizerState => of_optimizer(evidence),
        CallContext::Backward => of_backward(evidence),
        CallContext::Forward => of_forward(evidence),
        CallContext::Program => of_program(evidence),
        CallContext::Unknown => unknown(CategoryRule::NoPythonStack),
    }
}

/// How sure it is that the block is one, if it may be. A workspace comes with the first matrices that a thread multiplies, and
/// stays. Where parameters, their gradients or the program's own tensors come, a round size says little or nothing.
fn workspace(evidence: BlockEvidence) -> Option<Confidence> {
    let lasts = evidence.lifetime == BlockLifetime::Lasting;
    match (evidence.workspace?, evidence.born) {
        (
            WorkspaceSize::Odd,
            CallContext::Forward | CallContext::Backward | CallContext::Program | CallContext::Unknown,
        ) => Some(if lasts { Confidence::High } else { Confidence::Medium }),
        _ if !evidence.stays() => None,
        (WorkspaceSize::Round, CallContext::Forward) => Some(Confidence::Medium),
        (WorkspaceSize::Round, CallContext::Backward) => Some(Confidence::Low),
        _ => None,
    }
}

fn of_optimizer(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Medium};
    let makes_state = evidence.born == CallContext::OptimizerState;
    match (evidence.gone, evidence.lifetime) {
        (BlockFate::In(CallContext::Optimizer | CallContext::OptimizerState), BlockLifetime::Step) => {
            verdict(Category::Temporaries, High, CategoryRule::DiedWhereBorn)
        }
        (BlockFate::In(CallContext::Optimizer | CallContext::OptimizerState), BlockLifetime::Untold)
            if !makes_state =>
        {
            verdict(Category::Temporaries, Medium, CategoryRule::DiedWhereBorn)
        }
        _ if makes_state => verdict(Category::OptimizerState, High, CategoryRule::BornAsState),
        _ if evidence.is_cut => unknown(CUT),
        (_, BlockLifetime::Lasting) => {
            verdict(Category::OptimizerState, High, CategoryRule::OutlivedOptimizer)
        }
        _ => verdict(Category::OptimizerState, Medium, CategoryRule::OutlivedOptimizer),
    }
}

fn of_backward(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match (evidence.gone, evidence.lifetime) {
        (BlockFate::In(CallContext::ZeroGrad), _) => {
            verdict(Category::Gradients, High, CategoryRule::DiedInZeroGrad)
        }
        (BlockFate::In(CallContext::Backward), BlockLifetime::Step) => {
            verdict(Category::Temporaries, High, CategoryRule::DiedWhereBorn)
        }
        (
            BlockFate::In(CallContext::Backward | CallContext::Unknown),
            BlockLifetime::Step | BlockLifetime::Untold,
        ) => verdict(Category::Temporaries, Medium, CategoryRule::DiedWhereBorn),
        _ if evidence.is_cut => verdict(Category::Temporaries, Low, CUT),
        _ => verdict(Category::Gradients, Medium, CategoryRule::OutlivedBackward),
    }
}

fn of_forward(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match evidence.gone {
        BlockFate::In(CallContext::Backward) => {
            let late = evidence.lifetime == BlockLifetime::Lasting;
            verdict(Category::Activations, if late { Medium } else { High }, CategoryRule::DiedInBackward)
        }
        _ if evidence.is_cut => {
            let sure = if evidence.line_dies_backward { Medium } else { Low };
            verdict(Category::Activations, sure, CUT)
        }
        _ if evidence.lifetime == BlockLifetime::Lasting => unknown(CategoryRule::KeptByForward),
        // What is there at the end may be what leaks, too young to tell.
        BlockFate::Never if evidence.saw_backward => {
            verdict(Category::Activations, Low, CategoryRule::OutlivedBackward)
        }
        _ if evidence.saw_backward => verdict(Category::Activations, Medium, CategoryRule::OutlivedBackward),
        BlockFate::In(CallContext::Forward) => {
            verdict(Category::Temporaries, High, CategoryRule::DiedWhereBorn)
        }
        BlockFate::In(_) => verdict(Category::Temporaries, Medium, CategoryRule::DiedBeforeBackward),
        BlockFate::Never | BlockFate::Lost => unknown(CategoryRule::KeptByForward),
    }
}

fn of_program(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{Low, Medium};
    if evidence.lifetime == BlockLifetime::Lasting {
        return unknown(KEPT);
    }
    match evidence.gone {
        _ if evidence.is_before_forward => verdict(Category::Inputs, Medium, CategoryRule::BornBeforeForward),
        BlockFate::In(CallContext::Backward) => {
            verdict(Category::Activations, Medium, CategoryRule::DiedInBackward)
        }
        _ if evidence.is_cut => unknown(CUT),
        BlockFate::In(_) if evidence.saw_backward => {
            verdict(Category::Activations, Low, CategoryRule::OutlivedBackward)
        }
        BlockFate::In(_) => verdict(Category::Temporaries, Low, CategoryRule::DiedBeforeBackward),
        BlockFate::Never | BlockFate::Lost => unknown(KEPT),
    }
}

#[cfg(test)]
mod tests;
