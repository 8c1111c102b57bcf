//! The live blocks by ascending address, brought up to date when they are asked for.
//!
//! Constraint: an observation of the gap needs all live blocks in order, and sorting them each time
//! took most of its time. Consequence: the order of the last time is kept. Blocks that were removed
//! since are left out of it. Newer blocks that are still live are sorted and merged in. The free of
//! any other block costs one comparison. The property test below compares the order with that of a
//! `BTreeMap`.

use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;

/// The live blocks of a set by ascending address.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddressOrder {
    /// The blocks as of the last update.
    blocks: Vec<(u64, LiveBlock)>,
    /// The event of the last update.
    newest: u64,
    /// Addresses of `blocks` that were removed since, each once.
    removed: Vec<u64>,
}

impl AddressOrder {
    /// Handles the removal of a block.
    #[inline]
    pub(crate) fn on_removed(&mut self, addr: u64, block: &LiveBlock) {
        if block.serial <= self.newest {
            self.push_removed(addr);
        }
    }

    #[inline(never)] // Few blocks live from one observation to the next.
    fn push_removed(&mut self, addr: u64) {
        self.removed.push(addr);
    }

    /// The blocks as of the last update, which was after the event `newest`.
    pub(crate) fn blocks(&self, newest: u64) -> &[(u64, LiveBlock)] {
        debug_assert_eq!(self.newest, newest, "update it first");
        &self.blocks
    }

    /// Brings the order up to date with the present blocks. `newest` is the last event.
    pub(crate) fn update(&mut self, live: &BlockMap, newest: u64) {
        if newest == self.newest {
            return;
        }
        self.removed.sort_unstable();
        let mut removed = self.removed.drain(..).peekable();
        self.blocks.retain(|(addr, _)| removed.next_if_eq(addr).is_none());
        drop(removed);
        let newer = live.iter().filter(|(_, block)| block.serial > self.newest);
        let mut newer: Vec<(u64, LiveBlock)> = newer.map(|(addr, block)| (addr, *block)).collect();
        newer.sort_unstable_by_key(|(addr, _)| *addr);
        self.merge(&newer);
        self.newest = newest;
    }

    /// Merges blocks in, from the highest address down, so that each block moves at most once.
    fn merge(&mut self, newer: &[(u64, LiveBlock)]) {
        let (mut from, mut rest) = (self.blocks.len(), newer);
        self.blocks.extend_from_slice(newer);
        let mut to = self.blocks.len();
        while let [before @ .., last] = rest {
            to -= 1;
            if from > 0 && self.blocks[from - 1].0 > last.0 {
                from -= 1;
                self.blocks[to] = self.blocks[from];
            } else {
                self.blocks[to] = *last;
                rest = before;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Updates after some of the events; compares each time.
    fn check(events: &[(u64, bool, bool)]) {
        let (mut order, mut live, mut expected) =
            (AddressOrder::default(), BlockMap::default(), BTreeMap::new());
        for ((addr, is_free, is_update), serial) in events.iter().zip(1..) {
            let block = LiveBlock { serial, ..LiveBlock::default() };
            let removed = if *is_free {
                expected.remove(addr);
                live.remove(*addr)
            } else {
                expected.insert(*addr, serial);
                live.insert(*addr, block)
            };
            if let Some(block) = removed {
                order.on_removed(*addr, &block);
            }
            if *is_update {
                order.update(&live, serial);
                let found = order.blocks(serial).iter().map(|(addr, block)| (*addr, block.serial));
                assert!(found.eq(expected.iter().map(|(addr, serial)| (*addr, *serial))));
            }
        }
    }

    proptest! {
        #[test]
        fn order_is_that_of_a_btree_map(
            few in proptest::collection::vec((0u64..20, any::<bool>(), any::<bool>()), 0..400),
            many in proptest::collection::vec((0u64..500, proptest::bool::weighted(0.4), proptest::bool::weighted(0.02)), 0..3000),
        ) {
            check(&few);
            check(&many);
        }
    }
}
