//! The usual cases by name, and what holds for every evidence that there can be.

use super::*;

const PLACES: [Place; 12] = [
    Place::Backward,
    Place::Seed,
    Place::Forward,
    Place::Optimizer,
    Place::OptimizerState,
    Place::ZeroGrad,
    Place::Module,
    Place::Initial,
    Place::Loading,
    Place::Data,
    Place::Program,
    Place::Unknown,
];
const LIFETIMES: [Lifetime; 4] = [Lifetime::Step, Lifetime::Next, Lifetime::Lasting, Lifetime::Untold];

fn evidence(born: Place, gone: Gone, lifetime: Lifetime) -> Evidence {
    Evidence {
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

fn category(born: Place, gone: Gone, lifetime: Lifetime) -> Category {
    judge(evidence(born, gone, lifetime)).category
}

/// Every evidence that there can be.
fn all() -> impl Iterator<Item = Evidence> {
    let gone = [Gone::Never, Gone::Lost].into_iter().chain(PLACES.map(Gone::In));
    let pairs = gone.flat_map(|gone| PLACES.map(|born| (born, gone)));
    pairs.flat_map(|(born, gone)| LIFETIMES.map(|lifetime| evidence(born, gone, lifetime))).flat_map(
        |evidence| {
            (0..48u8).map(move |bits| Evidence {
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
    use Place::{Backward, Forward, Module, Optimizer, OptimizerState, Program, ZeroGrad};
    let cases = [
        (Module, Gone::Never, Lifetime::Lasting, Category::Parameters),
        (Backward, Gone::In(ZeroGrad), Lifetime::Next, Category::Gradients),
        (Backward, Gone::Never, Lifetime::Lasting, Category::Gradients),
        (Backward, Gone::In(Program), Lifetime::Next, Category::Gradients),
        (Backward, Gone::In(Backward), Lifetime::Step, Category::Temporaries),
        (OptimizerState, Gone::Never, Lifetime::Lasting, Category::OptimizerState),
        (Optimizer, Gone::In(Optimizer), Lifetime::Step, Category::Temporaries),
        (Optimizer, Gone::In(Optimizer), Lifetime::Next, Category::OptimizerState),
        (Forward, Gone::In(Backward), Lifetime::Step, Category::Activations),
        (Forward, Gone::In(Forward), Lifetime::Step, Category::Temporaries),
        (Forward, Gone::Never, Lifetime::Lasting, Category::Unknown),
        (Program, Gone::Never, Lifetime::Lasting, Category::Unknown),
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
    for evidence in all().filter(|evidence| evidence.born == Place::Unknown) {
        let found = judge(evidence).category;
        assert!(matches!(found, Category::Unknown | Category::Workspaces), "{evidence:?}");
        assert!(found == Category::Unknown || evidence.workspace == Some(WorkspaceSize::Odd), "{evidence:?}");
    }
}

#[test]
fn a_broken_off_run_makes_nothing_surer() {
    for evidence in all().filter(|evidence| !evidence.is_cut) {
        let (whole, cut) = (judge(evidence), judge(Evidence { is_cut: true, ..evidence }));
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
            Category::Gradients => evidence.born == Place::Backward,
            Category::OptimizerState => {
                matches!(evidence.born, Place::Optimizer | Place::OptimizerState)
            }
            _ => true,
        };
        assert!(born, "{evidence:?}");
    }
}
