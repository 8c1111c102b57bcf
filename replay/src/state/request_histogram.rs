//! What PyTorch's allocator is asked for: how often which size, on which stream and from which pool.
//!
//! Constraint: every allocation counts, and a run of variable lengths asks for any number of sizes. Consequence: a small table
//! in which a request has one place, with a map behind it for those that find it taken; past `MAX_EXACT` requests that differ, what is
//! new counts for the next power of two, so that it is never taken for smaller than it was.

use std::collections::BTreeMap;

use crate::fragmentation::PoolKey;
use crate::util::seeded_map::SeededMap;

/// Places of the table.
const PLACES: usize = 256;
/// Most that are told apart.
const MAX_EXACT: usize = 1 << 14;
/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A size that was asked for, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockRequest {
    /// Of the block that it took: what was asked for, rounded.
    pub bytes: u64,
    /// PyTorch's stream.
    pub stream: u64,
    /// PyTorch's pool.
    pub pool: u64,
}

impl BlockRequest {
    /// The segments that can serve it.
    pub(crate) fn pool_key(self) -> PoolKey {
        let detail = gpumemtrace_format::Detail { requested_bytes: 0, stream: self.stream, pool: self.pool };
        PoolKey::of_request(detail, self.bytes)
    }
}

/// All of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestHistogram {
    places: Vec<(BlockRequest, u64)>,
    more: SeededMap<BlockRequest, u64>,
}

impl RequestHistogram {
    /// Counts one.
    #[inline]
    pub(crate) fn count(&mut self, request: BlockRequest) {
        let at = (request.bytes.wrapping_mul(MIX) >> 56) as usize;
        match self.places.get_mut(at) {
            Some(place) if place.0 == request => place.1 += 1,
            _ => self.displace(at, request),
        }
    }

    /// The one that has the place makes room.
    #[inline(never)]
    fn displace(&mut self, at: usize, request: BlockRequest) {
        if self.places.is_empty() {
            self.places.resize(PLACES, (BlockRequest::default(), 0));
        }
        let (old, times) = std::mem::replace(&mut self.places[at], (request, 1));
        if times > 0 {
            self.put(old, times);
        }
    }

    fn put(&mut self, mut request: BlockRequest, times: u64) {
        if self.more.len() >= MAX_EXACT && !self.more.contains_key(&request) {
            request.bytes = request.bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
            // Streams and pools that a file makes up have no end either.
            if self.more.len() >= 2 * MAX_EXACT && !self.more.contains_key(&request) {
                return;
            }
        }
        let sum = self.more.entry(request).or_default();
        *sum = sum.saturating_add(times);
    }

    /// All of them with how often, most bytes first.
    pub(crate) fn list(&self) -> Vec<(BlockRequest, u64)> {
        let mut all = self.more.clone();
        for (request, times) in self.places.iter().filter(|(_, times)| *times > 0) {
            let sum = all.entry(*request).or_default();
            *sum = sum.saturating_add(*times);
        }
        let mut list: Vec<(BlockRequest, u64)> = all.into_iter().collect();
        list.sort_by_key(|(request, times)| {
            (std::cmp::Reverse(u128::from(request.bytes) * u128::from(*times)), *request)
        });
        list
    }

    /// The kind of request for which most bytes were asked.
    pub(crate) fn main(&self) -> Option<PoolKey> {
        let mut by_kind: BTreeMap<PoolKey, u128> = BTreeMap::new();
        let placed =
            self.places.iter().filter(|(_, times)| *times > 0).map(|(request, times)| (request, times));
        for (request, times) in self.more.iter().chain(placed) {
            *by_kind.entry(request.pool_key()).or_default() += u128::from(request.bytes) * u128::from(*times);
        }
        let most = by_kind.into_iter().max_by_key(|(serves, bytes)| (*bytes, std::cmp::Reverse(*serves)));
        most.map(|(serves, _)| serves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_is_counted(sizes in proptest::collection::vec((0u64..600, 0u64..2), 0..2000)) {
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
    fn any_number_of_sizes_takes_bounded_room_and_none_counts_as_less() {
        let mut requests = RequestHistogram::default();
        let sizes = 0..100_000u64;
        for size in sizes.clone() {
            requests.count(BlockRequest { bytes: size * 512, stream: 0, pool: 0 });
        }
        let list = requests.list();
        assert!(list.len() <= MAX_EXACT + PLACES + 64, "{}", list.len());
        assert_eq!(list.iter().map(|(_, times)| times).sum::<u64>(), 100_000);
        let bytes: u64 = list.iter().map(|(request, times)| request.bytes * times).sum();
        assert!(bytes >= sizes.sum::<u64>() * 512);
    }
}
