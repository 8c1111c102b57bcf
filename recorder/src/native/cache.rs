//! Rules by address, and the node that was last reached from there.
//!
//! Constraint: reading the tables costs about a microsecond, a frame may cost five nanoseconds. Consequence: each thread
//! keeps the rules it has used in a table of slots, one address each; what falls out is read again. Addresses are forgotten
//! together, when modules may have gone: each slot notes the generation in which it was filled.
//!
//! A slot is half a cache line, and is loaded for the rule in any case. So it also holds the last answer to "which node is
//! this address under that caller", which makes most answers independent of the one before.

use gpumemtrace_format::NodeId;

use super::rule::Rule;

/// Rules of one thread. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub struct RuleCache {
    sets: [[Slot; WAYS]; SETS],
}

const SETS: usize = 2048;
/// Few enough to look at; with fewer, addresses that come in turn would push each other out.
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct Slot {
    /// Twice the address, plus one if it was interrupted. 0: empty.
    key: usize,
    rule: Rule,
    generation: u32,
    parent: NodeId,
    node: NodeId,
}

fn key_of(pc: usize, is_interrupted: bool) -> usize {
    pc << 1 | usize::from(is_interrupted)
}

impl RuleCache {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    fn set(&mut self, key: usize) -> &mut [Slot; WAYS] {
        let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.sets[(hash >> 53) as usize % SETS]
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn slot(&mut self, key: usize) -> Option<&mut Slot> {
        self.set(key).iter_mut().find(|slot| slot.key == key)
    }

    /// The rule for an address; `read` is asked when it is not known, and its answer is remembered if there is one.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub fn rule(
        &mut self,
        (pc, is_interrupted): (usize, bool),
        generation: u32,
        read: impl FnOnce(usize, bool) -> Option<Rule>,
    ) -> Rule {
        let key = key_of(pc, is_interrupted);
        if let Some(slot) = self.slot(key)
            && slot.generation == generation
        {
            return slot.rule;
        }
        let Some(rule) = read(pc, is_interrupted) else { return Rule::SLOWLY };
        self.insert(Slot { key, rule, generation, parent: NodeId::NONE, node: NodeId::NONE });
        rule
    }

    #[cold]
    fn insert(&mut self, slot: Slot) {
        let set = self.set(slot.key);
        let is_free = |held: &Slot| held.key == slot.key || held.generation != slot.generation;
        let place = set.iter().position(is_free).unwrap_or_else(|| {
            // The last one goes.
            set.rotate_right(1);
            0
        });
        set[place] = slot;
    }

    /// The node of an address under its caller's node, if it was the last one asked for.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub fn node(&mut self, pc: usize, is_interrupted: bool, parent: NodeId) -> Option<NodeId> {
        let slot = self.slot(key_of(pc, is_interrupted))?;
        (slot.parent == parent && slot.node != NodeId::NONE).then_some(slot.node)
    }

    /// Remembers it, if the address has a slot.
    pub fn set_node(&mut self, pc: usize, is_interrupted: bool, parent: NodeId, node: NodeId) {
        if let Some(slot) = self.slot(key_of(pc, is_interrupted)) {
            (slot.parent, slot.node) = (parent, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::How;
    use super::*;

    fn empty() -> Box<RuleCache> {
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<RuleCache>()).cast()) }
    }

    fn rule(offset: i32) -> Rule {
        Rule { how: How::FromSp, offset, ..Rule::default() }
    }

    #[test]
    fn a_rule_is_read_once_in_a_generation() {
        let mut cache = empty();
        assert_eq!(size_of::<Slot>(), 32);
        for (generation, reads) in [(1, 1), (1, 0), (2, 1), (2, 0)] {
            let mut asked = 0;
            let found = cache.rule((0x1234, false), generation, |_, _| {
                asked += 1;
                Some(rule(8))
            });
            assert_eq!((found, asked), (rule(8), reads));
        }
        assert_eq!(cache.rule((0x1234, true), 2, |_, _| Some(rule(16))), rule(16));
    }

    #[test]
    fn what_has_no_rule_is_asked_again() {
        let mut cache = empty();
        assert_eq!(cache.rule((0x99, false), 1, |_, _| None), Rule::SLOWLY);
        assert_eq!(cache.rule((0x99, false), 1, |_, _| Some(rule(8))), rule(8));
    }

    #[test]
    fn addresses_that_share_a_slot_do_not_share_a_rule() {
        let mut cache = empty();
        for pc in 0x40_0000..0x40_0000 + 3 * SETS * WAYS {
            let expected = rule((pc & 0xffff) as i32);
            assert_eq!(cache.rule((pc, false), 1, |_, _| Some(expected)), expected);
        }
    }

    #[test]
    fn a_node_belongs_to_an_address_and_a_caller() {
        let mut cache = empty();
        cache.set_node(5, false, NodeId(1), NodeId(2));
        assert_eq!(cache.node(5, false, NodeId(1)), None, "an address without a slot has no node");
        cache.rule((5, false), 1, |_, _| Some(rule(8)));
        cache.set_node(5, false, NodeId(1), NodeId(2));
        assert_eq!(cache.node(5, false, NodeId(1)), Some(NodeId(2)));
        assert_eq!(cache.node(5, false, NodeId(3)), None);
        assert_eq!(cache.node(6, false, NodeId(1)), None);
    }
}
