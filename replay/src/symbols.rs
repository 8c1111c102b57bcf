//! Sites and stacks: from raw ids to the user's line.
//!
//! Constraint: every event asks "whose line is this?", and two ids may name the same thing. Consequence: all Python nodes
//! are resolved once, before the events are read; an event costs one array look-up; and sites are keyed by content
//! (file, line, function), so that equal things under different ids are one site.

use std::collections::hash_map::Entry;

use gpumemtrace_format::{CodeId, NodeId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::definitions::Definitions;
use crate::idmap::IdMap;
use crate::linetable::line_at;
use crate::origin::{OptimizerCall, Origin, optimizer_call, origin_of};
use crate::report::{FrameKind, Site, StackFrame};

/// A user line, by content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SiteId(pub u32);

/// A distinct pair of Python and native stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub u32);

/// Longest stack shown: a cycle of parents (only a damaged or hostile file has one) ends here.
const MAX_FRAMES: usize = 4096;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum SiteKey {
    Python { file: Option<String>, line: Option<u32>, function: Option<String> },
    Native { module: String, offset: u64 },
    Unknown,
}

/// What begins a step, as far as a stack can tell: an optimizer call and the user line that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OptimizerLine {
    /// Which call.
    pub call: OptimizerCall,
    /// From where.
    pub site: SiteId,
}

#[derive(Clone, Copy, Debug)]
struct NodeFacts {
    user: Option<SiteId>,
    generated: Option<SiteId>,
    own: SiteId,
    /// Index in `optimizer_lines`, plus 1; 0 for none.
    optimizer: u16,
}

impl NodeFacts {
    fn site(&self) -> SiteId {
        self.user.or(self.generated).unwrap_or(self.own)
    }
}

/// One stack.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// Innermost Python frame.
    pub python: NodeId,
    /// Innermost native frame.
    pub native: NodeId,
    /// The user line.
    pub site: SiteId,
    /// Index in [`Symbols::optimizer_lines`], plus 1; 0 for none.
    pub optimizer: u16,
}

/// Everything ids resolve to.
#[derive(Debug)]
pub struct Symbols {
    definitions: Definitions,
    nodes: IdMap<NodeFacts>,
    sites: Vec<SiteKey>,
    site_ids: FxHashMap<SiteKey, SiteId>,
    stacks: Vec<Stack>,
    by_python: IdMap<StackId>,
    by_both: FxHashMap<(NodeId, NodeId), StackId>,
    optimizer_lines: Vec<OptimizerLine>,
    unresolved: FxHashSet<(bool, u32)>,
    /// Those of them whose definition is missing.
    undefined: FxHashSet<(bool, u32)>,
}

