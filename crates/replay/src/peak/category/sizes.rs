//! Refines categories by comparing block sizes: a gradient has the size of its parameter, and so
//! has each part of an optimizer's state.
//!
//! Constraint: unrelated blocks often have equal sizes. Consequence: a matching size raises the
//! confidence of a gradient. A block that lasts and was allocated by plain program code becomes a
//! parameter only while there are more gradients of its size than known parameters, or twice as
//! many parts of optimizer state.
//!
//! The cost is one pass over the blocks. The tests below check each refinement.

use super::rules::{CUT, Category, CategoryRule, CategoryVerdict, Confidence, KEPT, WORKSPACE};
use crate::util::seeded_map::SeededMap;

/// Blocks of one size, by category.
#[derive(Clone, Copy, Default)]
struct SizeCounts {
    parameters: u64,
    gradients: u64,
    state: u64,
    /// Blocks of the backward pass that may be workspaces or gradients.
    ambiguous: u64,
}

impl SizeCounts {
    fn count_blocks(blocks: &[(u64, CategoryVerdict)]) -> SeededMap<u64, Self> {
        let mut by_size: SeededMap<u64, Self> = SeededMap::default();
        for (size, verdict) in blocks {
            let counts = by_size.entry(*size).or_default();
            match verdict.category {
                Category::Parameters => counts.parameters += 1,
                Category::Gradients => counts.gradients += 1,
                Category::OptimizerState => counts.state += 1,
                Category::Workspaces if may_be_gradient(*verdict) => counts.ambiguous += 1,
                _ => {}
            }
        }
        by_size
    }
}

fn may_be_gradient(verdict: CategoryVerdict) -> bool {
    verdict.rule == WORKSPACE && verdict.confidence == Some(Confidence::Low)
}

/// Refines the verdicts on blocks, given with their sizes in the order of allocation.
pub(super) fn refine_by_size(blocks: &mut [(u64, CategoryVerdict)]) {
    let mut by_size = SizeCounts::count_blocks(blocks);
    for (size, verdict) in blocks {
        let Some(counts) = by_size.get_mut(size) else { continue };
        match verdict.category {
            Category::Unknown
                if verdict.rule == KEPT && counts.gradients.max(counts.state / 2) > counts.parameters =>
            {
                counts.parameters += 1;
                *verdict = decided(Category::Parameters, Confidence::Medium, CategoryRule::SizeOfGradients);
            }
            // The workspace was allocated first. As many of the rest are gradients as parameters
            // lack one.
            Category::Workspaces if may_be_gradient(*verdict) => {
                if counts.parameters == 0 {
                    verdict.confidence = Some(Confidence::Medium);
                } else if counts.gradients + counts.ambiguous <= counts.parameters {
                    *verdict =
                        decided(Category::Gradients, Confidence::Medium, CategoryRule::SizeOfParameters);
                } else {
                    counts.ambiguous -= 1;
                }
            }
            Category::Gradients if counts.parameters > 0 => verdict.confidence = Some(Confidence::High),
            // Allocated by a backward pass that was cut short.
            Category::Temporaries if verdict.rule == CUT && counts.parameters > 0 => {
                verdict.category = Category::Gradients;
            }
            _ => {}
        }
    }
}

fn decided(category: Category, confidence: Confidence, rule: CategoryRule) -> CategoryVerdict {
    CategoryVerdict { category, confidence: Some(confidence), rule }
}

#[cfg(test)]
mod tests {
    use super::super::rules::unknown;
    use super::*;

    fn medium(category: Category) -> CategoryVerdict {
        CategoryVerdict {
            category,
            confidence: Some(Confidence::Medium),
            rule: CategoryRule::AllocatedInModule,
        }
    }

    fn categories(mut blocks: Vec<(u64, CategoryVerdict)>) -> Vec<Category> {
        refine_by_size(&mut blocks);
        blocks.iter().map(|(_, verdict)| verdict.category).collect()
    }

    #[test]
    fn lasting_block_is_a_parameter_while_gradients_outnumber_parameters() {
        use Category::{Gradients, Parameters, Unknown};
        let (kept, gradient) = (unknown(KEPT), medium(Gradients));
        let found = categories(vec![(512, kept), (512, kept), (1024, kept), (512, gradient)]);
        assert_eq!(found, [Parameters, Unknown, Unknown, Gradients]);
        let found = categories(vec![(512, medium(Parameters)), (512, kept), (512, gradient)]);
        assert_eq!(found, [Parameters, Unknown, Gradients]);
        assert_eq!(
            categories(vec![(512, unknown(CategoryRule::RetainedByForward)), (512, gradient)]),
            [Unknown, Gradients]
        );
    }

    #[test]
    fn two_parts_of_optimizer_state_make_a_parameter_like_one_gradient() {
        use Category::{OptimizerState, Parameters, Unknown};
        let (kept, state) = (unknown(KEPT), medium(OptimizerState));
        let found = categories(vec![(512, kept), (512, kept), (512, state), (512, state)]);
        assert_eq!(found, [Parameters, Unknown, OptimizerState, OptimizerState]);
    }

    #[test]
    fn workspace_sized_blocks_become_gradients_of_parameters_that_lack_one() {
        use Category::{Gradients, Parameters, Workspaces};
        let (ambiguous, parameter) = (decided(Workspaces, Confidence::Low, WORKSPACE), medium(Parameters));
        assert_eq!(categories(vec![(9, ambiguous)]), [Workspaces]);
        let found =
            categories(vec![(9, parameter), (9, parameter), (9, ambiguous), (9, ambiguous), (9, ambiguous)]);
        assert_eq!(found, [Parameters, Parameters, Workspaces, Gradients, Gradients]);
    }

    #[test]
    fn gradient_with_a_parameter_of_its_size_has_high_confidence() {
        let mut blocks = vec![
            (512, medium(Category::Parameters)),
            (512, medium(Category::Gradients)),
            (8, medium(Category::Gradients)),
        ];
        refine_by_size(&mut blocks);
        let confidences: Vec<_> = blocks.iter().map(|(_, verdict)| verdict.confidence.unwrap()).collect();
        assert_eq!(confidences, [Confidence::Medium, Confidence::High, Confidence::Medium]);
    }
}
