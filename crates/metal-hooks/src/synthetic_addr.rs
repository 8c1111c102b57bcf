//! Synthetic addresses for Metal's objects.
//!
//! Reports tell memory apart by address, and Metal reports no addresses of heaps. Each heap, and
//! each buffer or texture with memory of its own, gets a range of an address space that only
//! grows. An object inside a heap lies at the heap's address plus the offset that it reports. An
//! object without an offset, or with an impossible one (occupied, or beyond the heap's end), gets a
//! range of its own outside the heap. Its size stays right, and its position stays unknown.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::object_table::{InsertResult, ObjectTable};

/// The first address, above any pointer of a program on either system.
const FIRST_ADDR: u64 = 1 << 48;
/// Granularity of ranges. One unused page separates neighbours.
const PAGE_BYTES: u64 = 1 << 14;
/// Limit for one range, so that a bogus size does not use up the space.
const MAX_RANGE_BYTES: u64 = 1 << 44;

static NEXT_ADDR: AtomicU64 = AtomicU64::new(FIRST_ADDR);
/// Occupied addresses inside heaps.
static OCCUPIED: ObjectTable = ObjectTable::new();

/// Returns the begin of a new range. Ranges are never reused.
pub(crate) fn allocate_range(bytes: u64) -> u64 {
    let pages = bytes.min(MAX_RANGE_BYTES).div_ceil(PAGE_BYTES) + 1;
    NEXT_ADDR.fetch_add(pages * PAGE_BYTES, Ordering::Relaxed)
}

/// Places an object with `bytes` in a heap, given as address and size. Returns the address, and
/// true if it lies inside the heap; [`release_in_heap`] must follow then.
pub(crate) fn place_in_heap(heap: Option<(u64, u64)>, offset: Option<u64>, bytes: u64) -> (u64, bool) {
    let addr = heap.zip(offset).and_then(|((begin, len), offset)| {
        let is_within = offset.checked_add(bytes).is_some_and(|end| end <= len);
        is_within.then_some(begin.wrapping_add(offset))
    });
    match addr {
        Some(addr) if OCCUPIED.insert(table_key(addr), [0; 3]) == InsertResult::Inserted => (addr, true),
        _ => (allocate_range(bytes), false),
    }
}

/// Frees an address inside a heap.
pub(crate) fn release_in_heap(addr: u64) {
    OCCUPIED.remove(table_key(addr));
}

/// The table reserves the keys 0 and 1, and its hash ignores the lowest four bits.
fn table_key(addr: u64) -> u64 {
    addr.rotate_left(4) | 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_separated_by_a_gap() {
        let (one, other, third) =
            (allocate_range(1), allocate_range(PAGE_BYTES + 1), allocate_range(u64::MAX));
        assert!(one + 1 < other && other + PAGE_BYTES + 1 < third, "{one:x} {other:x} {third:x}");
    }

    #[test]
    fn impossible_heap_offsets_are_rejected() {
        let begin = allocate_range(1000);
        let heap = Some((begin, 1000));
        assert_eq!(place_in_heap(heap, Some(100), 50), (begin + 100, true));
        assert!(!place_in_heap(heap, Some(100), 50).1, "occupied");
        assert!(!place_in_heap(heap, Some(990), 11).1, "beyond the end");
        assert!(!place_in_heap(heap, Some(u64::MAX), 2).1, "overflow");
        assert!(!place_in_heap(heap, None, 1).1 && !place_in_heap(None, Some(0), 1).1);
        release_in_heap(begin + 100);
        assert_eq!(place_in_heap(heap, Some(100), 50), (begin + 100, true));
    }
}
