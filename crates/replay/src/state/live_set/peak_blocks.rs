//! The blocks that were live at the peak, and the free of each.
//!
//! Constraint: the peak is known only at the end, and copying all blocks at every new maximum costs
//! maxima x blocks. Consequence: each block stores the event that allocated it. The blocks of the
//! peak are the present blocks allocated before it, plus the blocks allocated before it and freed
//! since. Only the latter are stored, at most as many as were live. The free of any other block
//! costs one comparison. [`crate::fragmentation`] does the same for the peak of reserved bytes. The
//! blocks at the end of the program are found in the same way.

use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::util::ids::StackId;

/// The free of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockFree {
    /// The stack that freed it; `None` if the event is missing.
    pub stack: Option<StackId>,
    /// Number of steps begun.
    pub step: u32,
}

/// A block that was live at the peak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeakBlock {
    pub addr: u64,
    pub block: LiveBlock,
    /// `None` if it is live at the end.
    pub free: Option<BlockFree>,
    /// Number of blocks of the peak that were freed before it.
    pub frees_before: u64,
}

/// The blocks of the highest moment so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakBlocks {
    /// The last event before the peak.
    newest: u64,
    /// Blocks of the peak that were freed, in order.
    freed: Vec<(u64, LiveBlock, BlockFree)>,
}

impl PeakBlocks {
    /// Moves the peak to the present moment. `newest` is the last event.
    pub(crate) fn set_peak(&mut self, newest: u64) {
        self.newest = newest;
        self.freed.clear();
    }

    /// The last event before the peak.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Handles the removal of a block.
    #[inline]
    pub(crate) fn on_removed(&mut self, addr: u64, block: &LiveBlock, free: BlockFree) {
        if block.serial <= self.newest {
            self.push_freed(addr, block, free);
        }
    }

    #[inline(never)] // Few frees are of blocks of the peak.
    fn push_freed(&mut self, addr: u64, block: &LiveBlock, free: BlockFree) {
        self.freed.push((addr, *block, free));
    }

    /// The blocks of the peak in arbitrary order. `live` are the present blocks.
    pub(crate) fn blocks<'a>(&'a self, live: &'a BlockMap) -> impl Iterator<Item = (u64, LiveBlock)> + 'a {
        let still = live.iter().filter(|(_, block)| block.serial <= self.newest);
        let freed = self.freed.iter().map(|(addr, block, _)| (*addr, *block));
        still.map(|(addr, block)| (addr, *block)).chain(freed)
    }

    /// The blocks of the peak in the order of their allocation. `live` are the present blocks.
    pub(crate) fn collect(&self, live: &BlockMap) -> Vec<PeakBlock> {
        let frees_before = self.freed.len() as u64;
        let still = live.iter().filter(|(_, block)| block.serial <= self.newest);
        let still = still.map(|(addr, block)| PeakBlock { addr, block: *block, free: None, frees_before });
        let freed = self.freed.iter().zip(0u64..).map(|((addr, block, free), frees_before)| PeakBlock {
            addr: *addr,
            block: *block,
            free: Some(*free),
            frees_before,
        });
        let mut all: Vec<PeakBlock> = still.chain(freed).collect();
        all.sort_unstable_by_key(|one| one.block.serial);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsite::call_context::CallContext;
    use crate::callsite::symbols::StackSite;
    use crate::state::live_set::{BlockSize, LiveSet, StateSample};
    use crate::util::ids::SiteId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn origin(stack: u32) -> StackSite {
        StackSite { stack: StackId(stack), site: SiteId(0), context: CallContext::Unknown }
    }

    proptest! {
        #[test]
        fn peak_blocks_equal_a_copy_at_the_highest_moment(
            choices in proptest::collection::vec((0u64..12, 0u64..100, any::<bool>()), 1..300),
        ) {
            let mut live_set = LiveSet::default();
            let mut live = BTreeMap::new();
            let mut highest = (0u64, live.clone());
            for (at, (addr, bytes, is_free)) in choices.iter().enumerate() {
                let now = StateSample { time_ns: at as u64, ..StateSample::default() };
                if *is_free {
                    live_set.free(*addr, origin(*addr as u32), now);
                    live.remove(addr);
                } else {
                    let size = BlockSize { bytes: *bytes, requested_bytes: None };
                    live_set.alloc(*addr, size, origin(0), now);
                    live.insert(*addr, *bytes);
                }
                let sum = live.values().sum();
                if sum > highest.0 {
                    highest = (sum, live.clone());
                }
            }
            let blocks = live_set.peak_blocks();
            let found: BTreeMap<u64, u64> = blocks.iter().map(|one| (one.addr, one.block.bytes)).collect();
            prop_assert_eq!(found.len(), blocks.len());
            prop_assert_eq!(found, highest.1);
            prop_assert!(blocks.is_sorted_by_key(|one| one.block.serial));
            for one in blocks.iter().filter_map(|one| Some((one.addr, one.free?))) {
                prop_assert!(one.1.stack.is_none_or(|stack| u64::from(stack.0) == one.0));
            }
        }
    }
}
