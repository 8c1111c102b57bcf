//! What sizes add to births and deaths: a gradient is as large as its parameter, and so is each part of an optimizer's state.
//!
//! Constraint: many things have the same size. Consequence: a size makes a gradient surer; and it makes a parameter of
//! something that lasts and was made by a line that tells nothing only as far as there are more gradients of that size than
//! known parameters, or twice as many parts of an optimizer's state.

use super::rules::{CUT, Category, CategoryRule, CategoryVerdict, Confidence, KEPT, WORKSPACE};
use crate::util::seeded_map::SeededMap;

/// What there is of a size.
#[derive(Clone, Copy, Default)]
struct SizeCounts {
    parameters: u64,
    gradients: u64,
    state: u64,
    /// What the backward pass has left and may be a workspace or a gradient.
    either: u64,
}

impl SizeCounts {
    fn of(blocks: &[(u64, CategoryVerdict)]) -> SeededMap<u64, Self> {
        let mut of_size: SeededMap<u64, Self> = SeededMap::default();
        for (size, verdict) in blocks {
            let counts = of_size.entry(*size).or_default();
            match verdict.category {
                Category::Parameters => counts.parameters += 1,
                Category::Gradients => counts.gradients += 1,
                Category::OptimizerState => counts.state += 1,
                Category::Workspaces if may_be_gradient(*verdict) => counts.either += 1,
                _ => {}
            }
        }
        of_size
    }
}

fn may_be_gradient(verdict: CategoryVerdict) -> bool {
    verdict.rule == WORKSPACE && verdict.confidence == Some(Confidence::Low)
}

/// Looks again at blocks, with their sizes, in the order in which they came.
pub(super) fn compare(blocks: &mut [(u64, CategoryVerdict)]) {
    let mut of_size = SizeCounts::of(blocks);
    for (size, verdict) in blocks {
        let Some(counts) = of_size.get_mut(size) else { continue };
        match verdict.category {
            Category::Unknown
                if verdict.rule == KEPT && counts.gradients.max(counts.state / 2) > counts.parameters =>
            {
                counts.parameters += 1;
                *verdict = told(Category::Parameters, Confidence::Medium, CategoryRule::SizeOfGradients);
            }
            // The workspace came first; the rest are as many as there are parameters that lack a gradient.
            Category::Workspaces if may_be_gradient(*verdict) => {
                if counts.parameters == 0 {
                    verdict.confidence = Some(Confidence::Medium);
                } else if counts.gradients + counts.either <= counts.parameters {
                    *verdict = told(Category::Gradients, Confidence::Medium, CategoryRule::SizeOfParameters);
                } else {
                    counts.either -= 1;
                }
            }
            Category::Gradients if counts.parameters > 0 => verdict.confidence = Some(Confidence::High),
            // The backward pass made it, and was broken off.
            Category::Temporaries if verdict.rule == CUT && counts.parameters > 0 => {
                verdict.category = Category::Gradients;
            }
            _ => {}
        }
    }
}

fn told(category: Category, confidence: Confidence, rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category, confidence: Some(confidence), rule }
}

#[cfg(test)]
mod tests {
    use super::super::rules::unknown;
    use super::*;

    fn sure(category: Category) -> CategoryVerdict {
        CategoryVerdict { category, confidence: Some(Confidence::Medium), rule: CategoryRule::BornInModule }
    }

    fn categories(mut blocks: Vec<(u64, CategoryVerdict)>) -> Vec<Category> {
        compare(&mut blocks);
        blocks.iter().map(|(_, verdict)| verdict.category).collect()
    }

    #[test]
    fn what_lasts_is_a_parameter_only_as_far_as_there_are_gradients_for_it() {
        use Category::{Gradients, Parameters, Unknown};
        let (kept, gradient) = (unknown(KEPT), sure(Gradients));
        let found = categories(vec![(512, kept), (512, kept), (1024, kept), (512, gradient)]);
        assert_eq!(found, [Parameters, Unknown, Unknown, Gradients]);
        let found = categories(vec![(512, sure(Parameters)), (512, kept), (512, gradient)]);
        assert_eq!(found, [Parameters, Unknown, Gradients]);
        assert_eq!(
            categories(vec![(512, unknown(CategoryRule::KeptByForward)), (512, gradient)]),
            [Unknown, Gradients]
        );
    }

    #[test]
    fn two_parts_of_state_make_a_parameter_as_one_gradient_does() {
        use Category::{OptimizerState, Parameters, Unknown};
        let (kept, state) = (unknown(KEPT), sure(OptimizerState));
        let found = categories(vec![(512, kept), (512, kept), (512, state), (512, state)]);
        assert_eq!(found, [Parameters, Unknown, OptimizerState, OptimizerState]);
    }

    #[test]
    fn what_has_the_size_of_a_workspace_and_of_parameters_is_shared_out() {
        use Category::{Gradients, Parameters, Workspaces};
        let (either, parameter) = (told(Workspaces, Confidence::Low, WORKSPACE), sure(Parameters));
        assert_eq!(categories(vec![(9, either)]), [Workspaces]);
        let found = categories(vec![(9, parameter), (9, parameter), (9, either), (9, either), (9, either)]);
        assert_eq!(found, [Parameters, Parameters, Workspaces, Gradients, Gradients]);
    }

    #[test]
    fn a_gradient_with_a_parameter_of_its_size_is_surer() {
        let mut blocks = vec![
            (512, sure(Category::Parameters)),
            (512, sure(Category::Gradients)),
            (8, sure(Category::Gradients)),
        ];
        compare(&mut blocks);
        let sure: Vec<_> = blocks.iter().map(|(_, verdict)| verdict.confidence.unwrap()).collect();
        assert_eq!(sure, [Confidence::Medium, Confidence::High, Confidence::Medium]);
    }
}
