//! How a ring file is divided into rings.
//!
//! Constraint: a block of many rows packs best, so the thread that does most wants a ring for a hundred thousand records; but a
//! program may have a hundred threads, and the memory is not ours. Consequence: rings come in classes, few large ones first.
//! Threads take the first that is free.

use super::image::u32_at;
use super::{PAGE_BYTES, RING_RECORDS_AT};
use crate::event::RECORD_BYTES;

/// Most classes of rings in a file.
pub const CLASSES: usize = 8;
/// Offset of the classes in page 0: pairs of `rings:u32 records_per_ring:u32`, unused ones 0.
pub(super) const CLASSES_AT: usize = 256;
pub(super) const CLASSES_END: usize = CLASSES_AT + 8 * CLASSES;

/// The rings of a file, class by class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape([(u32, u32); CLASSES]);

impl Shape {
    /// All of one size.
    pub const fn uniform(rings: u32, records_per_ring: u32) -> Self {
        let mut classes = [(0, 0); CLASSES];
        classes[0] = (rings, records_per_ring);
        Self(classes)
    }

    /// So many rings of so many records, as many times as there are classes.
    pub const fn new(classes: [(u32, u32); CLASSES]) -> Self {
        Self(classes)
    }

    /// The classes.
    pub fn classes(&self) -> &[(u32, u32); CLASSES] {
        &self.0
    }

    /// Rings in the file.
    pub fn rings(&self) -> u64 {
        self.0.iter().map(|(rings, _)| u64::from(*rings)).sum()
    }

    /// Length of the file in bytes; `u64::MAX` where there is no such number.
    pub fn file_bytes(&self) -> u64 {
        self.0.iter().fold(PAGE_BYTES as u64, |sum, (rings, records)| {
            sum.saturating_add(u64::from(*rings).saturating_mul(ring_bytes(*records)))
        })
    }

    /// Where a ring begins in the file, and how many records it has; `None` beyond the last.
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

    /// Says it in page 0.
    pub(super) fn encode(&self, page: &mut [u8]) {
        for (place, (rings, records)) in page[CLASSES_AT..CLASSES_END].chunks_exact_mut(8).zip(self.0) {
            place[..4].copy_from_slice(&rings.to_le_bytes());
            place[4..].copy_from_slice(&records.to_le_bytes());
        }
    }

    /// Reads it from page 0, whose length was looked at.
    pub(super) fn decode(page: &[u8]) -> Self {
        Self(std::array::from_fn(|class| {
            let at = CLASSES_AT + 8 * class;
            (u32_at(page, at), u32_at(page, at + 4))
        }))
    }
}

/// Bytes of a ring with so many records: a whole number of pages.
pub fn ring_bytes(records: u32) -> u64 {
    (RING_RECORDS_AT as u64 + u64::from(records) * RECORD_BYTES as u64).next_multiple_of(PAGE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rings_lie_one_behind_the_other(classes in prop::array::uniform8((0u32..5, 0u32..200))) {
            let shape = Shape::new(classes);
            let mut at = PAGE_BYTES as u64;
            let sizes = classes.iter().flat_map(|(rings, records)| vec![*records; *rings as usize]);
            for (index, records) in sizes.enumerate() {
                prop_assert_eq!(shape.ring(index), Some((at, records)));
                at += ring_bytes(records);
            }
            prop_assert_eq!((shape.file_bytes(), shape.ring(shape.rings() as usize)), (at, None));
            let mut page = vec![0; PAGE_BYTES];
            shape.encode(&mut page);
            prop_assert_eq!(Shape::decode(&page), shape);
        }

        #[test]
        fn any_numbers_have_an_answer(numbers in prop::array::uniform8(any::<(u32, u32)>()), index: usize) {
            let shape = Shape::new(numbers);
            prop_assert!(shape.file_bytes() >= PAGE_BYTES as u64);
            prop_assert!(shape.ring(index).is_none() || (index as u64) < shape.rings());
        }
    }
}
