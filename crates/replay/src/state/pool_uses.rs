//! Large driver memory that a library may divide into blocks of its own.
//!
//! Memory of a stack is such a pool if all of this is true:
//! * Its blocks have [`LARGE_BLOCK`] bytes or more, or are physical memory that is mapped, which
//!   nothing does for single arrays.
//! * The stack keeps them: over time it holds at least half of the most that it held before.
//! * The stack does not serve requests one by one: in all it allocated at most [`MAX_TURNOVER`]
//!   times what it held at most.
//!
//! A change of driver memory costs a comparison, and a hash map update if it is counted.

use crate::state::driver::{AllocationKey, space};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// Least bytes of a block that may be a pool.
pub(crate) const LARGE_BLOCK: u64 = 256 << 20;
/// Bytes that a stack may allocate in all for each byte that it holds at most.
const MAX_TURNOVER: u64 = 4;
/// Limit of stacks; further ones are ignored.
const MAX_STACKS: usize = 4096;

/// The large driver memory of one stack over time.
#[derive(Clone, Copy, Debug, Default)]
struct PoolUse {
    bytes: u64,
    most: u64,
    /// Sum of all allocations.
    allocated: u64,
    changed_ns: u64,
    /// `bytes` and `most` summed over time, in byte nanoseconds.
    held: u128,
    held_at_most: u128,
}

impl PoolUse {
    fn advance(&mut self, time_ns: u64) {
        let elapsed = u128::from(time_ns.saturating_sub(self.changed_ns));
        self.held = self.held.saturating_add(u128::from(self.bytes) * elapsed);
        self.held_at_most = self.held_at_most.saturating_add(u128::from(self.most) * elapsed);
        self.changed_ns = self.changed_ns.max(time_ns);
    }

    fn is_pool(mut self, end_ns: u64) -> bool {
        self.advance(end_ns);
        self.held.saturating_mul(2) >= self.held_at_most
            && self.allocated / MAX_TURNOVER <= self.most
            && self.most > 0
    }
}

/// The large driver memory of all devices, by requesting stack.
#[derive(Debug, Default)]
pub(crate) struct PoolUses(SeededMap<(u8, StackId), PoolUse>);

impl PoolUses {
    /// Counts an allocation of driver memory.
    pub(crate) fn on_alloc(
        &mut self,
        device: u8,
        key: AllocationKey,
        (stack, bytes): (StackId, u64),
        time_ns: u64,
    ) {
        if !is_counted(key, bytes) || self.0.len() >= MAX_STACKS && !self.0.contains_key(&(device, stack)) {
            return;
        }
        let pool =
            self.0.entry((device, stack)).or_insert(PoolUse { changed_ns: time_ns, ..PoolUse::default() });
        pool.advance(time_ns);
        pool.bytes = pool.bytes.saturating_add(bytes);
        pool.most = pool.most.max(pool.bytes);
        pool.allocated = pool.allocated.saturating_add(bytes);
    }

    /// Device, stack and most bytes of each pool, in arbitrary order.
    pub(crate) fn pools(&self, end_ns: u64) -> impl Iterator<Item = (u8, StackId, u64)> {
        let pools = self.0.iter().filter(move |(_, pool)| pool.is_pool(end_ns));
        pools.map(|((device, stack), pool)| (*device, *stack, pool.most))
    }

    /// Counts the free of memory that `stack` allocated.
    pub(crate) fn on_free(
        &mut self,
        device: u8,
        key: AllocationKey,
        (stack, bytes): (StackId, u64),
        time_ns: u64,
    ) {
        if is_counted(key, bytes)
            && let Some(pool) = self.0.get_mut(&(device, stack))
        {
            pool.advance(time_ns);
            pool.bytes = pool.bytes.saturating_sub(bytes);
        }
    }
}

/// Whether a block may be a pool, or a part of one.
fn is_counted(key: AllocationKey, bytes: u64) -> bool {
    bytes >= LARGE_BLOCK || key >> 60 == space::PIECE
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: StackId = StackId(3);

    /// Changes of one stack: time, and bytes allocated (positive) or freed.
    fn is_pool(changes: &[(u64, i64)], end_ns: u64) -> bool {
        let mut uses = PoolUses::default();
        for (time, bytes) in changes {
            let size = (STACK, bytes.unsigned_abs() << 30);
            match bytes {
                0.. => uses.on_alloc(0, 1, size, *time),
                _ => uses.on_free(0, 1, size, *time),
            }
        }
        uses.0.get(&(0, STACK)).is_some_and(|pool| pool.is_pool(end_ns))
    }

    #[test]
    fn block_that_stays_is_a_pool() {
        assert!(is_pool(&[(10, 60)], 1000));
        assert!(is_pool(&[(10, 60), (990, -60)], 1000), "freed at teardown");
        assert!(!is_pool(&[(10, 60), (100, -60)], 1000), "freed early");
    }

    #[test]
    fn pool_that_doubles_its_regions_is_a_pool() {
        assert!(is_pool(&[(10, 1), (500, 2), (900, 4), (990, 8)], 1000));
    }

    #[test]
    fn requests_served_one_by_one_are_no_pool() {
        let steps = (0..20).flat_map(|step| [(step * 50 + 1, 10), (step * 50 + 49, -10)]);
        assert!(!is_pool(&steps.collect::<Vec<_>>(), 1000));
    }

    #[test]
    fn small_blocks_count_only_as_mapped_memory() {
        let mut uses = PoolUses::default();
        uses.on_alloc(0, 1, (STACK, LARGE_BLOCK - 1), 5);
        assert!(uses.0.is_empty());
        uses.on_alloc(0, space::key(space::PIECE, 7), (STACK, 2 << 20), 5);
        assert_eq!(uses.0[&(0, STACK)].most, 2 << 20);
    }
}
