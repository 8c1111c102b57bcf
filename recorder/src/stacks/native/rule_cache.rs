//! Caches unwind rules by code address.
//!
//! Reading the unwind tables costs about a microsecond, and a frame may cost a few nanoseconds. So
//! each thread keeps the rules that it has used in a set-associative table. An evicted rule is read
//! again. If modules may have been unloaded, all rules are discarded.
//!
//! A slot also remembers the slot of the caller. That is only a guess, which is compared with the
//! address. But if it is right, the processor need not wait for one frame before it begins the
//! next.

use super::rule::UnwindRule;

/// The unwind rules that one thread has used. All zero bytes are a valid, empty value.
#[derive(Debug)]
pub(crate) struct RuleCache {
    /// The unload generation in which the rules were read.
    generation: u32,
    slots: [RuleCacheSlot; SLOTS],
}

const SLOTS: usize = 8192;
/// Slots that an address may use. With fewer, alternating addresses would evict each other.
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
struct RuleCacheSlot {
    /// Twice the address, plus one if it was interrupted. 0 means empty.
    key: usize,
    rule: UnwindRule,
    /// The slot of the caller at the last look-up: a guess.
    caller_slot: u32,
}

const EMPTY: RuleCacheSlot = RuleCacheSlot { key: 0, rule: UnwindRule::OUTERMOST, caller_slot: 0 };

fn key_of(pc: usize, is_interrupted: bool) -> usize {
    pc << 1 | usize::from(is_interrupted)
}

/// The first slot that a key may use.
#[inline(always)]
#[allow(clippy::inline_always, reason = "part of the loop over all frames")]
fn set_start(key: usize) -> usize {
    ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize % (SLOTS / WAYS) * WAYS
}

impl RuleCache {
    /// Discards all rules that were read in another generation.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn sync_generation(&mut self, generation: u32) {
        if self.generation != generation {
            self.reset(generation);
        }
    }

    #[cold]
    fn reset(&mut self, generation: u32) {
        self.slots.fill(EMPTY);
        self.generation = generation;
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn find(&self, key: usize) -> Option<usize> {
        let first = set_start(key);
        (first..first + WAYS).find(|place| self.slots[*place].key == key)
    }

    /// Returns the rule for an address, and its slot.
    ///
    /// `read` supplies an unknown rule; it is stored unless `read` returns `None`. `callee` is the
    /// slot of the frame that this address called.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn find_or_read(
        &mut self,
        callee: usize,
        (pc, is_interrupted): (usize, bool),
        read: impl FnOnce(usize, bool) -> Option<UnwindRule>,
    ) -> (UnwindRule, usize) {
        let key = key_of(pc, is_interrupted);
        let guess = self.slots[callee % SLOTS].caller_slot as usize % SLOTS;
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
        self.slots[callee % SLOTS].caller_slot = place as u32;
        (self.slots[place].rule, place)
    }

    #[cold]
    fn insert(&mut self, key: usize, rule: UnwindRule) -> usize {
        let first = set_start(key);
        let set = &mut self.slots[first..first + WAYS];
        let way = set.iter().position(|slot| slot.key == 0).unwrap_or_else(|| {
            // Evict the oldest entry of the set.
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
        UnwindRule { method: UnwindMethod::FromSp, offset, ..UnwindRule::default() }
    }

    fn look_up(cache: &mut RuleCache, pc: usize, read: Option<UnwindRule>) -> (UnwindRule, usize, usize) {
        let mut reads = 0;
        let (rule, place) = cache.find_or_read(0, (pc, false), |_, _| {
            reads += 1;
            read
        });
        (rule, place, reads)
    }

    #[test]
    fn rule_is_read_once_in_a_generation() {
        let mut cache = empty();
        assert_eq!(size_of::<RuleCacheSlot>(), 32);
        for (generation, reads) in [(1, 1), (1, 0), (2, 1), (2, 0)] {
            cache.sync_generation(generation);
            let (found, _, actual_reads) = look_up(&mut cache, 0x1234, Some(rule(8)));
            assert_eq!((found, actual_reads), (rule(8), reads));
        }
        assert_eq!(cache.find_or_read(0, (0x1234, true), |_, _| Some(rule(16))).0, rule(16));
    }

    #[test]
    fn missing_rule_is_read_again() {
        let mut cache = empty();
        assert_eq!(look_up(&mut cache, 0x99, None).0, UnwindRule::NO_TABLES);
        assert_eq!(look_up(&mut cache, 0x99, Some(rule(8))).0, rule(8));
    }

    #[test]
    fn addresses_in_one_set_keep_their_own_rules() {
        let mut cache = empty();
        for pc in 0x40_0000..0x40_0000 + 3 * SLOTS {
            for pc in [pc, pc - pc % 7] {
                let expected = rule((pc & 0xffff) as i32);
                assert_eq!(look_up(&mut cache, pc, Some(expected)).0, expected);
            }
        }
    }
}
