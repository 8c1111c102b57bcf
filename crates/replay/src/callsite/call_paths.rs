//! Python stacks by content, and their order in the code of the function where they part.
//!
//! Each thread of the recorder has its own node ids, and an evicted frame gets a new one. A
//! [`PathId`] is equal for all nodes with the same Python frames: native frames between them, as
//! snapshots of PyTorch have, are left out. Two paths part in the innermost call
//! that contains both. If that is one function at two instructions, the order of the instructions
//! is that of the code: a later event at an earlier instruction means that a loop has gone round.

use std::cmp::Ordering;

use gpumemtrace_format::source_path::with_slashes;
use gpumemtrace_format::{CodeId, FrameLink, NodeId};

use crate::ingest::definitions::Definitions;
use crate::util::dense_map::DenseMap;
use crate::util::seeded_map::SeededMap;

/// Deeper stacks have no path. The recorder's limit is 256; a hostile file may define a cycle.
const MAX_DEPTH: usize = 1024;

/// Files of PyTorch with functions between a call of a module or decorated function and its code.
const WRAPPERS: [&str; 2] = [MODULES, "torch/utils/_contextlib.py"];
const MODULES: &str = "torch/nn/modules/module.py";
/// The functions in [`MODULES`] that call a module, outermost first.
const MODULE_CALLS: [&str; 2] = ["_wrapped_call_impl", "_call_impl"];
/// The function of asyncio that resumes coroutines; before CPython 3.11, its name has no class.
const TASKS: (&str, [&str; 2]) = ("asyncio/events.py", ["Handle._run", "_run"]);

/// A Python stack by content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct PathId(pub u32);

/// A function below one caller: the places of its calls can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FrameId(u32);

/// The innermost frame of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathFrame {
    pub parent: Option<PathId>,
    /// Number of frames outside of it.
    pub depth: u32,
    pub frame: FrameId,
    /// The instruction in the function.
    pub offset_bytes: i32,
    /// The function only passes a call on, once.
    pub is_wrapper: bool,
    /// The function that asyncio's event loop called: a coroutine or a callback. What happens
    /// outside of it says nothing about its calls, because they may be suspended.
    pub task: Option<FrameId>,
    runs_tasks: bool,
    /// The outermost call of an `nn.Module` that the path goes through.
    pub module_call: Option<PathId>,
}

/// The frames at which two paths part, just inside their innermost common caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fork {
    pub before: PathId,
    pub after: PathId,
}

/// A function that frames execute.
#[derive(Clone, Copy, Debug)]
struct Function {
    number: u32,
    is_wrapper: bool,
    calls_module: bool,
    runs_tasks: bool,
}

/// What is known of a node's path.
#[derive(Clone, Copy, Debug)]
enum NodePath {
    Of(PathId),
    /// There are only native frames up to the root. Its callees may have paths.
    Native,
    /// One of its frames is undefined, or it is too deep.
    Broken,
}

impl NodePath {
    fn id(self) -> Option<PathId> {
        match self {
            Self::Of(path) => Some(path),
            Self::Native | Self::Broken => None,
        }
    }
}

/// Assigns ids to paths, in the order in which nodes first ask for theirs; callers first.
#[derive(Debug, Default)]
pub(crate) struct CallPaths {
    by_node: DenseMap<NodePath>,
    paths: Vec<PathFrame>,
    ids: SeededMap<(FrameId, i32), PathId>,
    frames: SeededMap<(Option<PathId>, u32), FrameId>,
    /// Functions by code object, and by content.
    codes: SeededMap<CodeId, Function>,
    contents: SeededMap<(String, String, i32), Function>,
}

impl CallPaths {
    /// The path of a node; `None` if one of its frames is undefined or it is too deep.
    #[inline]
    pub(crate) fn path_of_node(&mut self, node: NodeId, definitions: &Definitions) -> Option<PathId> {
        if node == NodeId::NONE {
            return None;
        }
        match self.by_node.get_ref(node.0) {
            Some(path) => path.id(),
            None => self.intern_node(node, definitions),
        }
    }

    /// The path of a node that has asked for it.
    pub(crate) fn known_path(&self, node: NodeId) -> Option<PathId> {
        self.by_node.get(node.0)?.id()
    }

