//! Resolves the raw stack ids of events to call sites.
//!
//! Constraint: every event needs its call site, and two ids may name the same line. Consequence:
//! [`StackSymbols`] resolves all Python nodes once, before the events are read, so that an event
//! costs one array look-up. Sites are keyed by content (file, line, function), which makes equal
//! lines under different ids one site. Native sites are resolved when a stack first occurs.

use std::collections::hash_map::Entry;

use gpumemtrace_format::{CodeId, FrameLink, NodeId, PyNode};

use crate::callsite::backward_stacks::BackwardStacks;
use crate::callsite::call_context::CallContext;
use crate::callsite::call_paths::{CallPaths, PathId};
use crate::callsite::code_origin::{
    CodeOrigin, OptimizerCall, UserCodePaths, is_backward_call, is_simulation_wrapper, optimizer_call,
};
use crate::callsite::frame_budget::FrameBudget;
use crate::callsite::module_calls::ModuleCalls;
use crate::callsite::py_linetable::line_at;
use crate::callsite::site_key::SiteKey;
use crate::callsite::stack_root::{StackRoot, StackRoots};
use crate::ingest::definitions::Definitions;
use crate::util::dense_map::DenseMap;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::{SeededMap, SeededSet};
use native_sites::NativeCallers;
pub(crate) use stack_info::{AutogradRole, NodeInfo, StackInfo, StackSite};

/// An optimizer call and the user line that makes it. Its events can delimit steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OptimizerLine {
    pub call: OptimizerCall,
    /// The user line that makes the call.
    pub site: SiteId,
}

/// The stacks that begin steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecurringStacks {
    /// Those with this path.
    At(PathId),
    /// Those with a call at this place.
    Below(PathId),
}

/// The step hint of the stacks that [`StackSymbols::set_step_hints`] names.
pub(crate) const RECURRING: u16 = u16::MAX;
/// The step hint of stacks that say nothing about the call that begins steps: those of another task
/// of asyncio, and of autograd's threads.
pub(crate) const OTHER_TASK: u16 = u16::MAX - 1;

/// A node of the Python or the native stack tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum FrameNode {
    Python(NodeId),
    Native(NodeId),
}

/// The definitions of a trace, with resolved stacks and sites.
#[derive(Debug, Default)]
pub(crate) struct StackSymbols {
    pub(crate) definitions: Definitions,
    pub(crate) user_code: UserCodePaths,
    backward_stacks: BackwardStacks,
    /// Return addresses of native sites.
    pub(crate) addresses: SeededMap<SiteId, u64>,
    pub(crate) nodes: DenseMap<NodeInfo>,
    /// Contexts of Python nodes, each with those of its callers.
    contexts: DenseMap<CallContext>,
    pub(crate) sites: Vec<SiteKey>,
    site_ids: SeededMap<SiteKey, SiteId>,
    /// Sites of native frames that the trace names itself.
    native_sites: SeededSet<SiteId>,
    stacks: Vec<StackInfo>,
    /// Stacks without native frames, by Python node.
    by_python: DenseMap<StackId>,
    /// The same, by content and site: each thread has nodes of its own.
    by_path: SeededMap<(PathId, SiteId), StackId>,
    /// Stacks with native frames.
    by_both: SeededMap<(NodeId, NodeId), StackId>,
    optimizer_lines: Vec<OptimizerLine>,
    paths: CallPaths,
    recurring: Option<RecurringStacks>,
    /// Optimizer lines of other phases, by the number of the line that they count like.
    other_phases: SeededMap<u16, u16>,
    /// Known for runs without steps.
    module_calls: Option<ModuleCalls>,
    /// How often the line that calls a module most often did so, at least.
    most_module_calls: u64,
    roots: StackRoots,
    /// Frames without known code, line table, parent or module.
    unresolved: SeededSet<FrameNode>,
    native_callers: NativeCallers,
    pub(in crate::callsite) frame_budget: FrameBudget,
    /// The frames of `unresolved` without a definition.
    undefined: SeededSet<FrameNode>,
}

impl StackSymbols {
    /// Resolves all Python nodes.
    pub(crate) fn new(definitions: Definitions, user_code: UserCodePaths) -> Self {
        let mut symbols = Self { definitions, user_code, ..Self::default() };
        symbols.resolve_new();
        symbols
    }

