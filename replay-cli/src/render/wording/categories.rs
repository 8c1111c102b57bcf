//! The categories of memory at a peak, as phrases.

use gpumemtrace_replay::report::{Category, CategoryRule, CategoryShare};

/// The name of a category, with a short explanation in parentheses.
pub(crate) fn label_category(category: Category) -> &'static str {
    match category {
        Category::Parameters => "parameters and buffers",
        Category::Gradients => "gradients",
        Category::OptimizerState => "optimizer state",
        Category::Activations => "activations (kept for backward)",
        Category::Temporaries => "temporaries (freed in their pass)",
        Category::Workspaces => "library workspaces",
        Category::Inputs => "inputs (batches)",
        Category::Retained => "retained after their step (forward)",
        Category::Unknown => "unknown",
    }
}

/// `, confidence high`, or `: ` and why the category is unknown. Empty if neither is known.
pub(crate) fn explain_category(share: &CategoryShare) -> String {
    if let Some(confidence) = share.confidence {
        return format!(", confidence {}", confidence.name());
    }
    let why = match share.rules.first().map(|first| first.rule) {
        Some(CategoryRule::RetainedByProgram) => "allocated by your code and retained",
        Some(CategoryRule::RetainedByForward) => "allocated in a forward pass and retained",
        Some(CategoryRule::Interrupted) => "the run was interrupted",
        Some(CategoryRule::NoPythonStack) => "no Python stack",
        Some(CategoryRule::NoPytorch) => "no PyTorch and no known library",
        // These rules decide a category and state their confidence.
        Some(
            CategoryRule::AllocatedByLibrary
            | CategoryRule::BeginsBackward
            | CategoryRule::AllocatedAsState
            | CategoryRule::AllocatedBeforeForward
            | CategoryRule::AllocatedInInitialization
            | CategoryRule::AllocatedInModule
            | CategoryRule::AllocatedInZeroGrad
            | CategoryRule::AllocatedWhileFetching
            | CategoryRule::AllocatedWhileLoading
            | CategoryRule::FreedBeforeBackward
            | CategoryRule::FreedInBackward
            | CategoryRule::FreedInZeroGrad
            | CategoryRule::FreedInSamePass
            | CategoryRule::OutlivedBackward
            | CategoryRule::OutlivedOptimizer
            | CategoryRule::SizeOfGradients
            | CategoryRule::SizeOfParameters
            | CategoryRule::WorkspaceSize,
        )
        | None => return String::new(),
    };
    format!(": {why}")
}
