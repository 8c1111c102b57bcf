//! The pools of PyTorch's allocator that a history mentions.

use crate::state::pool_key::PoolKey;
use crate::util::seeded_map::SeededMap;

/// Limit of pools with a series of their own.
const MAX_POOLS: usize = 1000;

/// Pools in the order of their first block.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolNumbers {
    /// `None` for blocks of unknown pools, and for pools beyond the limit.
    all: Vec<Option<PoolKey>>,
    numbers: SeededMap<Option<PoolKey>, usize>,
}

impl PoolNumbers {
    /// The number of a pool.
    pub(super) fn number_of(&mut self, pool: Option<PoolKey>) -> usize {
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

    /// The pools by number.
    pub(super) fn all(&self) -> &[Option<PoolKey>] {
        &self.all
    }
}
