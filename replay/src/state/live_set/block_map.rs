//! The live blocks of a book, by address.
//!
//! Constraint: nearly every event puts a block in or takes one out, and a file chooses the addresses. Consequence: before a map
//! that no choice can crowd ([`crate::util::seeded_map`]) stands a table in which an address has one place, found by one multiplication. A
//! block that finds its place taken sends the other into the map: what comes and goes stays in the table, what lives long or is
//! meant to crowd it ends up in the map. Each place knows how many blocks in the map it would have been theirs, so that mostly
//! nobody has to look there.

use crate::state::live_set::LiveBlock;
use crate::util::seeded_map::SeededMap;

/// Places to begin with.
const FIRST_PLACES: usize = 256;
/// Most of them: 3.5 MiB. With more live blocks than that the map has most.
const MAX_PLACES: usize = 1 << 16;
/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Debug, Default)]
struct MapSlot {
    addr: u64,
    block: LiveBlock,
    is_taken: bool,
    /// Blocks of this place that are in the map.
    others: u32,
}

/// Blocks by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockMap {
    places: Vec<MapSlot>,
    /// Taken ones.
    taken: usize,
    map: SeededMap<u64, LiveBlock>,
}

impl BlockMap {
    #[inline]
    fn place_of(&self, addr: u64) -> usize {
        // The number of places is a power of two.
        let bits = self.places.len().trailing_zeros();
        (addr.wrapping_mul(MIX) >> (64 - bits)) as usize
    }

    /// Puts a block in; the one that was there.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64, block: LiveBlock) -> Option<LiveBlock> {
        if self.taken >= self.places.len() / 2 && self.places.len() < MAX_PLACES {
            self.grow();
        }
        let at = self.place_of(addr);
        let mut old = None;
        if self.places[at].is_taken || self.places[at].others > 0 {
            old = self.vacate(at, addr);
        }
        let place = &mut self.places[at];
        place.addr = addr;
        place.block = block;
        place.is_taken = true;
        self.taken += 1;
        old
    }

    /// The block that has the place goes into the map; the one of this address goes altogether.
    #[inline(never)]
    fn vacate(&mut self, at: usize, addr: u64) -> Option<LiveBlock> {
        let place = &mut self.places[at];
        self.taken -= usize::from(place.is_taken);
        if place.is_taken && place.addr == addr {
            return Some(place.block);
        }
        let old = if place.others > 0 { self.map.remove(&addr) } else { None };
        place.others -= u32::from(old.is_some());
        if place.is_taken {
            place.others += 1;
            self.map.insert(place.addr, place.block);
        }
        old
    }

    /// Takes a block out.
    #[inline]
    pub(crate) fn remove(&mut self, addr: u64) -> Option<LiveBlock> {
        if self.places.is_empty() {
            return None;
        }
        let at = self.place_of(addr);
        let place = &mut self.places[at];
        if place.is_taken && place.addr == addr {
            place.is_taken = false;
            self.taken -= 1;
            return Some(place.block);
        }
        if place.others == 0 {
            return None;
        }
        let block = self.map.remove(&addr);
        place.others -= u32::from(block.is_some());
        block
    }

    /// The block at an address.
    pub(crate) fn get(&self, addr: u64) -> Option<&LiveBlock> {
        let place = self.places.get(self.place_of(addr))?;
        if place.is_taken && place.addr == addr {
            return Some(&place.block);
        }
        self.map.get(&addr)
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &LiveBlock)> {
        let taken = self.places.iter().filter(|place| place.is_taken).map(|place| (place.addr, &place.block));
        taken.chain(self.map.iter().map(|(addr, block)| (*addr, block)))
    }

    #[cold]
    fn grow(&mut self) {
        let len = (self.places.len() * 2).max(FIRST_PLACES);
        let places = std::mem::replace(&mut self.places, vec![MapSlot::default(); len]);
        self.taken = 0;
        // Which place they would have is another one now.
        let map = std::mem::take(&mut self.map);
        let taken = places.into_iter().filter(|place| place.is_taken).map(|place| (place.addr, place.block));
        for (addr, block) in map.into_iter().chain(taken) {
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
        fn it_is_a_map(
            events in proptest::collection::vec((any::<bool>(), 0u64..600, any::<bool>()), 0..3000), stride in any::<u64>(),
        ) {
            let (mut blocks, mut expected) = (BlockMap::default(), BTreeMap::new());
            // Neighbours, and addresses of which many have the same place: the lowest bits of what is left of them decide nothing.
            let addr_of = |number: u64, is_near: bool| {
                if is_near { number.wrapping_mul(stride) } else { number.wrapping_mul(MIX_INVERSE) }
            };
            for (born, (is_free, number, is_near)) in events.into_iter().enumerate() {
                let addr = addr_of(number, is_near);
                let block = LiveBlock { born: born as u64, ..LiveBlock::default() };
                let (found, wanted) = if is_free {
                    (blocks.remove(addr), expected.remove(&addr))
                } else {
                    (blocks.insert(addr, block), expected.insert(addr, block))
                };
                prop_assert_eq!(found.map(|block| block.born), wanted.map(|block| block.born));
                prop_assert_eq!(blocks.get(addr).map(|block| block.born), expected.get(&addr).map(|block| block.born));
            }
            let mut all: Vec<(u64, u64)> = blocks.iter().map(|(addr, block)| (addr, block.born)).collect();
            all.sort_unstable();
            let expected: Vec<(u64, u64)> = expected.into_iter().map(|(addr, block)| (addr, block.born)).collect();
            prop_assert_eq!(all, expected);
        }
    }

    /// Times [`MIX`] it is 1: its first multiples share the first place.
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
    fn blocks_that_share_a_place_are_all_there() {
        let mut blocks = BlockMap::default();
        let addrs: Vec<u64> = (1..100_000).map(|number: u64| number.wrapping_mul(MIX_INVERSE)).collect();
        for (addr, born) in addrs.iter().zip(0..) {
            assert!(blocks.insert(*addr, LiveBlock { born, ..LiveBlock::default() }).is_none());
        }
        assert!(blocks.taken < 3, "the numbers are made to share a place");
        for (addr, born) in addrs.iter().zip(0..) {
            assert_eq!(blocks.remove(*addr).map(|block| block.born), Some(born));
        }
        assert_eq!(blocks.iter().count(), 0);
    }
}
