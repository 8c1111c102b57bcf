//! Interns stacks that no memo remembers.
//!
//! Every event needs the id of its stack within tens of nanoseconds, without a lock or an
//! allocation. So each thread has its own fixed tables. A frame that is unchanged since the last
//! stack costs one comparison (the memos of `python` and `native`); the stack that results is
//! looked up in [`NodeCache`]. A full table evicts entries. An evicted frame is defined again under
//! a new id, and replay merges both ids by content. So memory is constant, and any number of stacks
//! can be recorded.

use gpumemtrace_format::NodeId;

pub use super::node_cache::FrameKey;
use super::node_cache::{NodeCache, StackPrefix};

/// Largest number of frames in a recorded stack. Outer frames beyond it are omitted, and the stack
/// counts as truncated.
pub const MAX_DEPTH: usize = 256;

/// Interns the stacks of one thread. All zero bytes are a valid, empty value: the memory comes from
/// the kernel and is never initialised by hand.
#[derive(Debug)]
pub struct StackCache {
    prefixes: [StackPrefix; MAX_DEPTH],
    nodes: NodeCache,
    /// The frames of the stack to intern, innermost first.
    pub frames: [FrameKey; MAX_DEPTH],
}

impl StackCache {
    /// Returns the node of the stack in the first `depth` entries of [`Self::frames`].
    ///
    /// `define(parent, frame)` is called for each unknown frame and returns its new id. If it
    /// returns `None`, the definition could not be recorded, and the node of the outer part of the
    /// stack is returned.
    pub fn intern(
        &mut self,
        depth: usize,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let Self { prefixes, nodes, frames } = self;
        let (prefixes, frames) = (&mut prefixes[..depth], &frames[..depth]);
        let mut last = StackPrefix::default();
        for (prefix, frame) in prefixes.iter_mut().zip(frames.iter().rev()) {
            last = last.with_frame(frame);
            *prefix = last;
        }
        let (_, node) = nodes.resolve(prefixes, |parent, at| define(parent, &frames[depth - 1 - at]));
        node
    }
}

/// How many frames a walk found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WalkExtent {
    pub(crate) depth: usize,
    /// True if outer frames were omitted.
    pub(crate) is_truncated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn empty() -> Box<StackCache> {
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<StackCache>()).cast()) }
    }

    fn key(code: usize) -> FrameKey {
        FrameKey { code, instr: code * 2, tag: 7 }
    }

    /// Interns stacks (innermost first) and resolves each id through its definitions.
    fn check(stacks: &[Vec<usize>]) {
        let mut cache = empty();
        let mut defined: HashMap<NodeId, (NodeId, FrameKey)> = HashMap::new();
        for stack in stacks {
            for (place, code) in cache.frames.iter_mut().zip(stack) {
                *place = key(*code);
            }
            let mut node = cache.intern(stack.len(), |parent, frame| {
                let id = NodeId(defined.len() as u32 + 1);
                defined.insert(id, (parent, *frame));
                Some(id)
            });
            for code in stack {
                let (parent, frame) = defined[&node];
                assert_eq!(frame, key(*code));
                node = parent;
            }
            assert_eq!(node, NodeId::NONE, "the node has exactly the frames of its stack");
        }
    }

    proptest! {
        #[test]
        fn node_id_resolves_to_exactly_its_stack(stacks in vec(vec(1usize..5, 0..6), 1..60)) {
            check(&stacks);
        }

        #[test]
        fn node_id_resolves_to_its_stack_when_the_table_overflows(stacks in vec(vec(1usize..5000, 0..40), 1..400)) {
            check(&stacks);
        }
    }

    #[test]
    fn repeated_stack_defines_nothing() {
        let mut cache = empty();
        for (place, code) in cache.frames.iter_mut().zip([3, 2, 1]) {
            *place = key(code);
        }
        let mut ids = 0;
        let mut define = |_: NodeId, _: &FrameKey| {
            ids += 1;
            Some(NodeId(ids))
        };
        let first = cache.intern(3, &mut define);
        assert_eq!(cache.intern(3, &mut define), first);
        assert_eq!(
            cache.intern(2, &mut define),
            NodeId(5),
            "a shorter stack with other frames is another stack"
        );
    }

    #[test]
    fn failed_definition_truncates_the_stack_and_is_retried() {
        let mut cache = empty();
        for (place, code) in cache.frames.iter_mut().zip([3, 2, 1]) {
            *place = key(code);
        }
        let outer = cache.intern(3, |_, frame| (frame.code == 1).then_some(NodeId(9)));
        assert_eq!(outer, NodeId(9));
        let whole = cache.intern(3, |_, frame| Some(NodeId(frame.code as u32 + 100)));
        assert_eq!(whole, NodeId(103));
    }
}
