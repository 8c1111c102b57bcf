//! Maps stacks to node ids: the table of the nodes that a thread has defined.
//!
//! A node is found by the hash of all its frames from the outermost on ([`StackHash`]), not by the
//! id of its caller. So a stack is looked up from its innermost frame outwards, and a known stack
//! costs one look-up, however deep it is. Nodes of its outer frames may have been evicted; only a
//! new frame right below them defines them again. The hash has 64 bits: among a million stacks, two
//! have the same hash with a probability below one in ten million.

use std::hint::select_unpredictable;

use gpumemtrace_format::NodeId;

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

/// A stack from its outermost frame to one entry. Zero bytes are the stack without frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct StackPrefix {
    /// The hash of its frames.
    pub(crate) hash: StackHash,
    node: NodeId,
    /// Number of shown frames.
    pub(crate) depth: u16,
    /// Whether stacks show the last entry.
    ends_in_frame: bool,
}

impl StackPrefix {
    /// [`NodeId::NONE`] if it has not been looked up, or if there is no frame.
    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    /// This stack with one more inner frame.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loops over all frames")]
    pub(crate) fn with_frame(&self, frame: &FrameKey) -> Self {
        let hash = self.hash.with_frame(frame);
        Self { hash, node: NodeId::NONE, depth: self.depth + 1, ends_in_frame: true }
    }

    /// This stack with one more entry that stacks do not show.
    #[must_use]
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loops over all frames")]
    pub(crate) fn with_hidden_entry(&self) -> Self {
        Self { ends_in_frame: false, ..*self }
    }
}

/// Nodes by stack hash. Each node lies in one of two sets; the second takes a node if the first is
/// full. So few nodes are evicted before the table is nearly full. The oldest node of a set is
/// evicted first. A table of zero bytes is empty.
#[derive(Debug)]
pub(crate) struct NodeCache {
    sets: [NodeSet; NODE_SETS],
}

/// The nodes of a set, newest first. Fills one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct NodeSet {
    hashes: [StackHash; NODE_WAYS],
    nodes: [NodeId; NODE_WAYS],
}

const NODE_WAYS: usize = 5;
const NODE_SETS: usize = 8192;
const _: () = assert!(size_of::<NodeSet>() == 64);

impl NodeSet {
    /// [`NodeId::NONE`] if the set does not hold this stack. Compares all entries without a branch:
    /// which of them matches cannot be predicted, and a wrong prediction would also delay the
    /// loads of the next look-up.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "a few instructions for each entry")]
    fn find(&self, hash: StackHash) -> NodeId {
        let mut found = 0;
        for (known, node) in self.hashes.iter().zip(&self.nodes) {
            found |= select_unpredictable(*known == hash, node.0, 0);
        }
        NodeId(found)
    }

    fn is_full(&self) -> bool {
        self.nodes[NODE_WAYS - 1] != NodeId::NONE
    }
}

impl NodeCache {
    /// The node of a stack; [`NodeId::NONE`] if it is unknown.
    #[inline]
    fn find(&self, hash: StackHash) -> NodeId {
        let [first, second] = Self::sets_of(hash).map(|set| &self.sets[set]);
        match first.find(hash) {
            // Nodes overflow into the second set only if the first is full.
            NodeId::NONE if first.is_full() => second.find(hash),
            node => node,
        }
    }

    fn insert(&mut self, hash: StackHash, node: NodeId) {
        let [first, second] = Self::sets_of(hash);
        let is_second = self.sets[first].is_full() && !self.sets[second].is_full();
        let set = &mut self.sets[if is_second { second } else { first }];
        set.hashes.rotate_right(1);
        set.nodes.rotate_right(1);
        (set.hashes[0], set.nodes[0]) = (hash, node);
    }

    /// The node of a stack. If it is unknown, `define` gives it a new one, or `None` if the
    /// definition could not be recorded.
    pub(crate) fn find_or_define(
        &mut self,
        hash: StackHash,
        define: impl FnOnce() -> Option<NodeId>,
    ) -> Option<NodeId> {
        let known = self.find(hash);
        if known != NodeId::NONE {
            return Some(known);
        }
        let node = define()?;
        self.insert(hash, node);
        Some(node)
    }

    /// Finds the node of a stack, which is given by all its prefixes, outermost first. Returns the
    /// number of prefixes up to that node.
    ///
    /// `define(parent, at)` is called for the last frame of each prefix `at` that has to be
    /// defined, outer ones first, and returns its new id. If it returns `None`, the definition
    /// could not be recorded, and the node of the outer part of the stack is returned.
    #[inline]
    pub(crate) fn resolve(
        &mut self,
        prefixes: &mut [StackPrefix],
        define: impl FnMut(NodeId, usize) -> Option<NodeId>,
    ) -> (usize, NodeId) {
        let len = prefixes.len();
        if let Some(last) = prefixes.last_mut() {
            if last.node == NodeId::NONE {
                last.node = self.find(last.hash);
            }
            if last.node != NodeId::NONE {
                return (len, last.node);
            }
        }
        self.define_missing(prefixes, define)
    }

