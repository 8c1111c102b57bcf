//! The outermost Python frame of a stack, which tells the program from interpreter teardown.
//!
//! While the main module runs, every stack of the main thread begins with its `<module>` frame, or
//! with `_run_module_as_main` under `python -m`. During teardown CPython calls `__del__` methods,
//! weakref callbacks and `atexit` handlers directly, so these functions are outermost.
//! [`crate::pass::program_end`] uses this to find the end of the program.

use gpumemtrace_format::{CodeId, FrameLink, NodeId, PyNode};

use crate::util::seeded_map::SeededMap;

/// Functions that CPython runs as the outermost frame of a program.
const MAIN_FUNCTIONS: [&str; 2] = ["<module>", "_run_module_as_main"];

/// The outermost Python frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StackRoot(u16);

impl StackRoot {
    /// The stack has no Python frames.
    pub(crate) const NONE: Self = Self(0);
    /// A main module, or unknown because the stack was cut or its frames are undefined.
    pub(crate) const MODULE: Self = Self(1);
    /// The root of no stack.
    pub(crate) const NEVER: Self = Self(u16::MAX);
    /// The number of the first other function.
    const FIRST_FUNCTION: usize = 2;

    /// The root of a stack whose Python node is not defined.
    pub(super) fn of_unresolved(python: NodeId) -> Self {
        if python == NodeId::NONE { Self::NONE } else { Self::MODULE }
    }

    /// The root of a stack that begins with a function; for tests.
    #[cfg(test)]
    pub(crate) const fn test_function(number: u16) -> Self {
        Self(Self::FIRST_FUNCTION as u16 + number)
    }

    /// A small number for each root.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Numbers the functions that are roots of stacks.
#[derive(Debug, Default)]
pub(super) struct StackRoots {
    by_code: SeededMap<CodeId, StackRoot>,
}

impl StackRoots {
    /// The root that is `node`, a node without a known caller, with the name of its function.
    pub(super) fn root_of(&mut self, node: &PyNode, function: Option<&str>) -> StackRoot {
        let is_cut = node.parent != NodeId::NONE || node.link == FrameLink::Python;
        let Some(function) = function.filter(|_| !is_cut) else { return StackRoot::MODULE };
        if MAIN_FUNCTIONS.contains(&function) {
            return StackRoot::MODULE;
        }
        let index = self.by_code.len() + StackRoot::FIRST_FUNCTION;
        let next = u16::try_from(index).map(StackRoot).ok().filter(|root| *root != StackRoot::NEVER);
        *self.by_code.entry(node.code).or_insert(next.unwrap_or(StackRoot::MODULE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_called_by_the_interpreter_are_told_from_modules_and_cut_stacks() {
        let mut roots = StackRoots::default();
        let node = |code: u32, link| PyNode { id: NodeId(1), code: CodeId(code), link, ..PyNode::default() };
        let handler = roots.root_of(&node(1, FrameLink::C), Some("close_at_exit"));
        assert_ne!(handler, StackRoot::MODULE);
        assert_eq!(roots.root_of(&node(1, FrameLink::C), Some("close_at_exit")), handler);
        assert_ne!(roots.root_of(&node(2, FrameLink::C), Some("Model.__del__")), handler);
        for (link, function) in [
            (FrameLink::C, Some("<module>")),
            (FrameLink::C, Some("_run_module_as_main")),
            (FrameLink::Python, Some("deep")),
            (FrameLink::C, None),
        ] {
            assert_eq!(roots.root_of(&node(3, link), function), StackRoot::MODULE, "{function:?}");
        }
    }
}
