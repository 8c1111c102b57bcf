//! What a program was doing when a stack was taken, as far as the names of its frames tell.
//!
//! Definition: the *place* of a stack is that of its innermost frame that tells one. So what a closure computes below
//! `optimizer.step` is forward, and a module that is built inside of another's forward is being built.
//!
//! Constraint: hundreds of thousands of blocks, few stacks, and stacks as deep as a file says. Consequence: a frame's place is
//! found once, after its caller's, and kept.

use gpumemtrace_format::{FrameLink, NodeId};

use crate::callsite::code_origin::is_backward_call;
use crate::callsite::code_origin::{OptimizerCall, optimizer_call};
use crate::callsite::symbols::{StackId, StackSymbols};
use crate::report::TrainingPass;
use crate::util::dense_map::DenseMap;
use crate::util::seeded_map::SeededSet;

/// What was going on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum CallContext {
    /// Autograd's engine, or a backward of the program's own that it calls.
    Backward,
    /// A call of a module, or of one of PyTorch's functions for networks.
    Forward,
    /// What a backward pass begins with is being made.
    Seed,
    /// An optimizer's step.
    Optimizer,
    /// The part of an optimizer that makes its state.
    OptimizerState,
    /// `zero_grad`, of an optimizer or of a module.
    ZeroGrad,
    /// A module is being built, moved or copied.
    Module,
    /// Values to begin with are being computed for a module.
    Initial,
    /// Weights are being read from a file.
    Loading,
    /// A batch is being fetched.
    Data,
    /// Python code that tells nothing of this.
    Program,
    /// No Python frames.
    Unknown,
}

impl CallContext {
    /// The pass that reports name.
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

/// Finds the places of stacks.
pub(crate) struct CallContexts<'a> {
    symbols: &'a StackSymbols,
    known: DenseMap<CallContext>,
}

impl<'a> CallContexts<'a> {
    /// Of these stacks.
    pub(crate) fn new(symbols: &'a StackSymbols) -> Self {
        Self { symbols, known: DenseMap::default() }
    }

    /// The place of a stack.
    pub(crate) fn of(&mut self, stack: StackId) -> CallContext {
        match self.symbols.stack_info(stack).python {
            NodeId::NONE => CallContext::Unknown,
            node => self.of_node(node),
        }
    }

    /// Iterative, because a stack may be as deep as a file says, and may lead back into itself.
    fn of_node(&mut self, innermost: NodeId) -> CallContext {
        let nodes = &self.symbols.definitions().python;
        let (mut path, mut on_path) = (Vec::new(), SeededSet::default());
        let mut at = innermost;
        let mut place = CallContext::Program;
        while at != NodeId::NONE && on_path.insert(at) {
            if let Some(known) = self.known.get(at.0) {
                place = known;
                break;
            }
            path.push(at);
            at = nodes.get(&at).map_or(NodeId::NONE, |node| node.parent);
        }
        for node in path.into_iter().rev() {
            place = self.own(node).map_or(place, |own| below(own, place));
            self.known.insert(node.0, place);
        }
        place
    }

    fn own(&self, node: NodeId) -> Option<CallContext> {
        let definitions = self.symbols.definitions();
        let node = definitions.python.get(&node)?;
        if node.link == FrameLink::Backward {
            return Some(CallContext::Backward);
        }
        let code = definitions.codes.get(&node.code)?;
        // Before CPython 3.11 both are called `apply`; autograd's engine calls its own with nothing below it.
        let is_engine = node.parent == NodeId::NONE && code.name == "apply";
        if is_engine && code.file.ends_with("/torch/autograd/function.py") {
            return Some(CallContext::Backward);
        }
        place_of_frame(&code.file, &code.name)
    }
}

/// What a frame of this place does where its caller's place is that.
fn below(own: CallContext, callers: CallContext) -> CallContext {
    match (own, callers) {
        // What makes the state calls helpers of the optimizer.
        (CallContext::Optimizer, CallContext::OptimizerState) => CallContext::OptimizerState,
        // A constructor that reads weights, and the other way about: it is weights that come.
        _ => own,
    }
}

/// Functions, of whatever library, that put a batch on a device.
const FETCHING: &[&str] = &[
    "transfer_batch_to_device",
    "batch_to_device",
    "move_data_to_device",
    "send_to_device",
    "_prepare_inputs",
    "_prepare_input",
];

/// The place that a frame tells, if it tells one.
pub(crate) fn place_of_frame(file: &str, function: &str) -> Option<CallContext> {
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
        return of_torch(within, function, name);
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

/// `within`: the file, from PyTorch's folder on.
fn of_torch(within: &str, function: &str, name: &str) -> Option<CallContext> {
    if let Some(file) = within.strip_prefix("optim/") {
        let is_other = file.starts_with("lr_scheduler") || file.starts_with("swa_utils");
        let makes_state = matches!(
            name,
            "__init__" | "_init_group" | "_init_state" | "load_state_dict" | "add_param_group"
        );
        return match makes_state {
            _ if is_other => None,
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
    use crate::ingest::definitions::Definitions;
    use gpumemtrace_format::{CodeDef, CodeId, PyNode};

    #[test]
    fn frames_tell_their_places() {
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
        for (file, function, place) in expected {
            assert_eq!(place_of_frame(&format!("{torch}{file}"), function), place, "{file} {function}");
        }
        for (file, function) in [("/srv/torch/train.py", "step"), ("/work/net.py", "Net.forward"), ("", "")] {
            assert_eq!(place_of_frame(file, function), None, "{file}");
        }
        let loaded =
            place_of_frame("/v/site-packages/accelerate/utils/modeling.py", "set_module_tensor_to_device");
        assert_eq!(loaded, Some(CallContext::Loading));
    }

    /// Stacks of frames, outermost first; the places of their innermost frames.
    fn places(stacks: &[&[(&str, &str)]]) -> Vec<CallContext> {
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
        let stacks: Vec<StackId> = innermost.iter().map(|node| symbols.stack(*node, NodeId::NONE)).collect();
        let mut places = CallContexts::new(&symbols);
        stacks.iter().map(|stack| places.of(*stack)).collect()
    }

    #[test]
    fn the_innermost_frame_that_tells_decides() {
        let call = ("torch/nn/modules/module.py", "Module._call_impl");
        let step = ("torch/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper");
        let group = ("torch/optim/adam.py", "Adam._init_group");
        let helper = ("torch/optim/optimizer.py", "_to_scalar");
        let apply = ("torch/autograd/function.py", "apply");
        let mine = ("mine.py", "f");
        let found = places(&[
            &[mine, call, mine],
            &[mine, step, mine, call],
            &[mine, step, helper],
            &[mine, step, group, helper],
            &[apply, mine],
            &[mine, call, apply, mine],
            &[apply, mine, call],
            &[mine],
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
