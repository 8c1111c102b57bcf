//! Determines from the frames of a stack what the program was doing: forward, backward,
//! optimizer, ...
//!
//! The context of a stack is that of its innermost frame that has one. A closure called by
//! `optimizer.step` that runs the model is thus in the forward pass. A module built in another
//! module's forward is being built. Frames are recognised by file and function of PyTorch and
//! well-known libraries, never by names of the user's functions.
//!
//! [`StackSymbols`](crate::callsite::symbols::StackSymbols) finds the context of each frame once,
//! after that of its caller. The tests below list the recognised frames and their nesting.

use gpumemtrace_format::source_path::with_slashes;

use crate::callsite::code_origin::{OptimizerCall, is_backward_call, optimizer_call};
use crate::report::TrainingPass;

/// What the program was doing when a block was allocated or freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub(crate) enum CallContext {
    /// In autograd's engine, or in a custom backward function that it calls.
    Backward,
    /// In a call of a module or of `torch.nn.functional`.
    Forward,
    /// Creating the gradient that a backward pass starts with.
    Seed,
    /// In an optimizer's `step`.
    Optimizer,
    /// In the part of an optimizer that creates its state.
    OptimizerState,
    /// In `zero_grad` of an optimizer or a module.
    ZeroGrad,
    /// Building, moving or copying a module.
    Module,
    /// Computing initial values of a module's parameters.
    Initial,
    /// Reading weights from a file.
    Loading,
    /// Fetching a batch of input data.
    Data,
    /// In other Python code.
    Program,
    /// Without any Python frame.
    #[default]
    Unknown,
}

impl CallContext {
    /// The pass that reports show.
    pub(crate) fn pass(self) -> TrainingPass {
        match self {
            Self::Backward | Self::Seed => TrainingPass::Backward,
            Self::Forward => TrainingPass::Forward,
            Self::Optimizer | Self::OptimizerState => TrainingPass::Optimizer,
            Self::ZeroGrad => TrainingPass::ZeroGrad,
            Self::Module | Self::Initial => TrainingPass::Module,
            Self::Loading => TrainingPass::Loading,
            Self::Data => TrainingPass::Data,
            Self::Program => TrainingPass::Program,
            Self::Unknown => TrainingPass::Unknown,
        }
    }
}

/// The context of a frame, given its own and its caller's: its own, unless it is a helper of the
/// optimizer that is called while state is created.
pub(crate) fn combine_with_caller(own: CallContext, caller: CallContext) -> CallContext {
    match (own, caller) {
        (CallContext::Optimizer, CallContext::OptimizerState) => CallContext::OptimizerState,
        _ => own,
    }
}

/// Functions of any library that move a batch to a device.
const FETCHING: &[&str] = &[
    "transfer_batch_to_device",
    "batch_to_device",
    "move_data_to_device",
    "send_to_device",
    "_prepare_inputs",
    "_prepare_input",
];

/// The context that a frame's file and function name indicate, if any.
pub(crate) fn context_of_frame(file: &str, function: &str) -> Option<CallContext> {
    let file = &*with_slashes(file);
    let name = function.rsplit('.').next().unwrap_or(function);
    if let Some(call) = optimizer_call(file, function) {
        return Some(match call {
            OptimizerCall::Step => CallContext::Optimizer,
            OptimizerCall::ZeroGrad => CallContext::ZeroGrad,
        });
    }
    if is_backward_call(file, function) {
        return Some(CallContext::Backward);
    }
    if let Some((_, within)) = file.rsplit_once("/torch/") {
        return context_of_torch_frame(within, function, name);
    }
    let is_reader = file.contains("/safetensors/")
        || file.contains("/accelerate/utils/modeling.py")
        || file.contains("/transformers/") && (name.contains("load") || name == "from_pretrained");
    match name {
        _ if is_reader => Some(CallContext::Loading),
        _ if FETCHING.contains(&name) => Some(CallContext::Data),
        _ => None,
    }
}

