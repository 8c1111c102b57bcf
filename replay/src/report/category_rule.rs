//! The rules that find the category of a block (`docs/analyses.md`, "Peak by category").

use super::json_enum::json_enum;

json_enum! {
    /// The rule that found the category of a block. Ordered by its word.
    enum CategoryRule {
        /// A library that allocates only workspaces requested it.
        AskedByLibrary = "asked_by_library",
        /// It is the first gradient of a backward pass.
        BeginsBackward = "begins_backward",
        /// The part of an optimizer that creates its state allocated it.
        BornAsState = "born_as_state",
        /// The program allocated it right before a forward pass.
        BornBeforeForward = "born_before_forward",
        /// It was allocated while initial values were computed.
        BornInInitialisation = "born_in_initialisation",
        /// It was allocated while a module was built, moved or copied.
        BornInModule = "born_in_module",
        /// It was allocated in `zero_grad()`.
        BornInZeroGrad = "born_in_zero_grad",
        /// It was allocated while a batch was fetched.
        BornWhileFetching = "born_while_fetching",
        /// It was allocated while weights were read.
        BornWhileLoading = "born_while_loading",
        /// The run or the step ended too early to see it freed.
        CutShort = "cut_short",
        /// It was freed before a backward pass began.
        DiedBeforeBackward = "died_before_backward",
        /// A backward pass freed it.
        DiedInBackward = "died_in_backward",
        /// A call of `zero_grad()` freed it.
        DiedInZeroGrad = "died_in_zero_grad",
        /// The pass that allocated it freed it.
        DiedWhereBorn = "died_where_born",
        /// The forward pass allocated it, and it stayed.
        KeptByForward = "kept_by_forward",
        /// Other Python code allocated it, and it stayed.
        KeptByProgram = "kept_by_program",
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
