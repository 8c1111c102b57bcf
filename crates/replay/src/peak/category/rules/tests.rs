//! Checks the usual cases by name, and properties over every possible evidence.

use super::*;

const CONTEXTS: [CallContext; 12] = [
    CallContext::Backward,
    CallContext::Seed,
    CallContext::Forward,
    CallContext::Optimizer,
    CallContext::OptimizerState,
    CallContext::ZeroGrad,
    CallContext::Module,
    CallContext::Initial,
    CallContext::Loading,
    CallContext::Data,
    CallContext::Program,
    CallContext::Unknown,
];
const LIFETIMES: [BlockLifetime; 4] =
    [BlockLifetime::WithinStep, BlockLifetime::NextStep, BlockLifetime::Lasting, BlockLifetime::Unknown];

fn evidence(allocated_in: CallContext, outcome: BlockOutcome, lifetime: BlockLifetime) -> BlockEvidence {
    BlockEvidence {
        allocated_in,
        outcome,
        lifetime,
        saw_backward: false,
        is_before_forward: false,
        is_cut_short: false,
        line_is_freed_in_backward: false,
        workspace: None,
    }
}

fn category(allocated_in: CallContext, outcome: BlockOutcome, lifetime: BlockLifetime) -> Category {
    judge_block(evidence(allocated_in, outcome, lifetime)).category
}

/// All combinations of evidence.
fn all_evidence() -> impl Iterator<Item = BlockEvidence> {
    let outcomes =
        [BlockOutcome::Live, BlockOutcome::Unknown].into_iter().chain(CONTEXTS.map(BlockOutcome::FreedIn));
    let pairs = outcomes.flat_map(|outcome| CONTEXTS.map(|context| (context, outcome)));
    pairs
        .flat_map(|(context, outcome)| LIFETIMES.map(|lifetime| evidence(context, outcome, lifetime)))
        .flat_map(|evidence| {
            (0..48u8).map(move |bits| BlockEvidence {
                saw_backward: bits & 1 != 0,
                is_before_forward: bits & 2 != 0,
                is_cut_short: bits & 4 != 0,
                line_is_freed_in_backward: bits & 8 != 0,
                workspace: [None, Some(WorkspaceSize::Distinctive), Some(WorkspaceSize::PowerOfTwo)]
                    [usize::from(bits / 16)],
                ..evidence
            })
        })
}

#[test]
fn usual_blocks_of_a_training_have_their_categories() {
    use CallContext::{Backward, Forward, Module, Optimizer, OptimizerState, Program, ZeroGrad};
    let cases = [
        (Module, BlockOutcome::Live, BlockLifetime::Lasting, Category::Parameters),
        (Backward, BlockOutcome::FreedIn(ZeroGrad), BlockLifetime::NextStep, Category::Gradients),
        (Backward, BlockOutcome::Live, BlockLifetime::Lasting, Category::Gradients),
        (Backward, BlockOutcome::FreedIn(Program), BlockLifetime::NextStep, Category::Gradients),
        (Backward, BlockOutcome::FreedIn(Backward), BlockLifetime::WithinStep, Category::Temporaries),
        (OptimizerState, BlockOutcome::Live, BlockLifetime::Lasting, Category::OptimizerState),
        (Optimizer, BlockOutcome::FreedIn(Optimizer), BlockLifetime::WithinStep, Category::Temporaries),
        (Optimizer, BlockOutcome::FreedIn(Optimizer), BlockLifetime::NextStep, Category::OptimizerState),
        (Forward, BlockOutcome::FreedIn(Backward), BlockLifetime::WithinStep, Category::Activations),
        (Forward, BlockOutcome::FreedIn(Forward), BlockLifetime::WithinStep, Category::Temporaries),
        (Forward, BlockOutcome::Live, BlockLifetime::Lasting, Category::Retained),
        (Program, BlockOutcome::Live, BlockLifetime::Lasting, Category::Unknown),
    ];
    for (allocated_in, outcome, lifetime, expected) in cases {
        assert_eq!(
            category(allocated_in, outcome, lifetime),
            expected,
            "{allocated_in:?} {outcome:?} {lifetime:?}"
        );
    }
}

#[test]
fn verdict_has_a_confidence_unless_category_is_unknown() {
    for evidence in all_evidence() {
        let verdict = judge_block(evidence);
        assert_eq!(verdict.category == Category::Unknown, verdict.confidence.is_none(), "{evidence:?}");
    }
}

#[test]
fn without_a_python_stack_only_a_workspace_size_decides() {
    for evidence in all_evidence().filter(|evidence| evidence.allocated_in == CallContext::Unknown) {
        let category = judge_block(evidence).category;
        assert!(matches!(category, Category::Unknown | Category::Workspaces), "{evidence:?}");
        assert!(
            category == Category::Unknown || evidence.workspace == Some(WorkspaceSize::Distinctive),
            "{evidence:?}"
        );
    }
}

#[test]
fn cut_short_run_never_raises_confidence() {
    for evidence in all_evidence().filter(|evidence| !evidence.is_cut_short) {
        let (complete, cut) =
            (judge_block(evidence), judge_block(BlockEvidence { is_cut_short: true, ..evidence }));
        assert!(complete == cut || cut.rule == CUT, "{evidence:?}");
        if cut.rule == CUT {
            assert!(cut.confidence < Some(Confidence::High), "{evidence:?}");
        }
    }
}

#[test]
fn gradients_need_the_backward_pass_and_optimizer_state_an_optimizer() {
    for evidence in all_evidence() {
        let is_in_its_context = match judge_block(evidence).category {
            Category::Gradients => evidence.allocated_in == CallContext::Backward,
            Category::OptimizerState => {
                matches!(evidence.allocated_in, CallContext::Optimizer | CallContext::OptimizerState)
            }
            _ => true,
        };
        assert!(is_in_its_context, "{evidence:?}");
    }
}
