//! The live blocks of a live set, by address.
//!
//! Constraint: nearly every event inserts or removes a block, and the trace chooses the addresses.
//! Consequence: a direct-mapped table, indexed by one multiplication, in front of a hash map that
//! tolerates hostile keys ([`crate::util::seeded_map`]). A new block evicts the block in its slot
//! to the map, so short-lived blocks stay in the table. Long-lived blocks and deliberate collisions
//! end up in the map. Each slot counts its evicted blocks; most operations therefore skip the map.
//! The property test below compares it with a `BTreeMap`.

use crate::state::live_set::LiveBlock;
use crate::util::seeded_map::SeededMap;

/// Initial number of slots.
const INITIAL_SLOTS: usize = 256;
/// Limit of slots: 3.5 MiB. With more live blocks, the map has most of them.
const MAX_SLOTS: usize = 1 << 16;
/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Debug, Default)]
struct MapSlot {
    addr: u64,
    block: LiveBlock,
    is_used: bool,
    /// Blocks of this slot that are in the map.
    evicted: u32,
}

/// A map from addresses to live blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockMap {
    slots: Vec<MapSlot>,
    /// Number of used slots.
    used: usize,
    /// Blocks evicted from their slots.
    map: SeededMap<u64, LiveBlock>,
}

impl BlockMap {
    #[inline]
    fn slot_of(&self, addr: u64) -> usize {
        // The number of slots is a power of two.
        let bits = self.slots.len().trailing_zeros();
        (addr.wrapping_mul(MIX) >> (64 - bits)) as usize
    }

    /// Inserts a block; returns the block that was at the address.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64, block: LiveBlock) -> Option<LiveBlock> {
        if self.used >= self.slots.len() / 2 && self.slots.len() < MAX_SLOTS {
            self.grow();
        }
        let index = self.slot_of(addr);
        let mut old = None;
        if self.slots[index].is_used || self.slots[index].evicted > 0 {
            old = self.vacate_slot(index, addr);
        }
        let slot = &mut self.slots[index];
        slot.addr = addr;
        slot.block = block;
        slot.is_used = true;
        self.used += 1;
        old
    }

    /// Removes and returns the block at `addr`, and evicts a different block from the slot.
    #[inline(never)]
    fn vacate_slot(&mut self, index: usize, addr: u64) -> Option<LiveBlock> {
        let slot = &mut self.slots[index];
        self.used -= usize::from(slot.is_used);
        if slot.is_used && slot.addr == addr {
            return Some(slot.block);
        }
        let old = if slot.evicted > 0 { self.map.remove(&addr) } else { None };
        slot.evicted -= u32::from(old.is_some());
        if slot.is_used {
            slot.evicted += 1;
            self.map.insert(slot.addr, slot.block);
        }
        old
    }

    /// Removes the block at an address.
    #[inline]
    pub(crate) fn remove(&mut self, addr: u64) -> Option<LiveBlock> {
        if self.slots.is_empty() {
            return None;
        }
        let index = self.slot_of(addr);
        let slot = &mut self.slots[index];
        if slot.is_used && slot.addr == addr {
            slot.is_used = false;
            self.used -= 1;
            return Some(slot.block);
        }
        if slot.evicted == 0 {
            return None;
        }
        let block = self.map.remove(&addr);
        slot.evicted -= u32::from(block.is_some());
        block
    }

    /// The block at an address.
    pub(crate) fn get(&self, addr: u64) -> Option<&LiveBlock> {
        let slot = self.slots.get(self.slot_of(addr))?;
        if slot.is_used && slot.addr == addr {
            return Some(&slot.block);
        }
        self.map.get(&addr)
    }

    /// All blocks with their addresses, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &LiveBlock)> {
        let in_slots = self.slots.iter().filter(|slot| slot.is_used).map(|slot| (slot.addr, &slot.block));
        in_slots.chain(self.map.iter().map(|(addr, block)| (*addr, block)))
    }

    /// Doubles the slots and inserts all blocks anew, because their slots change.
    #[cold]
    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(INITIAL_SLOTS);
        let slots = std::mem::replace(&mut self.slots, vec![MapSlot::default(); len]);
        self.used = 0;
        let map = std::mem::take(&mut self.map);
        let in_slots = slots.into_iter().filter(|slot| slot.is_used).map(|slot| (slot.addr, slot.block));
        for (addr, block) in map.into_iter().chain(in_slots) {
            self.insert(addr, block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_btree_map(
            events in proptest::collection::vec((any::<bool>(), 0u64..600, any::<bool>()), 0..3000), stride in any::<u64>(),
        ) {
            let (mut blocks, mut expected) = (BlockMap::default(), BTreeMap::new());
            // Either evenly spaced addresses, or addresses that all collide in the first slot.
            let addr_of = |number: u64, is_near: bool| {
                if is_near { number.wrapping_mul(stride) } else { number.wrapping_mul(MIX_INVERSE) }
            };
            for (serial, (is_free, number, is_near)) in events.into_iter().enumerate() {
                let addr = addr_of(number, is_near);
                let block = LiveBlock { serial: serial as u64, ..LiveBlock::default() };
                let (found, wanted) = if is_free {
                    (blocks.remove(addr), expected.remove(&addr))
                } else {
                    (blocks.insert(addr, block), expected.insert(addr, block))
                };
                prop_assert_eq!(found.map(|block| block.serial), wanted.map(|block| block.serial));
                prop_assert_eq!(blocks.get(addr).map(|block| block.serial), expected.get(&addr).map(|block| block.serial));
            }
            let mut all: Vec<(u64, u64)> = blocks.iter().map(|(addr, block)| (addr, block.serial)).collect();
            all.sort_unstable();
            let expected: Vec<(u64, u64)> = expected.into_iter().map(|(addr, block)| (addr, block.serial)).collect();
            prop_assert_eq!(all, expected);
        }
    }

    /// The inverse of [`MIX`]: its small multiples all map to the first slot.
    const MIX_INVERSE: u64 = {
        let mut inverse = 1u64;
        let mut round = 0;
        while round < 6 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(MIX.wrapping_mul(inverse)));
            round += 1;
        }
        inverse
    };

    #[test]
    fn colliding_blocks_are_all_kept() {
        let mut blocks = BlockMap::default();
        let addrs: Vec<u64> = (1..100_000).map(|number: u64| number.wrapping_mul(MIX_INVERSE)).collect();
        for (addr, serial) in addrs.iter().zip(0..) {
            assert!(blocks.insert(*addr, LiveBlock { serial, ..LiveBlock::default() }).is_none());
        }
        assert!(blocks.used < 3, "all addresses share the first slot");
        for (addr, serial) in addrs.iter().zip(0..) {
            assert_eq!(blocks.remove(*addr).map(|block| block.serial), Some(serial));
        }
        assert_eq!(blocks.iter().count(), 0);
    }
}
