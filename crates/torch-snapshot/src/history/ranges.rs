//! A set of addresses.

use std::collections::BTreeMap;

/// Ranges of addresses. Those that touch are one, so a range that is covered costs one look-up,
/// and each range is joined with another one at most once.
#[derive(Debug, Default)]
pub(super) struct RangeSet {
    /// First address and end.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range. Returns the parts of it that were not in the set, by address.
    pub(super) fn add(&mut self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let (mut missing, mut next, mut joined) = (Vec::new(), from, (from, to));
        if from >= to {
            return missing;
        }
        let first = self.ranges.range(..from).next_back().filter(|(_, end)| **end >= from);
        let first = first.map_or(from, |(at, _)| *at);
        while let Some((at, end)) = self.ranges.range(first..=to).next().map(|(at, end)| (*at, *end)) {
            self.ranges.remove(&at);
            joined = (joined.0.min(at), joined.1.max(end));
            if at > next {
                missing.push((next, at));
            }
            next = next.max(end);
            if end >= to {
                break;
            }
        }
        if next < to {
            missing.push((next, to));
        }
        self.ranges.insert(joined.0, joined.1);
        missing
    }

    /// True if an address of the range is in the set.
    pub(super) fn overlaps(&self, from: u64, to: u64) -> bool {
        from < to && self.ranges.range(..to).next_back().is_some_and(|(_, end)| *end > from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_equals_one_of_single_addresses(added in proptest::collection::vec((0u64..60, 0u64..12), 0..40)) {
            let (mut set, mut naive) = (RangeSet::default(), std::collections::BTreeSet::new());
            for (from, len) in added {
                let range = from..from + len;
                prop_assert_eq!(set.overlaps(from, from + len), range.clone().any(|at| naive.contains(&at)));
                let missing: Vec<u64> = range.clone().filter(|at| !naive.contains(at)).collect();
                let parts = set.add(from, from + len);
                prop_assert!(parts.windows(2).all(|pair| pair[0].1 < pair[1].0));
                prop_assert_eq!(parts.into_iter().flat_map(|(from, to)| from..to).collect::<Vec<_>>(), missing);
                naive.extend(range);
            }
            let joined = set.ranges.iter().zip(set.ranges.iter().skip(1));
            prop_assert!(joined.into_iter().all(|((_, end), (at, _))| end < at), "{:?}", set.ranges);
        }
    }
}