    /// Lets `add` add definitions. Call [`Self::resolve_new`] before the next event.
    pub(crate) fn add_definitions(&mut self, add: impl FnOnce(&mut Definitions)) {
        add(&mut self.definitions);
    }

    /// Resolves the nodes that were added since the last call.
    pub(crate) fn resolve_new(&mut self) {
        self.backward_stacks.join(&mut self.definitions, &self.user_code);
        let is_new = |id: &&NodeId| self.nodes.get_ref(id.0).is_none();
        let mut ids: Vec<NodeId> = self.definitions.python.keys().filter(is_new).copied().collect();
        // Sorted, so that the ids assigned here do not depend on the iteration order of a hash map.
        ids.sort_unstable();
        for id in ids {
            self.resolve(id);
        }
    }

    /// The id of a stack, assigned when the stack first occurs.
    #[inline]
    pub(crate) fn stack(&mut self, python: NodeId, native: NodeId) -> StackId {
        if native == NodeId::NONE {
            if let Some(stack) = self.by_python.get(python.0) {
                return stack;
            }
            return self.new_stack(python, native);
        }
        self.stack_of_both(python, native)
    }

    #[inline(never)] // Most events have no native stack.
    fn stack_of_both(&mut self, python: NodeId, native: NodeId) -> StackId {
        let stack = self.by_both.get(&(python, native)).copied();
        stack.unwrap_or_else(|| self.new_stack(python, native))
    }

    #[cold]
    fn new_stack(&mut self, python: NodeId, native: NodeId) -> StackId {
        let (site, optimizer, root, autograd) = match self.nodes.get(python.0) {
            Some(info) if python != NodeId::NONE => (info.site(), info.optimizer, info.root, info.autograd),
            _ => {
                if python != NodeId::NONE {
                    self.mark_undefined(FrameNode::Python(python));
                }
                (self.native_site(native), 0, StackRoot::of_unresolved(python), AutogradRole::None)
            }
        };
        if let Some(known) = self.stack_of_equal_path((python, native), site, autograd) {
            return known;
        }
        let id = StackId(self.stacks.len() as u32);
        let step_hint = self.step_hint_of(python, optimizer, autograd);
        let context = self.context_of_node(python);
        self.stacks.push(StackInfo { python, native, site, optimizer, step_hint, root, autograd, context });
        if native == NodeId::NONE {
            self.by_python.insert(python.0, id);
        } else {
            self.by_both.insert((python, native), id);
        }
        id
    }

    /// The resolved form of a stack.
    #[inline]
    pub(crate) fn stack_info(&self, stack: StackId) -> StackInfo {
        self.stacks[stack.0 as usize]
    }

    /// The distinct optimizer calls in the stacks of the trace.
    pub(crate) fn optimizer_lines(&self) -> &[OptimizerLine] {
        &self.optimizer_lines
    }

    /// Number of frames without known code, line table, parent or module.
    pub(crate) fn unresolved_frames(&self) -> u64 {
        self.unresolved.len() as u64
    }

    /// Number of frames that the trace uses but does not define.
    pub(crate) fn undefined_frames(&self) -> u64 {
        self.undefined.len() as u64
    }

    fn mark_undefined(&mut self, frame: FrameNode) {
        self.unresolved.insert(frame);
        self.undefined.insert(frame);
    }

    /// Resolves a node and all its callers. Iterative: a hostile file may define any depth.
    fn resolve(&mut self, innermost: NodeId) {
        let mut path = Vec::new();
        let mut on_path = SeededSet::default();
        let mut next = innermost;
        while next != NodeId::NONE && self.nodes.get(next.0).is_none() && on_path.insert(next) {
            path.push(next);
            next = match self.definitions.python.get(&next) {
                Some(node) => node.parent,
                None => break,
            };
        }
        while let Some(id) = path.pop() {
            let Some(node) = self.definitions.python.get(&id).copied() else {
                self.mark_undefined(FrameNode::Python(id));
                continue;
            };
            let parent = self.nodes.get(node.parent.0).filter(|_| node.parent != NodeId::NONE);
            let info = match node.link {
                FrameLink::Backward => self.backward_info(parent),
                FrameLink::Native => self.native_info(id, &node, parent),
                _ => self.python_info(id, &node, parent),
            };
            self.nodes.insert(id.0, info);
        }
    }

