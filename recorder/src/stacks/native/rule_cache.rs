//! Rules by address.
//!
//! Constraint: reading the tables costs about a microsecond, a frame may cost a few nanoseconds. Consequence: each thread
//! keeps the rules it has used in a table of slots, one address each; what falls out is read again. When modules may have
//! gone, all are forgotten.
//!
//! A slot also holds where the caller's slot was the last time. That is only a guess, held against the address; but where it is right,
//! the processor need not wait for one frame to begin the next.

use super::rule::UnwindRule;

/// Rules of one thread. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub(crate) struct RuleCache {
    /// In which the rules were read.
    generation: u32,
    slots: [RuleCacheSlot; SLOTS],
}

const SLOTS: usize = 8192;
/// Slots that an address may lie in. With fewer, addresses that come in turn would push each other out.
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct RuleCacheSlot {
    /// Twice the address, plus one if it was interrupted. 0: empty.
    key: usize,
    rule: UnwindRule,
    /// The slot of the caller.
    next: u32,
}

const EMPTY: RuleCacheSlot = RuleCacheSlot { key: 0, rule: UnwindRule::OUTERMOST, next: 0 };

fn key_of(pc: usize, is_interrupted: bool) -> usize {
    pc << 1 | usize::from(is_interrupted)
}

/// The first slot that an address may lie in.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop over all frames")]
fn first_of(key: usize) -> usize {
    ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize % (SLOTS / WAYS) * WAYS
}

impl RuleCache {
    /// Forgets all rules that were read in another generation.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn begin(&mut self, generation: u32) {
        if self.generation != generation {
            self.forget(generation);
        }
    }

    #[cold]
    fn forget(&mut self, generation: u32) {
        self.slots.fill(EMPTY);
        self.generation = generation;
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn find(&self, key: usize) -> Option<usize> {
        let first = first_of(key);
        (first..first + WAYS).find(|place| self.slots[*place].key == key)
    }

    /// The rule for an address, and its place; `read` is asked when it is not known, and its answer is remembered if there is
    /// one. `callee` is the place of the frame that it called.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn rule(
        &mut self,
        callee: usize,
        (pc, is_interrupted): (usize, bool),
        read: impl FnOnce(usize, bool) -> Option<UnwindRule>,
    ) -> (UnwindRule, usize) {
        let key = key_of(pc, is_interrupted);
        let guess = self.slots[callee % SLOTS].next as usize % SLOTS;
        if self.slots[guess].key == key {
            return (self.slots[guess].rule, guess);
        }
        let place = match self.find(key) {
            Some(place) => place,
            None => match read(pc, is_interrupted) {
                Some(rule) => self.insert(key, rule),
                None => return (UnwindRule::NO_TABLES, callee),
            },
        };
        self.slots[callee % SLOTS].next = place as u32;
        (self.slots[place].rule, place)
    }

    #[cold]
    fn insert(&mut self, key: usize, rule: UnwindRule) -> usize {
        let first = first_of(key);
        let set = &mut self.slots[first..first + WAYS];
        let way = set.iter().position(|slot| slot.key == 0).unwrap_or_else(|| {
            // The last one goes.
            set.rotate_right(1);
            0
        });
        set[way] = RuleCacheSlot { key, rule, ..EMPTY };
        first + way
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::rule::UnwindMethod;
    use super::*;

    fn empty() -> Box<RuleCache> {
        // SAFETY: zero bytes are the documented empty state, and the layout is its own.
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<RuleCache>()).cast()) }
    }

    fn rule(offset: i32) -> UnwindRule {
        UnwindRule { how: UnwindMethod::FromSp, offset, ..UnwindRule::default() }
    }

    fn ask(cache: &mut RuleCache, pc: usize, answer: Option<UnwindRule>) -> (UnwindRule, usize, usize) {
        let mut asked = 0;
        let (rule, place) = cache.rule(0, (pc, false), |_, _| {
            asked += 1;
            answer
        });
        (rule, place, asked)
    }

    #[test]
    fn a_rule_is_read_once_in_a_generation() {
        let mut cache = empty();
        assert_eq!(size_of::<RuleCacheSlot>(), 32);
        for (generation, reads) in [(1, 1), (1, 0), (2, 1), (2, 0)] {
            cache.begin(generation);
            let (found, _, asked) = ask(&mut cache, 0x1234, Some(rule(8)));
            assert_eq!((found, asked), (rule(8), reads));
        }
        assert_eq!(cache.rule(0, (0x1234, true), |_, _| Some(rule(16))).0, rule(16));
    }

    #[test]
    fn what_has_no_rule_is_asked_again() {
        let mut cache = empty();
        assert_eq!(ask(&mut cache, 0x99, None).0, UnwindRule::NO_TABLES);
        assert_eq!(ask(&mut cache, 0x99, Some(rule(8))).0, rule(8));
    }

    #[test]
    fn addresses_that_share_a_slot_do_not_share_a_rule() {
        let mut cache = empty();
        for pc in 0x40_0000..0x40_0000 + 3 * SLOTS {
            for pc in [pc, pc - pc % 7] {
                let expected = rule((pc & 0xffff) as i32);
                assert_eq!(ask(&mut cache, pc, Some(expected)).0, expected);
            }
        }
    }
}