impl Symbols {
    /// Resolves all Python nodes.
    pub fn new(definitions: Definitions) -> Self {
        let mut symbols = Self {
            nodes: IdMap::default(),
            sites: Vec::new(),
            site_ids: FxHashMap::default(),
            stacks: Vec::new(),
            by_python: IdMap::default(),
            by_both: FxHashMap::default(),
            optimizer_lines: Vec::new(),
            unresolved: FxHashSet::default(),
            undefined: FxHashSet::default(),
            definitions,
        };
        // Ascending, so that what is numbered here does not depend on a hash map's order.
        let mut ids: Vec<NodeId> = symbols.definitions.python.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            symbols.resolve(id);
        }
        symbols
    }

    /// The stack of an event.
    pub fn stack(&mut self, python: NodeId, native: NodeId) -> StackId {
        if native == NodeId::NONE {
            if let Some(stack) = self.by_python.get(python.0) {
                return stack;
            }
        } else if let Some(stack) = self.by_both.get(&(python, native)) {
            return *stack;
        }
        self.new_stack(python, native)
    }

    #[cold]
    fn new_stack(&mut self, python: NodeId, native: NodeId) -> StackId {
        let (site, optimizer) = match self.nodes.get(python.0) {
            Some(facts) if python != NodeId::NONE => (facts.site(), facts.optimizer),
            _ => {
                if python != NodeId::NONE {
                    self.is_undefined((true, python.0));
                }
                (self.native_site(native), 0)
            }
        };
        let id = StackId(self.stacks.len() as u32);
        self.stacks.push(Stack { python, native, site, optimizer });
        if native == NodeId::NONE {
            self.by_python.insert(python.0, id);
        } else {
            self.by_both.insert((python, native), id);
        }
        id
    }

    /// What is known of a stack.
    pub fn facts(&self, stack: StackId) -> Stack {
        self.stacks[stack.0 as usize]
    }

    /// The optimizer calls that occur in stacks.
    pub fn optimizer_lines(&self) -> &[OptimizerLine] {
        &self.optimizer_lines
    }

    /// Frames whose code, line table, parent or module is unknown.
    pub fn unresolved_frames(&self) -> u64 {
        self.unresolved.len() as u64
    }

    /// Those of them that the file uses and does not define.
    pub fn undefined_frames(&self) -> u64 {
        self.undefined.len() as u64
    }

    fn is_undefined(&mut self, frame: (bool, u32)) {
        self.unresolved.insert(frame);
        self.undefined.insert(frame);
    }

    /// Resolves a node and all its callers; iterative, because a stack may be as deep as a file says.
    fn resolve(&mut self, id: NodeId) {
        let mut path = Vec::new();
        let mut on_path = FxHashSet::default();
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
            let (file, function, line) = self.python_frame(node.code, node.offset_bytes);
            if node.code != CodeId::UNKNOWN && !self.definitions.codes.contains_key(&node.code) {
                self.is_undefined((true, id.0));
            } else if file.is_none() {
                self.unresolved.insert((true, id.0));
            }
            let origin = file.as_deref().map_or(Origin::Library, origin_of);
            let call = file
                .as_deref()
                .zip(function.as_deref())
                .and_then(|(file, function)| optimizer_call(file, function));
            let own = self.site_id(SiteKey::Python { file, line, function });
            let optimizer = match (parent, call) {
                (Some(parent), _) if parent.optimizer != 0 => parent.optimizer,
                (Some(parent), Some(call)) => {
                    self.optimizer_line(OptimizerLine { call, site: parent.site() })
                }
                (None, Some(call)) => self.optimizer_line(OptimizerLine { call, site: own }),
                _ => 0,
            };
            let facts = NodeFacts {
                user: if origin == Origin::User { Some(own) } else { parent.and_then(|p| p.user) },
                generated: if origin == Origin::Generated {
                    Some(own)
                } else {
                    parent.and_then(|p| p.generated)
                },
                own,
                optimizer,
            };
            self.nodes.insert(id.0, facts);
        }
    }

    fn optimizer_line(&mut self, line: OptimizerLine) -> u16 {
        let at = self.optimizer_lines.iter().position(|known| *known == line).unwrap_or_else(|| {
            self.optimizer_lines.push(line);
            self.optimizer_lines.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    fn python_frame(&self, code: CodeId, offset_bytes: i32) -> (Option<String>, Option<String>, Option<u32>) {
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
        let plumbing = ["libcuda.so", "libcudart", "libgpumemtrace"];
        let own = frames.iter().find(|(_, module)| {
            module.as_ref().is_some_and(|(path, _)| {
                let name = path.rsplit('/').next().unwrap_or(path);
                !plumbing.iter().any(|prefix| name.starts_with(prefix))
            })
        });
        let key = match own.or(frames.first()) {
            Some((_, Some((module, offset)))) => SiteKey::Native { module: module.clone(), offset: *offset },
            _ => SiteKey::Unknown,
        };
        for (id, module) in &frames {
            if !self.definitions.native.contains_key(id) {
                self.is_undefined((false, id.0));
            } else if module.is_none() {
                self.unresolved.insert((false, id.0));
            }
        }
        self.site_id(key)
    }

    /// Innermost first: node, and module path and offset where the module is known.
    fn native_frames(&self, innermost: NodeId) -> Vec<(NodeId, Option<(String, u64)>)> {
        let mut frames = Vec::new();
        let mut at = innermost;
        while at != NodeId::NONE && frames.len() < MAX_FRAMES {
            let Some(node) = self.definitions.native.get(&at) else {
                frames.push((at, None));
                break;
            };
            // The call is the instruction before the return address, which may be another function's first.
            let address = node.return_address.saturating_sub(1);
            let module = self.definitions.module_at(address);
            frames
                .push((at, module.map(|m| (m.path.clone(), node.return_address.wrapping_sub(m.load_bias)))));
            at = node.parent;
        }
        frames
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

    /// Python frames from the innermost outwards, as node ids.
    pub fn python_path(&self, innermost: NodeId) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut at = innermost;
        while at != NodeId::NONE && path.len() < MAX_FRAMES {
            path.push(at);
            at = self.definitions.python.get(&at).map_or(NodeId::NONE, |node| node.parent);
        }
        path
    }

    /// The frame's own line as a site, if it is the user's.
    pub fn own_user_site(&self, node: NodeId) -> Option<SiteId> {
        let facts = self.nodes.get(node.0)?;
        (facts.user == Some(facts.own)).then_some(facts.own)
    }

    /// The file that a frame runs, if it is known.
    pub fn file_of(&self, node: NodeId) -> Option<&str> {
        let node = self.definitions.python.get(&node)?;
        self.definitions.codes.get(&node.code).map(|code| code.file.as_str())
    }

    /// The innermost frame of a stack as a site of its own, whoever wrote it.
    pub fn innermost(&self, stack: StackId) -> SiteId {
        let Stack { python, site, .. } = self.facts(stack);
        self.nodes.get(python.0).map_or(site, |facts| facts.own)
    }

    /// The report's form of a site, with the frames of `stack`.
    pub fn site(&self, site: SiteId, stack: Option<StackId>) -> Site {
        let key = &self.sites[site.0 as usize];
        let (file, line, function, module) = match key {
            SiteKey::Python { file, line, function } => (file.clone(), *line, function.clone(), None),
            SiteKey::Native { module, .. } => (None, None, None, Some(module.clone())),
            SiteKey::Unknown => (None, None, None, None),
        };
        let stack = stack.map_or_else(Vec::new, |stack| self.frames(stack));
        Site { id: stable_id(key), file, line, function, module, stack }
    }

    /// The frames of a stack, innermost first: native frames, then the Python frames that led to them.
    pub fn frames(&self, stack: StackId) -> Vec<StackFrame> {
        let Stack { python, native, .. } = self.facts(stack);
        let mut frames: Vec<StackFrame> = Vec::new();
        for (_, module) in self.native_frames(native) {
            let (module, offset) = module.unzip();
            frames.push(StackFrame {
                kind: FrameKind::Native,
                file: None,
                line: None,
                function: None,
                module,
                offset,
            });
        }
        for id in self.python_path(python) {
            let (file, function, line) = match self.definitions.python.get(&id) {
                Some(node) => self.python_frame(node.code, node.offset_bytes),
                None => (None, None, None),
            };
            frames.push(StackFrame {
                kind: FrameKind::Python,
                file,
                line,
                function,
                module: None,
                offset: None,
            });
        }
        frames
    }

    /// All definitions, for `dump`.
    pub fn definitions(&self) -> &Definitions {
        &self.definitions
    }
}

/// The same line has the same id in every run: FNV-1a over its parts.
fn stable_id(key: &SiteKey) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    match key {
        SiteKey::Python { file, line, function } => {
            add(file.as_deref().unwrap_or("").as_bytes());
            add(&line.unwrap_or(0).to_le_bytes());
            add(function.as_deref().unwrap_or("").as_bytes());
        }
        SiteKey::Native { module, offset } => {
            add(module.as_bytes());
            add(&offset.to_le_bytes());
        }
        SiteKey::Unknown => add(b"unknown"),
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::{CodeDef, NativeNode, PyNode};

    fn code(id: u32, file: &str, name: &str, line: i32) -> CodeDef {
        // One entry without columns: 8 units, no line difference.
        let line_table = vec![0xef, 0];
        CodeDef {
            id: CodeId(id),
            first_line: line,
            python: 0x030b,
            file: file.into(),
            name: name.into(),
            line_table,
            truncated: false,
        }
    }

    fn node(id: u32, parent: u32, code: u32) -> PyNode {
        PyNode { id: NodeId(id), parent: NodeId(parent), code: CodeId(code), offset_bytes: 2 }
    }

    fn symbols(codes: &[CodeDef], nodes: &[PyNode]) -> Symbols {
        let mut definitions = Definitions::default();
        definitions.codes.extend(codes.iter().map(|code| (code.id, code.clone())));
        definitions.python.extend(nodes.iter().map(|node| (node.id, *node)));
        Symbols::new(definitions)
    }

    const LIB: &str = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py";

    #[test]
    fn the_site_is_the_innermost_user_line_and_equal_lines_are_one_site() {
        let codes = [
            code(1, "train.py", "main", 10),
            code(2, LIB, "Module.__call__", 5),
            code(3, "train.py", "main", 10),
        ];
        let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(9, 0, 3)]);
        let [a, b] = [2, 9].map(|id| symbols.stack(NodeId(id), NodeId::NONE));
        assert_eq!(symbols.facts(a).site, symbols.facts(b).site);
        let site = symbols.site(symbols.facts(a).site, Some(a));
        assert_eq!(
            (site.file.as_deref(), site.line, site.function.as_deref()),
            (Some("train.py"), Some(10), Some("main"))
        );
        assert_eq!(site.stack.len(), 2);
        assert_eq!(site.stack[0].file.as_deref(), Some(LIB));
    }

    #[test]
    fn without_a_user_line_generated_code_then_anything_answers() {
        let codes = [code(1, "<string>", "<module>", 1), code(2, LIB, "f", 5)];
        let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(3, 0, 2)]);
        let [a, b] = [2, 3].map(|id| {
            let stack = symbols.stack(NodeId(id), NodeId::NONE);
            symbols.site(symbols.facts(stack).site, None).file
        });
        assert_eq!((a.as_deref(), b.as_deref()), (Some("<string>"), Some(LIB)));
    }

    #[test]
    fn no_stack_at_all_is_unknown_and_a_native_one_is_module_and_offset() {
        let mut definitions = Definitions::default();
        let module = gpumemtrace_format::ModuleDef {
            load_bias: 0x1000,
            start: 0x1000,
            end: 0x2000,
            path: "/x/libnccl.so.2".into(),
            build_id: vec![],
        };
        definitions.take(gpumemtrace_format::reader::Item::Modules(vec![module]));
        definitions
            .native
            .insert(NodeId(1), NativeNode { id: NodeId(1), parent: NodeId::NONE, return_address: 0x1234 });
        let mut symbols = Symbols::new(definitions);
        let none = symbols.stack(NodeId::NONE, NodeId::NONE);
        assert_eq!(symbols.site(symbols.facts(none).site, Some(none)).file, None);
        let native = symbols.stack(NodeId::NONE, NodeId(1));
        let site = symbols.site(symbols.facts(native).site, Some(native));
        assert_eq!((site.module.as_deref(), site.stack[0].offset), (Some("/x/libnccl.so.2"), Some(0x234)));
    }

    #[test]
    fn a_cycle_of_parents_ends() {
        let mut symbols = symbols(&[code(1, "a.py", "f", 1)], &[node(1, 2, 1), node(2, 1, 1)]);
        let stack = symbols.stack(NodeId(1), NodeId::NONE);
        assert_eq!(symbols.frames(stack).len(), MAX_FRAMES);
    }

    #[test]
    fn the_line_that_calls_the_optimizer_is_found_through_its_wrapper() {
        let optim = "/v/site-packages/torch/optim/";
        let codes = [
            code(1, "train.py", "main", 10),
            code(2, &format!("{optim}optimizer.py"), "Optimizer.profile_hook_step.<locals>.wrapper", 5),
            code(3, &format!("{optim}adam.py"), "Adam.step", 5),
        ];
        let mut symbols = symbols(&codes, &[node(1, 0, 1), node(2, 1, 2), node(3, 2, 3)]);
        let stack = symbols.stack(NodeId(3), NodeId::NONE);
        let line = symbols.optimizer_lines()[symbols.facts(stack).optimizer as usize - 1];
        assert_eq!(line.call, OptimizerCall::Step);
        assert_eq!(symbols.site(line.site, None).line, Some(10));
    }
}
