//! Addresses that are handed out first fit.

use std::collections::BTreeMap;

/// A range of addresses, parts of which are taken.
#[derive(Clone, Debug)]
pub(super) struct AddressSpace {
    taken: BTreeMap<u64, u64>,
    /// Free ranges, address to bytes; none touches another.
    gaps: BTreeMap<u64, u64>,
}

impl AddressSpace {
    pub(super) fn new(addr: u64, bytes: u64) -> Self {
        Self { taken: BTreeMap::new(), gaps: BTreeMap::from([(addr, bytes)]) }
    }

    /// Takes the lowest free addresses; `None` if no gap is large enough.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&addr, &gap) = self.gaps.iter().find(|(_, gap)| **gap >= bytes)?;
        self.gaps.remove(&addr);
        if gap > bytes {
            self.gaps.insert(addr + bytes, gap - bytes);
        }
        self.taken.insert(addr, bytes);
        Some(addr)
    }

    /// Gives back addresses and returns their bytes; `None` if nothing was taken at `addr`.
    pub(super) fn give_back(&mut self, addr: u64) -> Option<u64> {
        let bytes = self.taken.remove(&addr)?;
        let (mut start, mut gap) = (addr, bytes);
        if let Some((&before, &before_bytes)) = self.gaps.range(..addr).next_back()
            && before + before_bytes == addr
        {
            self.gaps.remove(&before);
            (start, gap) = (before, gap + before_bytes);
        }
        if let Some(behind) = self.gaps.remove(&(addr + bytes)) {
            gap += behind;
        }
        self.gaps.insert(start, gap);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_gap_that_fits_is_taken_and_gaps_merge() {
        let mut space = AddressSpace::new(100, 1000);
        let addrs: Vec<u64> = [10, 20, 30].iter().filter_map(|bytes| space.take(*bytes)).collect();
        assert_eq!(addrs, [100, 110, 130]);
        assert_eq!((space.give_back(110), space.give_back(110)), (Some(20), None));
        assert_eq!((space.take(21), space.take(20)), (Some(160), Some(110)));
        for addr in [100, 110, 130, 160] {
            space.give_back(addr);
        }
        assert_eq!(space.take(1000), Some(100), "one gap again");
        assert_eq!(space.take(1), None);
    }
}
