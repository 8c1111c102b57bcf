//! The rules that find the category of a block (`docs/analyses/index.md`, "Peak by category").

use super::json_enum::json_enum;

json_enum! {
    /// The rule that found the category of a block.
    enum CategoryRule {
        /// A library that allocates only workspaces requested it.
        AllocatedByLibrary = "allocated_by_library",
        /// It is the first gradient of a backward pass.
        BeginsBackward = "begins_backward",
        /// The part of an optimizer that creates its state allocated it.
        AllocatedAsState = "allocated_as_state",
        /// The program allocated it right before a forward pass.
        AllocatedBeforeForward = "allocated_before_forward",
        /// It was allocated while initial values were computed.
        AllocatedInInitialization = "allocated_in_initialization",
        /// It was allocated while a module was built, moved or copied.
        AllocatedInModule = "allocated_in_module",
        /// It was allocated in `zero_grad()`.
        AllocatedInZeroGrad = "allocated_in_zero_grad",
        /// It was allocated while a batch was fetched.
        AllocatedWhileFetching = "allocated_while_fetching",
        /// It was allocated while weights were read.
        AllocatedWhileLoading = "allocated_while_loading",
        /// The run or the step ended too early to see it freed.
        Interrupted = "interrupted",
        /// It was freed before a backward pass began.
        FreedBeforeBackward = "freed_before_backward",
        /// A backward pass freed it.
        FreedInBackward = "freed_in_backward",
        /// A call of `zero_grad()` freed it.
        FreedInZeroGrad = "freed_in_zero_grad",
        /// The pass that allocated it freed it.
        FreedInSamePass = "freed_in_same_pass",
        /// The forward pass allocated it, and it stayed.
        RetainedByForward = "retained_by_forward",
        /// Other Python code allocated it, and it stayed.
        RetainedByProgram = "retained_by_program",
        /// It has no Python stack.
        NoPythonStack = "no_python_stack",
        /// The program does not use PyTorch, and no known library requested it.
        NoPytorch = "no_pytorch",
        /// It was live after the backward pass.
        OutlivedBackward = "outlived_backward",
        /// It was live after the optimizer's step.
        OutlivedOptimizer = "outlived_optimizer",
        /// It has the size of gradients without a known parameter.
        SizeOfGradients = "size_of_gradients",
        /// It has the size of parameters without a known gradient.
        SizeOfParameters = "size_of_parameters",
        /// It has the size of a cuBLAS workspace, and stayed.
        WorkspaceSize = "workspace_size",
    }
}