    /// The info of a node with a Python frame.
    fn python_info(&mut self, id: NodeId, node: &PyNode, parent: Option<NodeInfo>) -> NodeInfo {
        let (file, function, line) = self.python_frame(node.code, node.offset_bytes);
        if node.code != CodeId::UNKNOWN && !self.definitions.codes.contains_key(&node.code) {
            self.mark_undefined(FrameNode::Python(id));
        } else if file.is_none() {
            self.unresolved.insert(FrameNode::Python(id));
        }
        if let Some(parent) = parent.filter(|_| file.as_deref().is_some_and(is_simulation_wrapper)) {
            return parent;
        }
        let origin = file.as_deref().map_or(CodeOrigin::Library, |file| self.user_code.origin_of(file));
        let names = file.as_deref().zip(function.as_deref());
        let call = names.and_then(|(file, function)| optimizer_call(file, function));
        let runs_engine = names.is_some_and(|(file, function)| is_backward_call(file, function));
        let root = match parent {
            Some(parent) => parent.root,
            None => self.roots.root_of(node, function.as_deref()),
        };
        let own = self.intern_site(SiteKey::Python { file, line, function, is_backward: false });
        let optimizer = match (parent, call) {
            (Some(parent), _) if parent.optimizer != 0 => parent.optimizer,
            (Some(parent), Some(call)) => {
                self.intern_optimizer_line(OptimizerLine { call, site: parent.site() })
            }
            (None, Some(call)) => self.intern_optimizer_line(OptimizerLine { call, site: own }),
            _ => 0,
        };
        let is_user = origin == CodeOrigin::User;
        let is_generated = origin == CodeOrigin::Generated;
        NodeInfo {
            user: if is_user { Some(own) } else { parent.and_then(|parent| parent.user) },
            generated: if is_generated { Some(own) } else { parent.and_then(|parent| parent.generated) },
            own,
            optimizer,
            root,
            autograd: if runs_engine {
                AutogradRole::Runs(id)
            } else {
                parent.map_or(AutogradRole::None, |parent| parent.autograd)
            },
        }
    }

    /// The info of a node for the backward pass of the forward line `forward`.
    fn backward_info(&mut self, forward: Option<NodeInfo>) -> NodeInfo {
        let key = forward.map(|forward| self.sites[forward.site().0 as usize].clone());
        let site = match key {
            Some(SiteKey::Python { file, line, function, .. }) => {
                self.intern_site(SiteKey::Python { file, line, function, is_backward: true })
            }
            _ => self.intern_site(SiteKey::Unknown),
        };
        let user = forward.and_then(|forward| forward.user).map(|_| site);
        let root = forward.map_or(StackRoot::MODULE, |forward| forward.root);
        NodeInfo { user, generated: None, own: site, optimizer: 0, root, autograd: AutogradRole::WorksFor }
    }

    /// File, function and line of a Python frame; `None` where unknown.
    pub(crate) fn python_frame(
        &self,
        code: CodeId,
        offset_bytes: i32,
    ) -> (Option<String>, Option<String>, Option<u32>) {
        match self.definitions.codes.get(&code) {
            Some(code) => {
                let text = |text: &String| (!text.is_empty()).then(|| text.clone());
                (text(&code.file), text(&code.name), line_at(code, offset_bytes))
            }
            None => (None, None, None),
        }
    }

    fn intern_site(&mut self, key: SiteKey) -> SiteId {
        match self.site_ids.entry(key) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let id = SiteId(self.sites.len() as u32);
                self.sites.push(new.key().clone());
                new.insert(id);
                id
            }
        }
    }

    /// All sites, including those of library frames.
    pub(crate) fn all_sites(&self) -> impl Iterator<Item = SiteId> + use<> {
        (0..self.sites.len() as u32).map(SiteId)
    }

    /// True if both sites are lines of the same Python function.
    pub(crate) fn is_same_function(&self, one: SiteId, other: SiteId) -> bool {
        let function_of = |site: SiteId| match &self.sites[site.0 as usize] {
            SiteKey::Python { file: Some(file), function: Some(function), .. } => Some((file, function)),
            _ => None,
        };
        function_of(one).is_some() && function_of(one) == function_of(other)
    }

    /// The call site of the stack that ends in this frame.
    pub(crate) fn user_site(&self, node: NodeId) -> Option<SiteId> {
        self.nodes.get(node.0).map(|info| info.site())
    }

    pub(crate) fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}

mod contexts;
mod native_frames;
mod native_sites;
mod stack_info;
mod step_hints;
#[cfg(test)]
mod tests;