    #[cold]
    fn intern_node(&mut self, innermost: NodeId, definitions: &Definitions) -> Option<PathId> {
        let mut callees = Vec::new();
        let mut next = innermost;
        let mut path = loop {
            if next == NodeId::NONE {
                break None;
            }
            match self.by_node.get(next.0) {
                Some(NodePath::Broken) => return None,
                Some(known) => break known.id(),
                None => {}
            }
            let node = definitions.python.get(&next).filter(|_| callees.len() < MAX_DEPTH);
            let Some(node) = node else {
                self.by_node.insert(innermost.0, NodePath::Broken);
                return None;
            };
            callees.push(*node);
            next = node.parent;
        };
        while let Some(node) = callees.pop() {
            if node.link != FrameLink::Native {
                let function = self.function_of_code(node.code, definitions);
                path = Some(self.intern(path, function, node.offset_bytes));
            }
            self.by_node.insert(node.id.0, path.map_or(NodePath::Native, NodePath::Of));
        }
        path
    }

    fn intern(&mut self, parent: Option<PathId>, function: Function, offset_bytes: i32) -> PathId {
        let next = FrameId(self.frames.len() as u32);
        let frame = *self.frames.entry((parent, function.number)).or_insert(next);
        let next = PathId(self.paths.len() as u32);
        let path = *self.ids.entry((frame, offset_bytes)).or_insert(next);
        if path == next {
            let depth = parent.map_or(0, |parent| self.frame(parent).depth + 1);
            let outer_call = parent.and_then(|parent| self.frame(parent).module_call);
            let module_call = outer_call.or(function.calls_module.then_some(path));
            let is_wrapper = function.is_wrapper;
            let caller = parent.map(|parent| self.frame(parent));
            let task = caller.and_then(|caller| caller.task.or(caller.runs_tasks.then_some(frame)));
            self.paths.push(PathFrame {
                parent,
                depth,
                frame,
                offset_bytes,
                is_wrapper,
                task,
                runs_tasks: function.runs_tasks,
                module_call,
            });
        }
        path
    }

    fn function_of_code(&mut self, id: CodeId, definitions: &Definitions) -> Function {
        if let Some(function) = self.codes.get(&id) {
            return *function;
        }
        let number = self.codes.len() as u32;
        let function = match definitions.codes.get(&id) {
            Some(code) => {
                let content = (code.file.clone(), code.name.clone(), code.first_line);
                let file = with_slashes(&code.file);
                let is_wrapper = WRAPPERS.iter().any(|wrapper| file.ends_with(wrapper));
                // Before CPython 3.11, the name has no class.
                let name = code.name.strip_prefix("Module.").unwrap_or(&code.name);
                let calls_module = file.ends_with(MODULES) && MODULE_CALLS.contains(&name);
                let runs_tasks = file.ends_with(TASKS.0) && TASKS.1.contains(&code.name.as_str());
                let function = Function { number, is_wrapper, calls_module, runs_tasks };
                *self.contents.entry(content).or_insert(function)
            }
            None => Function { number, is_wrapper: false, calls_module: false, runs_tasks: false },
        };
        self.codes.insert(id, function);
        function
    }

