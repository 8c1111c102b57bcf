//! First-fit allocation of address ranges.
//!
//! Freed ranges are reused, lowest first, and equal programs get equal addresses; tracers are
//! tested on reuse. Free extents lie in an ordered map, and neighbours are merged.

use std::collections::BTreeMap;

/// A range of addresses, partly allocated.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    base: u64,
    len: u64,
    /// Start -> length of free extents; they never touch, because neighbours are merged.
    free: BTreeMap<u64, u64>,
}

/// Rounds up to a multiple of a power of two; `None` on overflow.
pub(crate) fn round_up(value: u64, align: u64) -> Option<u64> {
    Some(value.checked_add(align - 1)? & !(align - 1))
}

impl AddressSpace {
    /// A completely free range.
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self { base, len, free: BTreeMap::from([(base, len)]) }
    }

    /// A range without free addresses, to be filled by [`give_back`](Self::give_back).
    pub(crate) fn empty() -> Self {
        Self { base: 0, len: 0, free: BTreeMap::new() }
    }

    /// Allocates `len` bytes at the lowest address that fits.
    pub(crate) fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, extent, at) = self.free.iter().find_map(|(&start, &extent)| {
            let at = round_up(start, align)?;
            (at.checked_add(len)? <= start + extent).then_some((start, extent, at))
        })?;
        self.cut(start, extent, at, len);
        Some(at)
    }

    /// Allocates exactly `at..at + len`; returns false if any part is taken.
    pub(crate) fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&start, &extent)) = self.free.range(..=at).next_back() else { return false };
        let fits = at.checked_add(len).is_some_and(|end| end <= start + extent);
        if fits {
            self.cut(start, extent, at, len);
        }
        fits
    }

    fn cut(&mut self, start: u64, extent: u64, at: u64, len: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if start + extent > at + len {
            self.free.insert(at + len, start + extent - at - len);
        }
    }

    /// Frees a range that came from [`take`](Self::take) or [`take_at`](Self::take_at).
    pub(crate) fn give_back(&mut self, at: u64, len: u64) {
        let (mut start, mut extent) = (at, len);
        if let Some((&before, &size)) = self.free.range(..at).next_back()
            && before + size == at
        {
            self.free.remove(&before);
            start = before;
            extent += size;
        }
        if let Some(size) = self.free.remove(&(at + len)) {
            extent += size;
        }
        self.free.insert(start, extent);
    }

    /// Returns whether an address lies in the range, allocated or not.
    pub(crate) fn contains(&self, addr: u64) -> bool {
        addr >= self.base && addr - self.base < self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freed_extent_is_reused_before_higher_addresses() {
        let mut space = AddressSpace::new(0x1000, 0x10000);
        let first = space.take(0x1000, 0x1000).unwrap();
        let second = space.take(0x1000, 0x1000).unwrap();
        assert_eq!((first, second), (0x1000, 0x2000));
        space.give_back(first, 0x1000);
        assert_eq!(space.take(0x800, 0x100), Some(0x1000));
        assert_eq!(space.take(0x1000, 0x1000), Some(0x3000), "the rest of the hole is too small");
    }

    #[test]
    fn neighbours_merge_on_both_sides() {
        let mut space = AddressSpace::new(0, 0x3000);
        for at in [0, 0x1000, 0x2000] {
            assert_eq!(space.take(0x1000, 0x1000), Some(at));
        }
        assert_eq!(space.take(1, 1), None);
        space.give_back(0, 0x1000);
        space.give_back(0x2000, 0x1000);
        space.give_back(0x1000, 0x1000);
        assert!(space.take_at(space.base, space.len), "all of it is free again");
    }

    #[test]
    fn exact_range_is_allocated_only_if_wholly_free() {
        let mut space = AddressSpace::new(0x1000, 0x4000);
        assert!(space.take_at(0x2000, 0x1000));
        assert!(!space.take_at(0x2800, 0x1000));
        assert!(!space.take_at(0x800, 0x100));
        assert!(!space.take_at(0x4000, 0x2000));
        assert!(space.take_at(0x1000, 0x1000));
    }

    #[test]
    fn length_near_u64_max_does_not_wrap() {
        let mut space = AddressSpace::new(0x1000, 0x4000);
        assert_eq!(space.take(u64::MAX - 4, 1), None);
        assert!(!space.take_at(0x2000, u64::MAX));
    }

    proptest! {
        /// Compares with a byte map: lowest fit, no double allocation, all free at the end.
        #[test]
        fn first_fit_equals_a_byte_map(ops in proptest::collection::vec((any::<bool>(), 1_u64..40, 0_u32..4), 1..200)) {
            let mut space = AddressSpace::new(0, 256);
            let mut model = [false; 256];
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, len, shift) in ops {
                if take {
                    let align = 1 << shift;
                    let wanted = (0..256_usize).step_by(align as usize).find(|&at| {
                        at + len as usize <= 256 && model[at..at + len as usize].iter().all(|used| !used)
                    });
                    let got = space.take(len, align);
                    prop_assert_eq!(got, wanted.map(|at| at as u64));
                    if let Some(at) = got {
                        model[at as usize..(at + len) as usize].fill(true);
                        held.push((at, len));
                    }
                } else if !held.is_empty() {
                    let (at, len) = held.swap_remove(len as usize % held.len());
                    model[at as usize..(at + len) as usize].fill(false);
                    space.give_back(at, len);
                }
            }
            for (at, len) in held {
                space.give_back(at, len);
            }
            prop_assert!(space.take_at(space.base, space.len), "all of it is free again");
        }
    }
}
