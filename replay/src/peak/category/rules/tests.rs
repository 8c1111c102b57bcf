//! The usual cases by name, and what holds for every evidence that there can be.

use super::*;

const PLACES: [CallContext; 12] = [
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
    [BlockLifetime::Step, BlockLifetime::Next, BlockLifetime::Lasting, BlockLifetime::Untold];

fn evidence(born: CallContext, gone: BlockFate, lifetime: BlockLifetime) -> BlockEvidence {
    BlockEvidence {
        born,
        gone,
        lifetime,
        saw_backward: false,
        is_before_forward: false,
        is_cut: false,
        line_dies_backward: false,
        workspace: None,
    }
}

fn category(born: CallContext, gone: BlockFate, lifetime: BlockLifetime) -> Category {
    judge(evidence(born, gone, lifetime)).category
}

/// Every evidence that there can be.
fn all() -> impl Iterator<Item = BlockEvidence> {
    let gone = [BlockFate::Never, BlockFate::Lost].into_iter().chain(PLACES.map(BlockFate::In));
    let pairs = gone.flat_map(|gone| PLACES.map(|born| (born, gone)));
    pairs.flat_map(|(born, gone)| LIFETIMES.map(|lifetime| evidence(born, gone, lifetime))).flat_map(
        |evidence| {
            (0..48u8).map(move |bits| BlockEvidence {
                saw_backward: bits & 1 != 0,
                is_before_forward: bits & 2 != 0,
                is_cut: bits & 4 != 0,
                line_dies_backward: bits & 8 != 0,
                workspace: [None, Some(WorkspaceSize::Odd), Some(WorkspaceSize::Round)]
                    [usize::from(bits / 16)],
                ..evidence
            })
        },
    )
}

#[test]
fn the_usual_training() {
    use CallContext::{Backward, Forward, Module, Optimizer, OptimizerState, Program, ZeroGrad};
    let cases = [
        (Module, BlockFate::Never, BlockLifetime::Lasting, Category::Parameters),
        (Backward, BlockFate::In(ZeroGrad), BlockLifetime::Next, Category::Gradients),
        (Backward, BlockFate::Never, BlockLifetime::Lasting, Category::Gradients),
        (Backward, BlockFate::In(Program), BlockLifetime::Next, Category::Gradients),
        (Backward, BlockFate::In(Backward), BlockLifetime::Step, Category::Temporaries),
        (OptimizerState, BlockFate::Never, BlockLifetime::Lasting, Category::OptimizerState),
        (Optimizer, BlockFate::In(Optimizer), BlockLifetime::Step, Category::Temporaries),
        (Optimizer, BlockFate::In(Optimizer), BlockLifetime::Next, Category::OptimizerState),
        (Forward, BlockFate::In(Backward), BlockLifetime::Step, Category::Activations),
        (Forward, BlockFate::In(Forward), BlockLifetime::Step, Category::Temporaries),
        (Forward, BlockFate::Never, BlockLifetime::Lasting, Category::Unknown),
        (Program, BlockFate::Never, BlockLifetime::Lasting, Category::Unknown),
    ];
    for (born, gone, lifetime, expected) in cases {
        assert_eq!(category(born, gone, lifetime), expected, "{born:?} {gone:?} {lifetime:?}");
    }
}

#[test]
fn what_is_unknown_has_no_confidence_and_what_is_known_has_one() {
    for evidence in all() {
        let verdict = judge(evidence);
        assert_eq!(verdict.category == Category::Unknown, verdict.confidence.is_none(), "{evidence:?}");
    }
}

#[test]
fn without_a_python_stack_nothing_but_a_size_tells() {
    for evidence in all().filter(|evidence| evidence.born == CallContext::Unknown) {
        let found = judge(evidence).category;
        assert!(matches!(found, Category::Unknown | Category::Workspaces), "{evidence:?}");
        assert!(found == Category::Unknown || evidence.workspace == Some(WorkspaceSize::Odd), "{evidence:?}");
    }
}

#[test]
fn a_broken_off_run_makes_nothing_surer() {
    for evidence in all().filter(|evidence| !evidence.is_cut) {
        let (whole, cut) = (judge(evidence), judge(BlockEvidence { is_cut: true, ..evidence }));
        assert!(whole == cut || cut.rule == CUT, "{evidence:?}");
        if cut.rule == CUT {
            assert!(cut.confidence < Some(Confidence::High), "{evidence:?}");
        }
    }
}

#[test]
fn gradients_come_from_the_backward_pass_alone_and_state_from_optimizers() {
    for evidence in all() {
        let born = match judge(evidence).category {
            Category::Gradients => evidence.born == CallContext::Backward,
            Category::OptimizerState => {
                matches!(evidence.born, CallContext::Optimizer | CallContext::OptimizerState)
            }
            _ => true,
        };
        assert!(born, "{evidence:?}");
    }
}
