//! How a ring file is divided into rings.
//!
//! A long block packs best, so the busiest thread wants a ring of a hundred thousand records. But a
//! program may have a hundred threads, and the memory is the program's. So rings come in classes,
//! few large ones first, and a thread takes the first free ring.

use super::{PAGE_BYTES, RING_RECORDS_AT, u32_at};
use crate::event::RECORD_BYTES;

/// Largest number of classes in a ring file.
pub const MAX_RING_CLASSES: usize = 8;
/// Offset in page 0 of the classes: pairs of `rings:u32 records_per_ring:u32`, unused ones 0.
pub(super) const CLASSES_AT: usize = 256;
pub(super) const CLASSES_END: usize = CLASSES_AT + 8 * MAX_RING_CLASSES;

/// The classes of a ring file: pairs of number of rings and records per ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingLayout([(u32, u32); MAX_RING_CLASSES]);

impl RingLayout {
    /// One class: rings of one size.
    #[doc(hidden)]
    pub const fn uniform(rings: u32, records_per_ring: u32) -> Self {
        let mut classes = [(0, 0); MAX_RING_CLASSES];
        classes[0] = (rings, records_per_ring);
        Self(classes)
    }

    /// Pairs of number of rings and records per ring.
    pub const fn new(classes: [(u32, u32); MAX_RING_CLASSES]) -> Self {
        Self(classes)
    }

    /// Pairs of number of rings and records per ring; unused classes are (0, 0).
    pub fn classes(&self) -> &[(u32, u32); MAX_RING_CLASSES] {
        &self.0
    }

    /// Number of rings in the file.
    pub fn rings(&self) -> u64 {
        self.0.iter().map(|(rings, _)| u64::from(*rings)).sum()
    }

    /// Length of the file in bytes, at most `u64::MAX`.
    pub fn file_bytes(&self) -> u64 {
        self.0.iter().fold(PAGE_BYTES as u64, |sum, (rings, records)| {
            sum.saturating_add(u64::from(*rings).saturating_mul(ring_bytes(*records)))
        })
    }

    /// Offset of a ring in the file and its number of records; `None` beyond the last ring.
    #[inline]
    pub fn ring(&self, index: usize) -> Option<(u64, u32)> {
        let (mut at, mut left) = (PAGE_BYTES as u64, index as u64);
        for (rings, records) in self.0 {
            let bytes = ring_bytes(records);
            if left < u64::from(rings) {
                return Some((at.saturating_add(left.saturating_mul(bytes)), records));
            }
            left -= u64::from(rings);
            at = at.saturating_add(u64::from(rings).saturating_mul(bytes));
        }
        None
    }

    /// Writes the classes into page 0.
    pub(super) fn encode(&self, page: &mut [u8]) {
        for (bytes, (rings, records)) in page[CLASSES_AT..CLASSES_END].chunks_exact_mut(8).zip(self.0) {
            bytes[..4].copy_from_slice(&rings.to_le_bytes());
            bytes[4..].copy_from_slice(&records.to_le_bytes());
        }
    }

    /// Reads the classes from a whole page 0.
    pub(super) fn decode(page: &[u8]) -> Self {
        Self(std::array::from_fn(|class| {
            let at = CLASSES_AT + 8 * class;
            (u32_at(page, at), u32_at(page, at + 4))
        }))
    }
}

/// Length of a ring in bytes: a whole number of pages.
pub fn ring_bytes(records: u32) -> u64 {
    (RING_RECORDS_AT as u64 + u64::from(records) * RECORD_BYTES as u64).next_multiple_of(PAGE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rings_are_consecutive_and_classes_round_trip(classes in prop::array::uniform8((0u32..5, 0u32..200))) {
            let layout = RingLayout::new(classes);
            let mut at = PAGE_BYTES as u64;
            let sizes = classes.iter().flat_map(|(rings, records)| vec![*records; *rings as usize]);
            for (index, records) in sizes.enumerate() {
                prop_assert_eq!(layout.ring(index), Some((at, records)));
                at += ring_bytes(records);
            }
            prop_assert_eq!((layout.file_bytes(), layout.ring(layout.rings() as usize)), (at, None));
            let mut page = vec![0; PAGE_BYTES];
            layout.encode(&mut page);
            prop_assert_eq!(RingLayout::decode(&page), layout);
        }

        #[test]
        fn arbitrary_classes_do_not_overflow(numbers in prop::array::uniform8(any::<(u32, u32)>()), index: usize) {
            let layout = RingLayout::new(numbers);
            prop_assert!(layout.file_bytes() >= PAGE_BYTES as u64);
            prop_assert!(layout.ring(index).is_none() || (index as u64) < layout.rings());
        }
    }
}
