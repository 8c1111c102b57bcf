//! The call context of each stack: that of its innermost Python frame that has one.

use gpumemtrace_format::source_path::with_slashes;
use gpumemtrace_format::{FrameLink, NodeId};

use super::StackSymbols;
use crate::callsite::call_context::{CallContext, combine_with_caller, context_of_frame};
use crate::util::seeded_map::SeededSet;

impl StackSymbols {
    /// The context of a Python stack. Iterative: stacks in a damaged trace may be very deep or
    /// contain a cycle.
    pub(super) fn context_of_node(&mut self, innermost: NodeId) -> CallContext {
        if innermost == NodeId::NONE {
            return CallContext::Unknown;
        }
        let (mut path, mut on_path) = (Vec::new(), SeededSet::default());
        let mut at = innermost;
        let mut context = CallContext::Program;
        while at != NodeId::NONE && on_path.insert(at) {
            if let Some(known) = self.contexts.get(at.0) {
                context = known;
                break;
            }
            path.push(at);
            at = self.definitions.python.get(&at).map_or(NodeId::NONE, |node| node.parent);
        }
        for node in path.into_iter().rev() {
            context =
                self.context_of_own_frame(node).map_or(context, |own| combine_with_caller(own, context));
            self.contexts.insert(node.0, context);
        }
        context
    }

    /// The context that a frame has regardless of its callers.
    fn context_of_own_frame(&self, node: NodeId) -> Option<CallContext> {
        let node = self.definitions.python.get(&node)?;
        if node.link == FrameLink::Backward {
            return Some(CallContext::Backward);
        }
        let code = self.definitions.codes.get(&node.code)?;
        // Before CPython 3.11, functions have no qualified names, and forward and backward are
        // both called `apply`. Autograd's engine calls the backward one, as the outermost frame
        // of its thread.
        let is_engine = node.parent == NodeId::NONE && code.name == "apply";
        if is_engine && with_slashes(&code.file).ends_with("/torch/autograd/function.py") {
            return Some(CallContext::Backward);
        }
        context_of_frame(&code.file, &code.name)
    }
}
