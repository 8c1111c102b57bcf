//! From frames to one id: the cache that keeps a repeated stack cheap.
//!
//! Constraint: every event needs the id of its stack, in tens of nanoseconds, without a lock and without allocating.
//! Consequence: each thread has its own fixed tables. What did not change since the last stack costs one comparison a frame; only the
//! frames below it are looked up in [`NodeCache`]. A full table forgets: the frame is then defined again under a new id, which
//! replay merges by content. So memory is constant, and no stack is ever "too many".
//!
//! A node is looked up by what it *is*, all frames from the outermost one on ([`StackHash`]), not by the id of its caller: so where one is
//! forgotten and defined again, those below it are still found, and finding one need not wait for finding its caller. The path is a hash
//! of 64 bits; that two of a million stacks have the same is less likely than one in ten million.

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

/// A stack, from its outermost frame to one of its frames. No frames: 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct StackHash(u64);

impl StackHash {
    /// One frame further in.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loops over all frames")]
    pub(crate) fn then(self, frame: &FrameKey) -> Self {
        let own = (frame.code as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (frame.instr as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ frame.tag.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        // Only this line waits for the frame before.
        Self((self.0.rotate_left(26) ^ own ^ own >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd))
    }
}

/// The last stack of a thread, outermost frame first, with the node of each frame.
#[derive(Debug)]
pub(crate) struct LastStack {
    len: usize,
    frames: [(StackHash, NodeId); MAX_DEPTH],
}

/// Nodes by path, each in one of two sets: the second one takes what the first has no room for, so that hardly anything is forgotten
/// before the table is nearly full. What was defined last goes last.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct NodeCache {
    sets: [[(StackHash, NodeId); NODE_WAYS]; NODE_SETS],
}

/// One cache line.
const NODE_WAYS: usize = 4;
const NODE_SETS: usize = 8192;

impl NodeCache {
    /// The node of a path; `define` gives it one if it is not known, or `None` if that could not be recorded.
    #[inline]
    pub(crate) fn find_or(
        &mut self,
        path: StackHash,
        define: impl FnOnce() -> Option<NodeId>,
    ) -> Option<NodeId> {
        let [first, second] = Self::sets_of(path);
        for set in [first, second] {
            let set = &self.sets[set];
            if let Some((_, node)) = set.iter().find(|(known, node)| *known == path && *node != NodeId::NONE)
            {
                return Some(*node);
            }
            // Only a full set has sent others on.
            if set[NODE_WAYS - 1].1 == NodeId::NONE {
                break;
            }
        }
        let node = define()?;
        let has_room = |set: usize| self.sets[set][NODE_WAYS - 1].1 == NodeId::NONE;
        let set = &mut self.sets[if !has_room(first) && has_room(second) { second } else { first }];
        set.rotate_right(1);
        set[0] = (path, node);
        Some(node)
    }

    fn sets_of(path: StackHash) -> [usize; 2] {
        [48, 32].map(|shift| (path.0 >> shift) as usize % NODE_SETS)
    }
}

/// Memo and cache of one kind of stack of one thread. All zero bytes are a valid, empty value: the memory comes straight
/// from the kernel and is never initialised by hand.
#[derive(Debug)]
pub struct StackCache {
    memo: LastStack,
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
        let (mut parent, mut path) = (NodeId::NONE, StackHash::default());
        let old_len = std::mem::take(&mut self.memo.len);
        for frame in self.frames[..depth].iter().rev() {
            path = path.then(frame);
            let at = self.memo.len;
            let node = if at < old_len && self.memo.frames[at].0 == path {
                self.memo.frames[at].1
            } else {
                match self.nodes.find_or(path, || define(parent, frame)) {
                    Some(node) => node,
                    None => return parent,
                }
            };
            self.memo.frames[at] = (path, node);
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
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<StackCache>()).cast()) }
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
    fn what_is_forgotten_does_not_make_those_below_it_be_defined_again() {
        let mut cache = empty();
        let mut defined = 0;
        let mut intern = |cache: &mut StackCache, depth: usize| {
            let before = defined;
            cache.intern(depth, |_, _| {
                defined += 1;
                Some(NodeId(defined))
            });
            defined - before
        };
        let fill = |cache: &mut StackCache, innermost: usize| {
            for (place, code) in cache.frames.iter_mut().zip([innermost, 3, 2, 1]) {
                *place = key(code);
            }
        };
        fill(&mut cache, 100);
        assert_eq!(intern(&mut cache, 4), 4);
        // The outermost one goes.
        let path = StackHash::default().then(&key(1));
        cache.nodes.sets[NodeCache::sets_of(path)[0]] = [(StackHash::default(), NodeId::NONE); NODE_WAYS];
        cache.memo.len = 0;
        assert_eq!(intern(&mut cache, 4), 1);
    }

    #[test]
    fn a_table_with_room_forgets_nothing() {
        let mut cache = empty();
        let paths: Vec<_> =
            (0..NODE_SETS * NODE_WAYS / 2).map(|code| StackHash::default().then(&key(code))).collect();
        for (number, path) in paths.iter().enumerate() {
            cache.nodes.find_or(*path, || Some(NodeId(number as u32 + 1)));
        }
        let mut again = 0;
        for (number, path) in paths.iter().enumerate() {
            let node = cache.nodes.find_or(*path, || {
                again += 1;
                Some(NodeId(number as u32 + 1))
            });
            assert_eq!(node, Some(NodeId(number as u32 + 1)));
        }
        assert!(again < 100, "{again} of {} were forgotten", paths.len());
    }

    #[test]
    fn paths_of_many_stacks_differ() {
        let mut paths = std::collections::HashSet::new();
        for code in 0..100usize {
            for line in 0..100usize {
                let outer = StackHash::default().then(&FrameKey {
                    code: 0x7f00_0000 + code * 64,
                    instr: 2 * line,
                    tag: 5,
                });
                for inner in 0..20usize {
                    paths.insert(
                        outer
                            .then(&FrameKey {
                                code: 0x7f00_0000 + inner * 64,
                                instr: 0x7f00_1000 + 2 * line,
                                tag: 6,
                            })
                            .0,
                    );
                }
                paths.insert(outer.0);
            }
        }
        assert_eq!(paths.len(), 100 * 100 * 21);
        assert_ne!(
            StackHash::default().then(&key(1)).then(&key(2)),
            StackHash::default().then(&key(2)).then(&key(1)),
            "the order counts"
        );
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