    /// Number of paths with an id.
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// All paths, callers first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = PathId> + use<> {
        (0..self.paths.len() as u32).map(PathId)
    }

    /// The innermost frame of a path.
    pub(crate) fn frame(&self, path: PathId) -> PathFrame {
        self.paths[path.0 as usize]
    }

    /// Where two paths part; `None` if one contains the other. Costs the number of frames inside of
    /// that place.
    pub(crate) fn fork(&self, before: PathId, after: PathId) -> Option<Fork> {
        let (mut a, mut b) = (before, after);
        let (mut of_a, mut of_b) = (self.frame(a), self.frame(b));
        while of_a.depth > of_b.depth {
            a = of_a.parent?;
            of_a = self.frame(a);
        }
        while of_b.depth > of_a.depth {
            b = of_b.parent?;
            of_b = self.frame(b);
        }
        if a == b {
            return None;
        }
        while of_a.parent != of_b.parent {
            (a, b) = (of_a.parent?, of_b.parent?);
            (of_a, of_b) = (self.frame(a), self.frame(b));
        }
        Some(Fork { before: a, after: b })
    }

    /// The places of the calls outside of a path's innermost frame, innermost first.
    pub(crate) fn callers(&self, path: PathId) -> impl Iterator<Item = PathId> {
        std::iter::successors(self.frame(path).parent, |place| self.frame(*place).parent)
    }

    /// True if two paths are in different tasks, or one of them is in none.
    pub(crate) fn is_other_task(&self, one: PathId, other: PathId) -> bool {
        self.frame(one).task != self.frame(other).task
    }

    /// The order of two frames in the code of their function; `None` for different functions.
    pub(crate) fn order(&self, one: PathId, other: PathId) -> Option<Ordering> {
        let (one, other) = (self.frame(one), self.frame(other));
        (one.frame == other.frame).then(|| one.offset_bytes.cmp(&other.offset_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::{CodeDef, PyNode};

    /// Nodes are (id, parent, code, offset). Codes 1 and 9 are the same function.
    fn definitions(nodes: &[(u32, u32, u32, i32)]) -> Definitions {
        let mut definitions = Definitions::default();
        for (id, name) in [(1, "main"), (2, "step"), (3, "load"), (9, "main")] {
            let code = CodeDef { id: CodeId(id), name: name.to_owned(), ..CodeDef::default() };
            definitions.codes.insert(code.id, code);
        }
        for (id, parent, code, offset_bytes) in nodes.iter().copied() {
            let (id, parent, code) = (NodeId(id), NodeId(parent), CodeId(code));
            let node = PyNode { id, parent, code, offset_bytes, link: FrameLink::C };
            definitions.python.insert(id, node);
        }
        definitions
    }

    #[test]
    fn equal_frames_under_different_ids_are_one_path() {
        let definitions = definitions(&[(1, 0, 1, 4), (2, 1, 2, 8), (11, 0, 9, 4), (12, 11, 2, 8)]);
        let mut paths = CallPaths::default();
        let mut path = |node| paths.path_of_node(NodeId(node), &definitions);
        assert!(path(2).is_some() && path(2) == path(12) && path(1) == path(11) && path(1) != path(2));
        assert_eq!(path(0), None);
    }

    #[test]
    fn native_frames_between_python_frames_do_not_change_a_path() {
        let mut definitions = definitions(&[
            (1, 0, 1, 4),
            (2, 1, 2, 8),
            (11, 0, 1, 4),
            (13, 12, 2, 8),
            (14, 13, 3, 0),
            (22, 21, 1, 4),
            (23, 21, 1, 4),
        ]);
        // 20 and 21 are at the root of 22 and 23.
        for (id, parent) in [(12, 11), (15, 13), (20, 0), (21, 20)] {
            let (id, parent) = (NodeId(id), NodeId(parent));
            let node = PyNode { id, parent, code: CodeId(3), offset_bytes: -1, link: FrameLink::Native };
            definitions.python.insert(id, node);
        }
        let mut paths = CallPaths::default();
        let mut path = |node| paths.path_of_node(NodeId(node), &definitions);
        assert!(path(2).is_some() && path(2) == path(13) && path(13) == path(15) && path(13) != path(14));
        assert_eq!(path(21), None, "a stack of native frames");
        assert!(path(1).is_some() && path(1) == path(22) && path(22) == path(23));
    }

    #[test]
    fn paths_part_in_the_innermost_common_caller() {
        // main calls step twice at 4; step calls load at 2 and 6; main calls load at 9.
        let nodes = [(1, 0, 1, 4), (2, 1, 2, 2), (3, 2, 3, 0), (4, 1, 2, 6), (5, 0, 1, 9), (6, 5, 3, 0)];
        let definitions = definitions(&nodes);
        let mut paths = CallPaths::default();
        let [_, main_4, step_2, load, step_6, main_9, other_load] =
            [0, 1, 2, 3, 4, 5, 6].map(|node| paths.path_of_node(NodeId(node), &definitions));
        let fork = |a: Option<PathId>, b: Option<PathId>| paths.fork(a.unwrap(), b.unwrap());
        let at = |a: Option<PathId>, b: Option<PathId>| Some(Fork { before: a.unwrap(), after: b.unwrap() });
        assert_eq!(fork(load, step_6), at(step_2, step_6));
        assert_eq!(fork(other_load, load), at(main_9, main_4));
        assert_eq!(fork(load, main_4), None);
        let order = paths.order(main_9.unwrap(), main_4.unwrap());
        assert_eq!((order, paths.order(load.unwrap(), step_6.unwrap())), (Some(Ordering::Greater), None));
    }

    #[test]
    fn cycles_and_undefined_frames_have_no_path() {
        let definitions = definitions(&[(1, 2, 1, 0), (2, 1, 1, 0), (3, 7, 1, 0)]);
        let mut paths = CallPaths::default();
        for node in [1, 2, 3] {
            assert_eq!(paths.path_of_node(NodeId(node), &definitions), None);
        }
    }
}
