//! Sites and stacks: from raw ids to the user's line.
//!
//! Constraint: every event asks "whose line is this?", and two ids may name the same thing. Consequence: all Python nodes
//! are resolved once, before the events are read; an event costs one array look-up; and sites are keyed by content
//! (file, line, function), so that equal things under different ids are one site.

use std::collections::hash_map::Entry;

use gpumemtrace_format::{CodeId, FrameLink, NodeId};

use crate::callsite::code_origin::is_backward_call;
use crate::callsite::code_origin::{CodeOrigin, OptimizerCall, PLUMBING, UserCodePaths, optimizer_call};
use crate::callsite::py_linetable::line_at;
use crate::callsite::site_key::{NativeFrame, SiteKey};
use crate::ingest::definitions::Definitions;
use crate::util::dense_map::DenseMap;
use crate::util::seeded_map::{SeededMap, SeededSet};

/// A user line, by content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct SiteId(pub u32);

/// A distinct pair of Python and native stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct StackId(pub u32);

/// What begins a step, as far as a stack can tell: an optimizer call and the user line that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OptimizerLine {
    /// Which call.
    pub call: OptimizerCall,
    /// From where.
    pub site: SiteId,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeInfo {
    user: Option<SiteId>,
    generated: Option<SiteId>,
    pub(crate) own: SiteId,
    /// Index in `optimizer_lines`, plus 1; 0 for none.
    optimizer: u16,
    autograd: AutogradRole,
}

/// What a Python stack has to do with autograd's engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AutogradRole {
    /// Nothing.
    None,
    /// This frame of it runs the engine, and waits for its threads.
    Runs(NodeId),
    /// It is that of the forward line for which one of these threads works.
    WorksFor,
}

impl NodeInfo {
    fn site(&self) -> SiteId {
        self.user.or(self.generated).unwrap_or(self.own)
    }
}

/// One stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackInfo {
    /// Innermost Python frame.
    pub python: NodeId,
    /// Innermost native frame.
    pub native: NodeId,
    /// The user line.
    pub site: SiteId,
    /// Index in [`StackSymbols::optimizer_lines`], plus 1; 0 for none.
    pub optimizer: u16,
    /// What its Python frames have to do with autograd's engine.
    pub autograd: AutogradRole,
}

/// Everything ids resolve to.
#[derive(Debug)]
pub(crate) struct StackSymbols {
    pub(crate) definitions: Definitions,
    pub(crate) own: UserCodePaths,
    /// Return addresses of native sites.
    pub(crate) addresses: SeededMap<SiteId, u64>,
    pub(crate) nodes: DenseMap<NodeInfo>,
    pub(crate) sites: Vec<SiteKey>,
    site_ids: SeededMap<SiteKey, SiteId>,
    stacks: Vec<StackInfo>,
    by_python: DenseMap<StackId>,
    by_both: SeededMap<(NodeId, NodeId), StackId>,
    optimizer_lines: Vec<OptimizerLine>,
    unresolved: SeededSet<(bool, u32)>,
    /// Those of them whose definition is missing.
    undefined: SeededSet<(bool, u32)>,
}

impl StackSymbols {
    /// Resolves all Python nodes.
    pub(crate) fn new(definitions: Definitions, own: UserCodePaths) -> Self {
        let mut symbols = Self {
            own,
            addresses: SeededMap::default(),
            nodes: DenseMap::default(),
            sites: Vec::new(),
            site_ids: SeededMap::default(),
            stacks: Vec::new(),
            by_python: DenseMap::default(),
            by_both: SeededMap::default(),
            optimizer_lines: Vec::new(),
            unresolved: SeededSet::default(),
            undefined: SeededSet::default(),
            definitions,
        };
        symbols.resolve_new();
        symbols
    }

    /// Takes more definitions; [`Self::resolve_new`] is to be called before they are used.
    pub(crate) fn define(&mut self, take: impl FnOnce(&mut Definitions)) {
        take(&mut self.definitions);
    }

