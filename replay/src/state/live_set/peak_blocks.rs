//! Every block that was there when most was live, and how each of them went.
//!
//! Constraint: nobody knows that a moment is the peak until the end, and copying all blocks at every new maximum costs maxima x
//! blocks. Consequence: blocks know when they were born, so those of the peak are what is still there and was by then, and what
//! was by then and has gone since; only the latter are kept ([`crate::fragmentation`] does the same for reserved bytes). An event that
//! concerns no block of the peak costs one comparison, and no more is kept than was there.

use crate::callsite::symbols::StackId;
use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;

/// How a block went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockDeath {
    /// Who gave it back; nobody knows where the event is missing.
    pub stack: Option<StackId>,
    /// Steps begun then.
    pub step: u32,
}

/// A block that was there at the peak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeakBlock {
    /// Where it begins.
    pub addr: u64,
    /// What it was.
    pub block: LiveBlock,
    /// How it went, unless it is there at the end.
    pub death: Option<BlockDeath>,
    /// How many of the others went before it.
    pub went: u64,
}

/// The blocks of the highest moment so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakBlocks {
    /// The last block that was born by then.
    newest: u64,
    /// In the order in which they went.
    gone: Vec<(u64, LiveBlock, BlockDeath)>,
}

impl PeakBlocks {
    /// This moment is the highest so far; this is the last block that was born.
    pub(crate) fn mark(&mut self, newest: u64) {
        self.newest = newest;
        self.gone.clear();
    }

    /// The last block, or event, that was by then.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// A block is gone.
    #[inline]
    pub(crate) fn on_removed(&mut self, addr: u64, block: &LiveBlock, death: BlockDeath) {
        if block.born <= self.newest {
            self.keep(addr, block, death);
        }
    }

    #[inline(never)] // Of many frees, few are of blocks of the peak.
    fn keep(&mut self, addr: u64, block: &LiveBlock, death: BlockDeath) {
        self.gone.push((addr, *block, death));
    }

    /// The blocks of the highest moment, given what is live now; in the order in which they came.
    pub(crate) fn all(&self, live: &BlockMap) -> Vec<PeakBlock> {
        let went = self.gone.len() as u64;
        let still = live.iter().filter(|(_, block)| block.born <= self.newest);
        let still = still.map(|(addr, block)| PeakBlock { addr, block: *block, death: None, went });
        let gone = self.gone.iter().zip(0u64..).map(|((addr, block, death), went)| PeakBlock {
            addr: *addr,
            block: *block,
            death: Some(*death),
            went,
        });
        let mut all: Vec<PeakBlock> = still.chain(gone).collect();
        all.sort_unstable_by_key(|one| one.block.born);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite::symbols::SiteId;
    use crate::state::live_set::{LiveSet, StateSample};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn they_are_the_blocks_of_the_highest_moment(choices in proptest::collection::vec((0u64..12, 0u64..100, any::<bool>()), 1..300)) {
            let mut stats = LiveSet::at_step(0, 0);
            let mut live = BTreeMap::new();
            let mut highest = (0u64, live.clone());
            for (at, (addr, bytes, is_free)) in choices.iter().enumerate() {
                let now = StateSample { time_ns: at as u64, ..StateSample::default() };
                if *is_free {
                    stats.free(*addr, (StackId(*addr as u32), SiteId(0)), now);
                    live.remove(addr);
                } else {
                    stats.alloc(*addr, (*bytes, None), StackId(0), SiteId(0), now);
                    live.insert(*addr, *bytes);
                }
                let sum = live.values().sum();
                if sum > highest.0 {
                    highest = (sum, live.clone());
                }
            }
            let blocks = stats.peak_blocks();
            let found: BTreeMap<u64, u64> = blocks.iter().map(|one| (one.addr, one.block.bytes)).collect();
            prop_assert_eq!(found.len(), blocks.len());
            prop_assert_eq!(found, highest.1);
            prop_assert!(blocks.is_sorted_by_key(|one| one.block.born));
            for one in blocks.iter().filter_map(|one| Some((one.addr, one.death?))) {
                prop_assert!(one.1.stack.is_none_or(|stack| u64::from(stack.0) == one.0));
            }
        }
    }
}
