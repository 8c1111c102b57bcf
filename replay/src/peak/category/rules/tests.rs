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

fn evidence(allocated_in: CallContext, fate: BlockFate, lifetime: BlockLifetime) -> BlockEvidence {
    BlockEvidence {
        allocated_in,
        fate,
        lifetime,
        saw_backward: false,
        is_before_forward: false,
        is_cut_short: false,
        line_is_freed_in_backward: false,
        workspace: None,
    }
}

fn category(allocated_in: CallContext, fate: BlockFate, lifetime: BlockLifetime) -> Category {
    judge_block(evidence(allocated_in, fate, lifetime)).category
}

/// All combinations of evidence.
fn all_evidence() -> impl Iterator<Item = BlockEvidence> {
    let fates = [BlockFate::Live, BlockFate::Unknown].into_iter().chain(CONTEXTS.map(BlockFate::FreedIn));
    let pairs = fates.flat_map(|fate| CONTEXTS.map(|context| (context, fate)));
    pairs.flat_map(|(context, fate)| LIFETIMES.map(|lifetime| evidence(context, fate, lifetime))).flat_map(
        |evidence| {
            (0..48u8).map(move |bits| BlockEvidence {
                saw_backward: bits & 1 != 0,
                is_before_forward: bits & 2 != 0,
                is_cut_short: bits & 4 != 0,
                line_is_freed_in_backward: bits & 8 != 0,
                workspace: [None, Some(WorkspaceSize::Distinctive), Some(WorkspaceSize::PowerOfTwo)]
                    [usize::from(bits / 16)],
                ..evidence
            })
        },
    )
}

#[test]
fn usual_blocks_of_a_training_have_their_categories() {
    use CallContext::{Backward, Forward, Module, Optimizer, OptimizerState, Program, ZeroGrad};
    let cases = [
        (Module, BlockFate::Live, BlockLifetime::Lasting, Category::Parameters),
        (Backward, BlockFate::FreedIn(ZeroGrad), BlockLifetime::NextStep, Category::Gradients),
        (Backward, BlockFate::Live, BlockLifetime::Lasting, Category::Gradients),
        (Backward, BlockFate::FreedIn(Program), BlockLifetime::NextStep, Category::Gradients),
        (Backward, BlockFate::FreedIn(Backward), BlockLifetime::WithinStep, Category::Temporaries),
        (OptimizerState, BlockFate::Live, BlockLifetime::Lasting, Category::OptimizerState),
        (Optimizer, BlockFate::FreedIn(Optimizer), BlockLifetime::WithinStep, Category::Temporaries),
        (Optimizer, BlockFate::FreedIn(Optimizer), BlockLifetime::NextStep, Category::OptimizerState),
        (Forward, BlockFate::FreedIn(Backward), BlockLifetime::WithinStep, Category::Activations),
        (Forward, BlockFate::FreedIn(Forward), BlockLifetime::WithinStep, Category::Temporaries),
        (Forward, BlockFate::Live, BlockLifetime::Lasting, Category::Unknown),
        (Program, BlockFate::Live, BlockLifetime::Lasting, Category::Unknown),
    ];
    for (allocated_in, fate, lifetime, expected) in cases {
        assert_eq!(
            category(allocated_in, fate, lifetime),
            expected,
            "{allocated_in:?} {fate:?} {lifetime:?}"
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
