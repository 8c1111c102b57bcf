//! Counts the requests to PyTorch's allocator by size, stream and pool.
//!
//! Constraint: every allocation is counted, and a run with variable lengths requests any number of
//! sizes. Consequence: a small direct-mapped table takes most counts at one comparison; evicted
//! requests go into a hash map. Beyond [`MAX_EXACT`] distinct requests, new sizes are rounded up to
//! powers of two, so no request is counted as smaller than it was.

use std::collections::BTreeMap;

use crate::state::pool_key::PoolKey;
use crate::util::seeded_map::SeededMap;

/// Slots of the table.
const SLOTS: usize = 256;
/// Distinct requests with exact sizes.
const MAX_EXACT: usize = 1 << 14;
/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The size of a request and the stream and pool that it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockRequest {
    /// Size of the block, which is the requested size rounded up.
    pub bytes: u64,
    /// Stream of PyTorch's allocator.
    pub stream: u64,
    /// Pool of PyTorch's allocator.
    pub pool: u64,
}

impl BlockRequest {
    /// The key of the segments that can serve the request.
    pub(crate) fn pool_key(self) -> PoolKey {
        let detail = gpumemtrace_format::Detail { requested_bytes: 0, stream: self.stream, pool: self.pool };
        PoolKey::of_request(detail, self.bytes)
    }
}

/// The requests on one device with their counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestHistogram {
    table: Vec<(BlockRequest, u64)>,
    /// Counts of requests that the table evicted.
    evicted: SeededMap<BlockRequest, u64>,
}

impl RequestHistogram {
    /// Counts one request; mostly one comparison.
    #[inline]
    pub(crate) fn count(&mut self, request: BlockRequest) {
        let index = (request.bytes.wrapping_mul(MIX) >> 56) as usize;
        match self.table.get_mut(index) {
            Some(slot) if slot.0 == request => slot.1 += 1,
            _ => self.replace_slot(index, request),
        }
    }

    /// Puts a new request into a slot and evicts the old one.
    #[inline(never)]
    fn replace_slot(&mut self, index: usize, request: BlockRequest) {
        if self.table.is_empty() {
            self.table.resize(SLOTS, (BlockRequest::default(), 0));
        }
        let (old, count) = std::mem::replace(&mut self.table[index], (request, 1));
        if count > 0 {
            self.evict(old, count);
        }
    }

    fn evict(&mut self, mut request: BlockRequest, count: u64) {
        if self.evicted.len() >= MAX_EXACT && !self.evicted.contains_key(&request) {
            request.bytes = request.bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
            // A hostile file can use any number of streams and pools: stop counting new ones.
            if self.evicted.len() >= 2 * MAX_EXACT && !self.evicted.contains_key(&request) {
                return;
            }
        }
        let sum = self.evicted.entry(request).or_default();
        *sum = sum.saturating_add(count);
    }

    /// All requests with their counts, most bytes first.
    pub(crate) fn list(&self) -> Vec<(BlockRequest, u64)> {
        let mut all = self.evicted.clone();
        for (request, count) in self.table.iter().filter(|(_, count)| *count > 0) {
            let sum = all.entry(*request).or_default();
            *sum = sum.saturating_add(*count);
        }
        let mut list: Vec<(BlockRequest, u64)> = all.into_iter().collect();
        list.sort_by_key(|(request, count)| {
            (std::cmp::Reverse(u128::from(request.bytes) * u128::from(*count)), *request)
        });
        list
    }

    /// The pool key with the most requested bytes.
    pub(crate) fn most_requested_pool(&self) -> Option<PoolKey> {
        let mut bytes_by_pool: BTreeMap<PoolKey, u128> = BTreeMap::new();
        let in_table =
            self.table.iter().filter(|(_, count)| *count > 0).map(|(request, count)| (request, count));
        // Most requests are for one stream and pool: those in a row are added up first.
        let mut row: [Option<(PoolKey, u128)>; 2] = [None; 2];
        let mut add = |ended: Option<(PoolKey, u128)>| {
            if let Some((pool, bytes)) = ended {
                *bytes_by_pool.entry(pool).or_default() += bytes;
            }
        };
        for (request, count) in self.evicted.iter().chain(in_table) {
            let (pool, bytes) = (request.pool_key(), u128::from(request.bytes) * u128::from(*count));
            match &mut row[usize::from(pool.is_small)] {
                Some((of_row, sum)) if *of_row == pool => *sum += bytes,
                other => add(other.replace((pool, bytes))),
            }
        }
        row.into_iter().for_each(add);
        let most = bytes_by_pool.into_iter().max_by_key(|(pool, bytes)| (*bytes, std::cmp::Reverse(*pool)));
        most.map(|(pool, _)| pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_requests_are_counted(sizes in proptest::collection::vec((0u64..600, 0u64..2), 0..2000)) {
            let mut requests = RequestHistogram::default();
            let mut expected: BTreeMap<BlockRequest, u64> = BTreeMap::new();
            for (size, stream) in sizes {
                let request = BlockRequest { bytes: size * 512, stream, pool: 0 };
                requests.count(request);
                *expected.entry(request).or_default() += 1;
            }
            prop_assert_eq!(requests.list().into_iter().collect::<BTreeMap<_, _>>(), expected);
        }
    }

    #[test]
    fn many_sizes_take_bounded_memory_and_round_up() {
        let mut requests = RequestHistogram::default();
        let sizes = 0..100_000u64;
        for size in sizes.clone() {
            requests.count(BlockRequest { bytes: size * 512, stream: 0, pool: 0 });
        }
        let list = requests.list();
        assert!(list.len() <= MAX_EXACT + SLOTS + 64, "{}", list.len());
        assert_eq!(list.iter().map(|(_, count)| count).sum::<u64>(), 100_000);
        let bytes: u64 = list.iter().map(|(request, count)| request.bytes * count).sum();
        assert!(bytes >= sizes.sum::<u64>() * 512);
    }
}
