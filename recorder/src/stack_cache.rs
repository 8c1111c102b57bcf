//! From frames to one id: the cache that keeps a repeated stack cheap.
//!
//! Constraint: every event needs the id of its stack, in tens of nanoseconds, without a lock and without allocating.
//! Consequence: each thread has its own fixed tables. [`Memo`] remembers the last stack outermost first, so the part that
//! did not change costs one comparison a frame; only the frames below it are looked up in [`NodeCache`]. A full table
//! forgets: the frame is then defined again under a new id, which replay merges by content. So memory is constant, and
//! no stack is ever "too many".

use gpumemtrace_format::NodeId;

/// Deepest stack recorded; what lies further out is cut and counted.
pub const MAX_DEPTH: usize = 256;

/// What identifies a frame within a running process. For Python: code object, instruction, and a tag that tells apart two
/// code objects that lived at one address. For native code: the return address alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FrameKey {
    /// Code object; 0 for native frames.
    pub code: usize,
    /// Instruction pointer.
    pub instr: usize,
    /// Serial number or fingerprint of the code object.
    pub tag: u64,
}

impl FrameKey {
    fn hash(&self, parent: NodeId) -> u64 {
        let mut hash = u64::from(parent.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for word in [self.code as u64, self.instr as u64, self.tag] {
            hash = (hash.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
        hash ^ hash >> 32
    }
}

/// The last stack of a thread, outermost frame first, with the node of each frame.
#[derive(Debug)]
pub struct Memo {
    len: usize,
    frames: [(FrameKey, NodeId); MAX_DEPTH],
}

/// Nodes by (parent, frame). Two ways a set; the older one goes.
#[derive(Debug)]
pub struct NodeCache {
    sets: [[(NodeId, FrameKey, NodeId); 2]; NODE_SETS],
}

const NODE_SETS: usize = 2048;

impl NodeCache {
    fn set(&mut self, parent: NodeId, frame: &FrameKey) -> &mut [(NodeId, FrameKey, NodeId); 2] {
        &mut self.sets[frame.hash(parent) as usize % NODE_SETS]
    }

    /// The node of a frame under its caller's node.
    pub(crate) fn lookup(&mut self, parent: NodeId, frame: &FrameKey) -> Option<NodeId> {
        let set = self.set(parent, frame);
        set.iter()
            .find(|(p, f, node)| *node != NodeId::NONE && *p == parent && f == frame)
            .map(|(_, _, node)| *node)
    }

    /// The node of a frame; `define` gives it one if it is not known, or `None` if that could not be recorded.
    #[inline]
    pub(crate) fn find_or(
        &mut self,
        parent: NodeId,
        frame: &FrameKey,
        define: impl FnOnce(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> Option<NodeId> {
        self.lookup(parent, frame).or_else(|| {
            let node = define(parent, frame)?;
            self.insert(parent, *frame, node);
            Some(node)
        })
    }

    /// Remembers it.
    pub(crate) fn insert(&mut self, parent: NodeId, frame: FrameKey, node: NodeId) {
        let set = self.set(parent, &frame);
        set[1] = set[0];
        set[0] = (parent, frame, node);
    }
}

/// Memo and cache of one kind of stack of one thread. All zero bytes are a valid, empty value: the memory comes straight
/// from the kernel and is never initialised by hand.
#[derive(Debug)]
pub struct StackCache {
    memo: Memo,
    nodes: NodeCache,
    /// The frames of the stack being captured, innermost first.
    pub frames: [FrameKey; MAX_DEPTH],
}

impl StackCache {
    /// The node of a stack whose `depth` frames are in [`Self::frames`].
    ///
    /// `define(parent, frame)` is called for each frame not known yet and returns its new id, or `None` when the definition
    /// could not be recorded: the stack is then cut there (its outer part is returned).
    pub fn intern(
        &mut self,
        depth: usize,
        mut define: impl FnMut(NodeId, &FrameKey) -> Option<NodeId>,
    ) -> NodeId {
        let frames = &self.frames[..depth];
        let known = frames.iter().rev().zip(&self.memo.frames[..self.memo.len]);
        let same = known.take_while(|(frame, (memo, _))| *frame == memo).count();
        let mut parent = if same == 0 { NodeId::NONE } else { self.memo.frames[same - 1].1 };
        self.memo.len = same;
        for frame in frames.iter().rev().skip(same) {
            let Some(node) = self.nodes.find_or(parent, frame, &mut define) else { return parent };
            self.memo.frames[self.memo.len] = (*frame, node);
            self.memo.len += 1;
            parent = node;
        }
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn empty() -> Box<StackCache> {
        // The value is too large for the stack of a debug build; zeroed memory is its documented empty state.
        let nothing = (NodeId::NONE, FrameKey::default(), NodeId::NONE);
        let sets: Box<[[(NodeId, FrameKey, NodeId); 2]; NODE_SETS]> =
            vec![[nothing; 2]; NODE_SETS].try_into().unwrap();
        Box::new(StackCache {
            memo: Memo { len: 0, frames: [(FrameKey::default(), NodeId::NONE); MAX_DEPTH] },
            nodes: NodeCache { sets: *sets },
            frames: [FrameKey::default(); MAX_DEPTH],
        })
    }

    fn key(code: usize) -> FrameKey {
        FrameKey { code, instr: code * 2, tag: 7 }
    }

    /// Interns stacks (innermost first) and resolves each id back through what was defined.
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
            assert_eq!(node, NodeId::NONE, "the stack has exactly its own frames");
        }
    }

    proptest! {
        #[test]
        fn an_id_always_stands_for_exactly_the_stack_it_was_given_for(stacks in vec(vec(1usize..5, 0..6), 1..60)) {
            check(&stacks);
        }

        #[test]
        fn also_when_the_table_overflows(stacks in vec(vec(1usize..5000, 0..40), 1..400)) {
            check(&stacks);
        }
    }

    #[test]
    fn a_repeated_stack_defines_nothing() {
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
            "a shorter stack of other frames is another stack"
        );
    }

    #[test]
    fn a_definition_that_fails_cuts_the_stack_and_is_tried_again() {
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