    /// Resolves what was defined since it was called last.
    pub(crate) fn resolve_new(&mut self) {
        let is_new = |id: &&NodeId| self.nodes.at(id.0).is_none();
        let mut ids: Vec<NodeId> = self.definitions.python.keys().filter(is_new).copied().collect();
        // Ascending, so that what is numbered here does not depend on a hash map's order.
        ids.sort_unstable();
        for id in ids {
            self.resolve(id);
        }
    }

    /// The stack of an event.
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
        let known = self.by_both.get(&(python, native)).copied();
        known.unwrap_or_else(|| self.new_stack(python, native))
    }

    #[cold]
    fn new_stack(&mut self, python: NodeId, native: NodeId) -> StackId {
        let (site, optimizer, autograd) = match self.nodes.get(python.0) {
            Some(facts) if python != NodeId::NONE => (facts.site(), facts.optimizer, facts.autograd),
            _ => {
                if python != NodeId::NONE {
                    self.is_undefined((true, python.0));
                }
                (self.native_site(native), 0, AutogradRole::None)
            }
        };
        let id = StackId(self.stacks.len() as u32);
        self.stacks.push(StackInfo { python, native, site, optimizer, autograd });
        if native == NodeId::NONE {
            self.by_python.insert(python.0, id);
        } else {
            self.by_both.insert((python, native), id);
        }
        id
    }

    /// What is known of a stack.
    #[inline]
    pub(crate) fn stack_info(&self, stack: StackId) -> StackInfo {
        self.stacks[stack.0 as usize]
    }

    /// The optimizer calls that occur in stacks.
    pub(crate) fn optimizer_lines(&self) -> &[OptimizerLine] {
        &self.optimizer_lines
    }

    /// Frames whose code, line table, parent or module is unknown.
    pub(crate) fn unresolved_frames(&self) -> u64 {
        self.unresolved.len() as u64
    }

    /// Those of them that the file uses and does not define.
    pub(crate) fn undefined_frames(&self) -> u64 {
        self.undefined.len() as u64
    }

    fn is_undefined(&mut self, frame: (bool, u32)) {
        self.unresolved.insert(frame);
        self.undefined.insert(frame);
    }

    /// Resolves a node and all its callers; iterative, because a stack may be as deep as a file says.
    fn resolve(&mut self, id: NodeId) {
        let mut path = Vec::new();
        let mut on_path = SeededSet::default();
        let mut at = id;
        while at != NodeId::NONE && self.nodes.get(at.0).is_none() && on_path.insert(at) {
            path.push(at);
            at = match self.definitions.python.get(&at) {
                Some(node) => node.parent,
                None => break,
            };
        }
        while let Some(id) = path.pop() {
            let Some(node) = self.definitions.python.get(&id).copied() else {
                self.is_undefined((true, id.0));
                continue;
            };
            let parent = self.nodes.get(node.parent.0).filter(|_| node.parent != NodeId::NONE);
            if node.link == FrameLink::Backward {
                let facts = self.backward_of(parent);
                self.nodes.insert(id.0, facts);
                continue;
            }
            let (file, function, line) = self.python_frame(node.code, node.offset_bytes);
            if node.code != CodeId::UNKNOWN && !self.definitions.codes.contains_key(&node.code) {
                self.is_undefined((true, id.0));
            } else if file.is_none() {
                self.unresolved.insert((true, id.0));
            }
            let origin = file.as_deref().map_or(CodeOrigin::Library, |file| self.own.origin_of(file));
            let call = file
                .as_deref()
                .zip(function.as_deref())
                .and_then(|(file, function)| optimizer_call(file, function));
            let runs_engine = file
                .as_deref()
                .zip(function.as_deref())
                .is_some_and(|(file, function)| is_backward_call(file, function));
            let own = self.site_id(SiteKey::Python { file, line, function, is_backward: false });
            let optimizer = match (parent, call) {
                (Some(parent), _) if parent.optimizer != 0 => parent.optimizer,
                (Some(parent), Some(call)) => {
                    self.optimizer_line(OptimizerLine { call, site: parent.site() })
                }
                (None, Some(call)) => self.optimizer_line(OptimizerLine { call, site: own }),
                _ => 0,
            };
            let facts = NodeInfo {
                user: if origin == CodeOrigin::User { Some(own) } else { parent.and_then(|p| p.user) },
                generated: if origin == CodeOrigin::Generated {
                    Some(own)
                } else {
                    parent.and_then(|p| p.generated)
                },
                own,
                optimizer,
                autograd: if runs_engine {
                    AutogradRole::Runs(id)
                } else {
                    parent.map_or(AutogradRole::None, |p| p.autograd)
                },
            };
            self.nodes.insert(id.0, facts);
        }
    }

    /// The same line, for what the backward pass does.
    fn backward_of(&mut self, forward: Option<NodeInfo>) -> NodeInfo {
        let key = forward.map(|forward| self.sites[forward.site().0 as usize].clone());
        let site = match key {
            Some(SiteKey::Python { file, line, function, .. }) => {
                self.site_id(SiteKey::Python { file, line, function, is_backward: true })
            }
            _ => self.site_id(SiteKey::Unknown),
        };
        let user = forward.and_then(|forward| forward.user).map(|_| site);
        NodeInfo { user, generated: None, own: site, optimizer: 0, autograd: AutogradRole::WorksFor }
    }

    fn optimizer_line(&mut self, line: OptimizerLine) -> u16 {
        let at = self.optimizer_lines.iter().position(|known| *known == line).unwrap_or_else(|| {
            self.optimizer_lines.push(line);
            self.optimizer_lines.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

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

    fn native_site(&mut self, native: NodeId) -> SiteId {
        let frames = self.native_frames(native);
        let own = frames.iter().find(|frame| frame.path().is_some_and(|path| self.own.is_own_module(path)));
        let site =
            own.or_else(|| frames.iter().find(|frame| frame.path().is_some_and(|path| !is_plumbing(path))));
        let key = match site.or(frames.first()) {
            Some(NativeFrame { module: Some((module, offset)), address, .. }) => {
                Some((SiteKey::Native { module: module.clone(), offset: *offset }, *address))
            }
            _ => None,
        };
        for NativeFrame { node, module, .. } in &frames {
            if !self.definitions.native.contains_key(node) {
                self.is_undefined((false, node.0));
            } else if module.is_none() {
                self.unresolved.insert((false, node.0));
            }
        }
        let Some((key, address)) = key else { return self.site_id(SiteKey::Unknown) };
        let site = self.site_id(key);
        self.addresses.entry(site).or_insert(address);
        site
    }

    fn site_id(&mut self, key: SiteKey) -> SiteId {
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

    /// All lines that any frame stands on.
    pub(crate) fn all_sites(&self) -> impl Iterator<Item = SiteId> + use<> {
        (0..self.sites.len() as u32).map(SiteId)
    }

    /// The frame's own line as a site, if it is the user's.
    pub(crate) fn own_user_site(&self, node: NodeId) -> Option<SiteId> {
        let facts = self.nodes.get(node.0)?;
        (facts.user == Some(facts.own)).then_some(facts.own)
    }

    /// The user line of a frame.
    pub(crate) fn user_site(&self, node: NodeId) -> Option<SiteId> {
        self.nodes.get(node.0).map(|facts| facts.site())
    }

    /// True for what threads of autograd do for a line.
    pub(crate) fn is_backward_site(&self, site: SiteId) -> bool {
        matches!(self.sites[site.0 as usize], SiteKey::Python { is_backward: true, .. })
    }

    /// All definitions, for `dump`.
    pub(crate) fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}

fn is_plumbing(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    // Every tensor comes through PyTorch's allocator: who asked it says more.
    name.starts_with("libc10") || PLUMBING.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;
