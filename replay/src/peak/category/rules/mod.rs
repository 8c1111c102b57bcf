//! From evidence to a category: one block, one pure function.
//!
//! Definition: `docs/analyses.md`, "Peak by category", has the same table. What a block is for shows in where it was born and
//! how it went: what the forward pass makes and the backward pass gives back is an activation, what the backward pass makes
//! and `zero_grad` gives back a gradient. A birth alone says that only of modules and of optimizers.
//!
//! Constraint: a number in a report is believed. Consequence: what the rules do not tell is `unknown`, and every answer says
//! by which rule it was found and how sure that is.

use super::context::CallContext;

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Category {
    /// Of modules, their buffers included.
    Parameters,
    /// What the backward pass leaves.
    Gradients,
    /// What an optimizer keeps from step to step.
    OptimizerState,
    /// What the forward pass makes and the backward pass, or the program after it, needs.
    Activations,
    /// What is gone when the pass is over that made it.
    Temporaries,
    /// What libraries compute in.
    Workspaces,
    /// Batches.
    Inputs,
    /// Nothing tells.
    Unknown,
}

impl Category {
    /// In reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::Activations => "activations",
            Self::Temporaries => "temporaries",
            Self::Workspaces => "workspaces",
            Self::Inputs => "inputs",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure a rule is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Confidence {
    /// Another answer would be a surprise as well.
    Low,
    /// Birth or death tells; the other does not speak against it.
    Medium,
    /// Birth and death tell the same.
    High,
}

impl Confidence {
    /// In reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

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
    pub rule: &'static str,
}

const fn verdict(category: Category, confidence: Confidence, rule: &'static str) -> CategoryVerdict {
    CategoryVerdict { category, confidence: Some(confidence), rule }
}

/// No rule tells.
pub(super) const fn unknown(rule: &'static str) -> CategoryVerdict {
    CategoryVerdict { category: Category::Unknown, confidence: None, rule }
}

/// What lasts, and was made by lines that tell nothing: sizes may tell more ([`super::sizes`]).
pub(super) const KEPT: &str = "kept_by_program";

/// A size and a stay: where it is less than medium sure, [`super::sizes`] tells more.
pub(super) const WORKSPACE: &str = "workspace_size";

/// How it went says nothing, because the run or the step was broken off.
pub(super) const CUT: &str = "cut_short";

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
            verdict(C::Parameters, if moved_on { Medium } else { High }, "born_in_module")
        }
        CallContext::Initial if lasts => verdict(C::Parameters, Medium, "born_in_module"),
        CallContext::Initial => verdict(C::Temporaries, Medium, "born_in_initialisation"),
        CallContext::Loading if gone == BlockFate::In(CallContext::Loading) && !lasts => {
            verdict(C::Temporaries, Medium, "died_where_born")
        }
        CallContext::Loading => verdict(C::Parameters, Medium, "born_while_loading"),
        CallContext::Data => verdict(C::Inputs, if lasts { Medium } else { High }, "born_while_fetching"),
        CallContext::Seed => verdict(C::Temporaries, High, "begins_backward"),
        CallContext::ZeroGrad => verdict(C::Temporaries, Medium, "born_in_zero_grad"),
        CallContext::Optimizer | CallContext::OptimizerState => of_optimizer(evidence),
        CallContext::Backward => of_backward(evidence),
        CallContext::Forward => of_forward(evidence),
        CallContext::Program => of_program(evidence),
        CallContext::Unknown => unknown("no_python_stack"),
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
            verdict(Category::Temporaries, High, "died_where_born")
        }
        (BlockFate::In(CallContext::Optimizer | CallContext::OptimizerState), BlockLifetime::Untold)
            if !makes_state =>
        {
            verdict(Category::Temporaries, Medium, "died_where_born")
        }
        _ if makes_state => verdict(Category::OptimizerState, High, "born_as_state"),
        _ if evidence.is_cut => unknown(CUT),
        (_, BlockLifetime::Lasting) => verdict(Category::OptimizerState, High, "outlived_optimizer"),
        _ => verdict(Category::OptimizerState, Medium, "outlived_optimizer"),
    }
}

fn of_backward(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match (evidence.gone, evidence.lifetime) {
        (BlockFate::In(CallContext::ZeroGrad), _) => verdict(Category::Gradients, High, "died_in_zero_grad"),
        (BlockFate::In(CallContext::Backward), BlockLifetime::Step) => {
            verdict(Category::Temporaries, High, "died_where_born")
        }
        (
            BlockFate::In(CallContext::Backward | CallContext::Unknown),
            BlockLifetime::Step | BlockLifetime::Untold,
        ) => verdict(Category::Temporaries, Medium, "died_where_born"),
        _ if evidence.is_cut => verdict(Category::Temporaries, Low, CUT),
        _ => verdict(Category::Gradients, Medium, "outlived_backward"),
    }
}

fn of_forward(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{High, Low, Medium};
    match evidence.gone {
        BlockFate::In(CallContext::Backward) => {
            let late = evidence.lifetime == BlockLifetime::Lasting;
            verdict(Category::Activations, if late { Medium } else { High }, "died_in_backward")
        }
        _ if evidence.is_cut => {
            let sure = if evidence.line_dies_backward { Medium } else { Low };
            verdict(Category::Activations, sure, CUT)
        }
        _ if evidence.lifetime == BlockLifetime::Lasting => unknown("kept_by_forward"),
        // What is there at the end may be what leaks, too young to tell.
        BlockFate::Never if evidence.saw_backward => verdict(Category::Activations, Low, "outlived_backward"),
        _ if evidence.saw_backward => verdict(Category::Activations, Medium, "outlived_backward"),
        BlockFate::In(CallContext::Forward) => verdict(Category::Temporaries, High, "died_where_born"),
        BlockFate::In(_) => verdict(Category::Temporaries, Medium, "died_before_backward"),
        BlockFate::Never | BlockFate::Lost => unknown("kept_by_forward"),
    }
}

fn of_program(evidence: BlockEvidence) -> CategoryVerdict {
    use Confidence::{Low, Medium};
    if evidence.lifetime == BlockLifetime::Lasting {
        return unknown(KEPT);
    }
    match evidence.gone {
        _ if evidence.is_before_forward => verdict(Category::Inputs, Medium, "born_before_forward"),
        BlockFate::In(CallContext::Backward) => verdict(Category::Activations, Medium, "died_in_backward"),
        _ if evidence.is_cut => unknown(CUT),
        BlockFate::In(_) if evidence.saw_backward => verdict(Category::Activations, Low, "outlived_backward"),
        BlockFate::In(_) => verdict(Category::Temporaries, Low, "died_before_backward"),
        BlockFate::Never | BlockFate::Lost => unknown(KEPT),
    }
}

#[cfg(test)]
mod tests;