/// The context of a frame in PyTorch. `within` is the file's path relative to the `torch` package.
fn context_of_torch_frame(within: &str, function: &str, name: &str) -> Option<CallContext> {
    if let Some(file) = within.strip_prefix("optim/") {
        let is_scheduler = file.starts_with("lr_scheduler") || file.starts_with("swa_utils");
        let makes_state = matches!(
            name,
            "__init__" | "_init_group" | "_init_state" | "load_state_dict" | "add_param_group"
        );
        return match makes_state {
            _ if is_scheduler => None,
            true => Some(CallContext::OptimizerState),
            false => Some(CallContext::Optimizer),
        };
    }
    match within {
        "nn/modules/module.py" => match name {
            "_call_impl" | "_wrapped_call_impl" | "_slow_forward" => Some(CallContext::Forward),
            "zero_grad" => Some(CallContext::ZeroGrad),
            "load_state_dict" => Some(CallContext::Loading),
            "_apply" | "to" | "cuda" | "convert" | "to_empty" | "__init__" => Some(CallContext::Module),
            _ => None,
        },
        "autograd/__init__.py" if name == "_make_grads" => Some(CallContext::Seed),
        "nn/parameter.py" => Some(CallContext::Module),
        "nn/init.py" => Some(CallContext::Initial),
        "nn/functional.py" => Some(CallContext::Forward),
        "serialization.py" => Some(CallContext::Loading),
        "autograd/function.py" => match function {
            _ if function.ends_with("BackwardCFunction.apply") => Some(CallContext::Backward),
            "Function.apply" => Some(CallContext::Forward),
            _ => None,
        },
        _ if within.starts_with("nn/modules/") => match name {
            "__init__" | "reset_parameters" | "_reset_parameters" => Some(CallContext::Module),
            "forward" => Some(CallContext::Forward),
            _ => None,
        },
        _ if within.starts_with("utils/data/") => Some(CallContext::Data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite::code_origin::UserCodePaths;
    use crate::callsite::symbols::StackSymbols;
    use crate::ingest::definitions::Definitions;
    use gpumemtrace_format::{CodeDef, CodeId, FrameLink, NodeId, PyNode};

    #[test]
    fn contexts_of_known_frames() {
        let torch = "/v/lib/python3.12/site-packages/torch/";
        let expected = [
            ("nn/modules/module.py", "Module._call_impl", Some(CallContext::Forward)),
            ("nn/modules/module.py", "Module.to.<locals>.convert", Some(CallContext::Module)),
            ("nn/modules/module.py", "Module.zero_grad", Some(CallContext::ZeroGrad)),
            ("nn/modules/linear.py", "Linear.__init__", Some(CallContext::Module)),
            ("nn/modules/rnn.py", "RNNBase.flatten_parameters", None),
            ("nn/init.py", "_no_grad_trunc_normal_", Some(CallContext::Initial)),
            ("nn/functional.py", "cross_entropy", Some(CallContext::Forward)),
            ("nn/parameter.py", "Parameter.__deepcopy__", Some(CallContext::Module)),
            ("optim/adam.py", "Adam._init_group", Some(CallContext::OptimizerState)),
            ("optim/adam.py", "_multi_tensor_adam", Some(CallContext::Optimizer)),
            ("optim/adagrad.py", "Adagrad.__init__", Some(CallContext::OptimizerState)),
            ("optim/optimizer.py", "Optimizer.zero_grad", Some(CallContext::ZeroGrad)),
            ("optim/lr_scheduler.py", "LRScheduler.step", None),
            ("autograd/__init__.py", "backward", Some(CallContext::Backward)),
            ("autograd/__init__.py", "_make_grads", Some(CallContext::Seed)),
            ("autograd/function.py", "BackwardCFunction.apply", Some(CallContext::Backward)),
            ("autograd/function.py", "Function.apply", Some(CallContext::Forward)),
            ("autograd/function.py", "apply", None),
            ("utils/data/_utils/pin_memory.py", "pin_memory", Some(CallContext::Data)),
            ("utils/checkpoint.py", "checkpoint", None),
            ("_tensor.py", "Tensor.backward", None),
        ];
        for (file, function, context) in expected {
            assert_eq!(context_of_frame(&format!("{torch}{file}"), function), context, "{file} {function}");
        }
        let windows = r"C:\me\env\Lib\site-packages\torch\nn\functional.py";
        assert_eq!(context_of_frame(windows, "cross_entropy"), Some(CallContext::Forward));
        for (file, function) in [("/srv/torch/train.py", "step"), ("/work/net.py", "Net.forward"), ("", "")] {
            assert_eq!(context_of_frame(file, function), None, "{file}");
        }
        let loaded =
            context_of_frame("/v/site-packages/accelerate/utils/modeling.py", "set_module_tensor_to_device");
        assert_eq!(loaded, Some(CallContext::Loading));
    }

    /// The contexts of stacks, which are given by their frames, outermost first.
    fn contexts(stacks: &[&[(&str, &str)]]) -> Vec<CallContext> {
        let mut definitions = Definitions::default();
        let mut innermost = Vec::new();
        let mut id = 0;
        for stack in stacks {
            let mut parent = NodeId::NONE;
            for (file, name) in *stack {
                id += 1;
                let (file, name) = (format!("/v/site-packages/{file}"), (*name).to_owned());
                definitions
                    .codes
                    .insert(CodeId(id), CodeDef { id: CodeId(id), file, name, ..CodeDef::default() });
                let link = if parent == NodeId::NONE { FrameLink::C } else { FrameLink::Python };
                let node = PyNode { id: NodeId(id), parent, code: CodeId(id), offset_bytes: 0, link };
                definitions.python.insert(node.id, node);
                parent = node.id;
            }
            innermost.push(parent);
        }
        let mut symbols = StackSymbols::new(definitions, UserCodePaths::default());
        let stacks = innermost.iter().map(|node| symbols.stack(*node, NodeId::NONE));
        let stacks: Vec<_> = stacks.collect();
        stacks.iter().map(|stack| symbols.stack_info(*stack).context).collect()
    }

    #[test]
    fn innermost_frame_with_a_context_decides() {
        let call = ("torch/nn/modules/module.py", "Module._call_impl");
        let step = ("torch/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper");
        let group = ("torch/optim/adam.py", "Adam._init_group");
        let helper = ("torch/optim/optimizer.py", "_to_scalar");
        let apply = ("torch/autograd/function.py", "apply");
        let user = ("mine.py", "f");
        let found = contexts(&[
            &[user, call, user],
            &[user, step, user, call],
            &[user, step, helper],
            &[user, step, group, helper],
            &[apply, user],
            &[user, call, apply, user],
            &[apply, user, call],
            &[user],
            &[],
        ]);
        let expected = [
            CallContext::Forward,
            CallContext::Forward,
            CallContext::Optimizer,
            CallContext::OptimizerState,
            CallContext::Backward,
            CallContext::Forward,
            CallContext::Forward,
            CallContext::Program,
            CallContext::Unknown,
        ];
        assert_eq!(found, expected);
    }
}
