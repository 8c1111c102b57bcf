//! Live bytes by stream and pool at the highest moment of each bin of the timeline.
//!
//! A block belongs to the segment at its address, so its pool is looked up when it is freed.

use super::DeviceState;
use crate::state::live_set::LiveBlock;
use crate::state::pool_key::PoolKey;
use crate::util::seeded_map::SeededMap;

/// Limit of pools with a series of their own.
const MAX_POOLS: usize = 1000;

/// The pools of a history, in the order of their first freed block.
#[derive(Debug, Default)]
pub(crate) struct PoolNumbers {
    /// `None` for blocks in no known segment, and for pools beyond the limit.
    all: Vec<Option<PoolKey>>,
    numbers: SeededMap<Option<PoolKey>, usize>,
}

impl PoolNumbers {
    fn number_of(&mut self, pool: Option<PoolKey>) -> usize {
        if let Some(number) = self.numbers.get(&pool) {
            return *number;
        }
        if pool.is_some() && self.all.len() >= MAX_POOLS {
            return self.number_of(None);
        }
        self.all.push(pool);
        self.numbers.insert(pool, self.all.len() - 1);
        self.all.len() - 1
    }
}

impl DeviceState {
    /// Adds a block to its pool that the last event removed.
    #[inline(never)] // Only for viewers.
    pub(super) fn add_to_pool_history(&mut self, addr: u64, block: &LiveBlock) {
        let event = self.torch.events;
        let Some(history) = self.torch.history_mut().filter(|history| history.was_at_high(block)) else {
            return;
        };
        let pool = self.segments.at(addr).map(|segment| PoolKey::of_block(segment, block.bytes));
        history.add_to_pool(self.history_pools.number_of(pool), block, event);
    }

    /// Completes the history of pools with the blocks that were not freed.
    pub(super) fn finish_pool_history(&mut self) {
        let (segments, pools) = (&self.segments, &mut self.history_pools);
        self.torch.change_history(|history, live| {
            for (addr, block) in live.iter() {
                let pool = segments.at(addr).map(|segment| PoolKey::of_block(segment, block.bytes));
                history.add_to_pool(pools.number_of(pool), block, u64::MAX);
            }
            history.end_pools();
        });
    }

    /// Live bytes of each pool at the highest moment of each bin; `None` for unknown pools.
    pub(crate) fn pool_values(&self) -> impl Iterator<Item = (Option<PoolKey>, Vec<u64>)> {
        let bins = self.torch.bins().all().len();
        let values = self.torch.history().into_iter().flat_map(move |history| history.pool_values(bins));
        self.history_pools.all.iter().copied().zip(values)
    }
}