    #[inline(never)]
    fn define_missing(
        &mut self,
        prefixes: &mut [StackPrefix],
        mut define: impl FnMut(NodeId, usize) -> Option<NodeId>,
    ) -> (usize, NodeId) {
        let mut missing = 0;
        for (at, prefix) in prefixes.iter_mut().enumerate().rev() {
            if prefix.node == NodeId::NONE {
                prefix.node = self.find(prefix.hash);
            }
            if prefix.node != NodeId::NONE {
                missing = at + 1;
                break;
            }
        }
        let mut node = missing.checked_sub(1).map_or(NodeId::NONE, |at| prefixes[at].node);
        for (at, prefix) in prefixes.iter_mut().enumerate().skip(missing) {
            if prefix.ends_in_frame {
                match define(node, at) {
                    Some(defined) => node = defined,
                    None => return (at, node),
                }
                self.insert(prefix.hash, node);
            }
            prefix.node = node;
        }
        (prefixes.len(), node)
    }

    fn sets_of(hash: StackHash) -> [usize; 2] {
        [48, 32].map(|shift| (hash.0 >> shift) as usize % NODE_SETS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<NodeCache> {
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<NodeCache>()).cast()) }
    }

    fn key(code: usize) -> FrameKey {
        FrameKey { code, instr: code * 2, tag: 7 }
    }

    fn prefixes(codes: &[usize]) -> Vec<StackPrefix> {
        let mut last = StackPrefix::default();
        let mut with = |code: &usize| {
            last = if *code == 0 { last.with_hidden_entry() } else { last.with_frame(&key(*code)) };
            last
        };
        codes.iter().map(&mut with).collect()
    }

    /// Resolves a stack; returns the parents and places of the definitions.
    fn resolve(cache: &mut NodeCache, codes: &[usize], ids: &mut u32) -> Vec<(NodeId, usize)> {
        let mut defined = Vec::new();
        let (len, _) = cache.resolve(&mut prefixes(codes), |parent, at| {
            defined.push((parent, at));
            *ids += 1;
            Some(NodeId(*ids))
        });
        assert_eq!(len, codes.len());
        defined
    }

    fn forget(cache: &mut NodeCache, codes: &[usize]) {
        for prefix in prefixes(codes) {
            for set in NodeCache::sets_of(prefix.hash) {
                cache.sets[set] =
                    NodeSet { hashes: [StackHash(0); NODE_WAYS], nodes: [NodeId::NONE; NODE_WAYS] };
            }
        }
    }

    #[test]
    fn known_stack_needs_no_node_of_its_outer_frames() {
        let (mut cache, mut ids) = (empty(), 0);
        let all = [(NodeId::NONE, 0), (NodeId(1), 1), (NodeId(2), 2), (NodeId(3), 3)];
        assert_eq!(resolve(&mut cache, &[1, 2, 3, 4], &mut ids), all);
        forget(&mut cache, &[1, 2]);
        assert_eq!(resolve(&mut cache, &[1, 2, 3, 4], &mut ids), []);
        assert_eq!(resolve(&mut cache, &[1, 2, 3, 5], &mut ids), [(NodeId(3), 3)]);
        // A new frame below an evicted one needs it.
        assert_eq!(
            resolve(&mut cache, &[1, 2, 9], &mut ids),
            [(NodeId::NONE, 0), (NodeId(6), 1), (NodeId(7), 2)]
        );
    }

    #[test]
    fn hidden_entries_have_the_node_of_their_caller() {
        let (mut cache, mut ids) = (empty(), 0);
        assert_eq!(resolve(&mut cache, &[0, 1, 0, 0, 2, 0], &mut ids), [(NodeId::NONE, 1), (NodeId(1), 4)]);
        assert_eq!(cache.resolve(&mut prefixes(&[0, 1, 0]), |_, _| None), (3, NodeId(1)));
        assert_eq!(cache.resolve(&mut prefixes(&[0, 1, 0, 3, 4]), |_, _| None), (3, NodeId(1)));
        assert_eq!(cache.resolve(&mut prefixes(&[0, 0]), |_, _| None), (2, NodeId::NONE));
        assert_eq!(cache.resolve(&mut [], |_, _| None), (0, NodeId::NONE));
    }

    #[test]
    fn half_full_table_evicts_almost_nothing() {
        let mut cache = empty();
        let hashes: Vec<_> =
            (0..NODE_SETS * NODE_WAYS / 2).map(|code| StackHash::default().with_frame(&key(code))).collect();
        for (number, hash) in hashes.iter().enumerate() {
            cache.find_or_define(*hash, || Some(NodeId(number as u32 + 1)));
        }
        let mut again = 0;
        for (number, hash) in hashes.iter().enumerate() {
            let node = cache.find_or_define(*hash, || {
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
}
