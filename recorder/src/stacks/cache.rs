//! Maps stacks to node ids, cheaply for repeated stacks.
//!
//! Every event needs the id of its stack within tens of nanoseconds, without a lock or an
//! allocation. So each thread has its own fixed tables. A frame that is unchanged since the last
//! stack costs one comparison; only the frames below the first change are looked up in
//! [`NodeCache`]. A full table evicts entries. An evicted frame is defined again under a new id,
//! and replay merges both ids by content. So memory is constant, and any number of stacks can be
//! recorded.
//!
//! A node is found by the hash of all its frames from the outermost on ([`StackHash`]), not by the
//! id of its caller. So if a caller is evicted and defined again, the frames below it are still
//! found. A look-up need not wait for the look-up of the caller either. The hash has 64 bits: among
//! a million stacks, two have the same hash with a probability below one in ten million.

use gpumemtrace_format::NodeId;

/// Largest number of frames in a recorded stack. Outer frames beyond it are omitted, and the stack
/// counts as truncated.
pub const MAX_DEPTH: usize = 256;

/// Identifies a frame within a running process.
///
/// For Python: code object, instruction, and a tag that distinguishes code objects that lived at
/// the same address. For native code: the return address alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FrameKey {
    /// Address of the code object; 0 for native frames.
    pub code: usize,
    /// Instruction pointer, instruction index or return address.
    pub instr: usize,
    /// Serial number or fingerprint of the code object; 0 for native frames.
    pub tag: u64,
}

/// The hash of a stack, from its outermost frame to one of its frames. A stack without frames has
/// 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct StackHash(u64);

impl StackHash {
    /// The hash of this stack with one more inner frame.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loops over all frames")]
    pub(crate) fn with_frame(self, frame: &FrameKey) -> Self {
        let own = (frame.code as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (frame.instr as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ frame.tag.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        // Only this line depends on the outer frames.
        Self((self.0.rotate_left(26) ^ own ^ own >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd))
    }
}

/// The last stack of a thread, outermost frame first, with the node of each frame.
#[derive(Debug)]
pub(crate) struct LastStack {
    len: usize,
    frames: [(StackHash, NodeId); MAX_DEPTH],
}

/// Nodes by stack hash. Each node lies in one of two sets; the second takes a node if the first is
/// full, so that few nodes are evicted before the table is nearly full. The oldest node of a set is
/// evicted first.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct NodeCache {
    sets: [[(StackHash, NodeId); NODE_WAYS]; NODE_SETS],
}

/// Entries of a set, which fills one cache line.
const NODE_WAYS: usize = 4;
const NODE_SETS: usize = 8192;

impl NodeCache {
    /// The node of a stack. If it is unknown, `define` gives it a new one, or `None` if the
    /// definition could not be recorded.
    #[inline]
    pub(crate) fn find_or_define(
        &mut self,
        hash: StackHash,
        define: impl FnOnce() -> Option<NodeId>,
    ) -> Option<NodeId> {
        let [first, second] = Self::sets_of(hash);
        for set in [first, second] {
            let set = &self.sets[set];
            if let Some((_, node)) = set.iter().find(|(known, node)| *known == hash && *node != NodeId::NONE)
            {
                return Some(*node);
            }
            // Nodes overflow into the second set only if the first is full.
            if set[NODE_WAYS - 1].1 == NodeId::NONE {
                break;
            }
        }
        let node = define()?;
        let has_space = |set: usize| self.sets[set][NODE_WAYS - 1].1 == NodeId::NONE;
        let set = &mut self.sets[if !has_space(first) && has_space(second) { second } else { first }];
        set.rotate_right(1);
        set[0] = (hash, node);
        Some(node)
    }

    fn sets_of(hash: StackHash) -> [usize; 2] {
        [48, 32].map(|shift| (hash.0 >> shift) as usize % NODE_SETS)
    }
}

/// Interns the stacks of one thread. All zero bytes are a valid, empty value: the memory comes from
/// the kernel and is never initialised by hand.
#[derive(Debug)]
pub struct StackCache {
    last: LastStack,
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
        let (mut parent, mut hash) = (NodeId::NONE, StackHash::default());
        let old_len = std::mem::take(&mut self.last.len);
        for frame in self.frames[..depth].iter().rev() {
            hash = hash.with_frame(frame);
            let at = self.last.len;
            let node = if at < old_len && self.last.frames[at].0 == hash {
                self.last.frames[at].1
            } else {
                match self.nodes.find_or_define(hash, || define(parent, frame)) {
                    Some(node) => node,
                    None => return parent,
                }
            };
            self.last.frames[at] = (hash, node);
            self.last.len += 1;
            parent = node;
        }
        parent
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
    fn evicted_outer_frame_does_not_redefine_inner_frames() {
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
        // Evict the outermost frame.
        let hash = StackHash::default().with_frame(&key(1));
        cache.nodes.sets[NodeCache::sets_of(hash)[0]] = [(StackHash::default(), NodeId::NONE); NODE_WAYS];
        cache.last.len = 0;
        assert_eq!(intern(&mut cache, 4), 1);
    }

    #[test]
    fn half_full_table_evicts_almost_nothing() {
        let mut cache = empty();
        let hashes: Vec<_> =
            (0..NODE_SETS * NODE_WAYS / 2).map(|code| StackHash::default().with_frame(&key(code))).collect();
        for (number, hash) in hashes.iter().enumerate() {
            cache.nodes.find_or_define(*hash, || Some(NodeId(number as u32 + 1)));
        }
        let mut again = 0;
        for (number, hash) in hashes.iter().enumerate() {
            let node = cache.nodes.find_or_define(*hash, || {
                again += 1;
                Some(NodeId(number as u32 + 1))
            });
            assert_eq!(node, Some(NodeId(number as u32 + 1)));
        }
        assert!(again < 100, "{again} of {} were evicted", hashes.len());
    }

    #[test]
    fn hashes_of_many_stacks_differ() {
        let mut hashes = std::collections::HashSet::new();
        for code in 0..100usize {
            for line in 0..100usize {
                let outer = StackHash::default().with_frame(&FrameKey {
                    code: 0x7f00_0000 + code * 64,
                    instr: 2 * line,
                    tag: 5,
                });
                for inner in 0..20usize {
                    hashes.insert(
                        outer
                            .with_frame(&FrameKey {
                                code: 0x7f00_0000 + inner * 64,
                                instr: 0x7f00_1000 + 2 * line,
                                tag: 6,
                            })
                            .0,
                    );
                }
                hashes.insert(outer.0);
            }
        }
        assert_eq!(hashes.len(), 100 * 100 * 21);
        assert_ne!(
            StackHash::default().with_frame(&key(1)).with_frame(&key(2)),
            StackHash::default().with_frame(&key(2)).with_frame(&key(1)),
            "the order of frames matters"
        );
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
