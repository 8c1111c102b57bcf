//! What a block of memory is for.

use crate::report::json_enum::json_enum;

json_enum! {
    /// The purpose of a block.
    enum Category {
        /// Parameters and buffers of modules.
        Parameters = "parameters",
        /// Gradients that the backward pass leaves.
        Gradients = "gradients",
        /// State that an optimizer keeps between steps.
        OptimizerState = "optimizer_state",
        /// Results of the forward pass that the backward pass needs.
        Activations = "activations",
        /// Blocks that are freed in the pass that allocates them.
        Temporaries = "temporaries",
        /// Workspaces of libraries such as cuBLAS.
        Workspaces = "workspaces",
        /// Batches of input data.
        Inputs = "inputs",
        /// Results of a forward pass that outlive their step, and that no backward pass frees.
        Retained = "retained",
        /// No rule applies to the block.
        Unknown = "unknown",
    }
}
