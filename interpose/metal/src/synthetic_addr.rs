//! Where memory lies, in numbers of our own.
//!
//! Constraint: reports take memory apart by address, and Metal tells none of a heap. Consequence: each heap, and each buffer or texture
//! of its own, has a range of a space that only counts upwards; what lies in a heap is at the heap's range plus the offset that the
//! object tells. Where it tells none, or one that cannot be (taken by another, or beyond the heap's end), it gets a range of its own
//! outside of the heap: its bytes stay right, and where it lies stays unknown.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::object_table::{Live, Put};

/// The first address: above what a program's own pointers are on either system.
const BEGIN: u64 = 1 << 48;
/// Between two ranges, so that none follows another.
const PAGE: u64 = 1 << 14;
/// No range is longer: what an object says of itself must not use up the space.
const LONGEST: u64 = 1 << 44;

static NEXT: AtomicU64 = AtomicU64::new(BEGIN);
/// Addresses inside heaps that are taken.
static TAKEN: Live = Live::new();

/// A range of its own.
pub(crate) fn fresh(bytes: u64) -> u64 {
    let pages = bytes.min(LONGEST).div_ceil(PAGE) + 1;
    NEXT.fetch_add(pages * PAGE, Ordering::Relaxed)
}

/// The place of what lies in a heap, and whether that is the heap's.
pub(crate) fn inside(heap: Option<(u64, u64)>, offset: Option<u64>, bytes: u64) -> (u64, bool) {
    let place = heap.zip(offset).and_then(|((begin, len), offset)| {
        let is_within = offset.checked_add(bytes).is_some_and(|end| end <= len);
        is_within.then_some(begin.wrapping_add(offset))
    });
    match place {
        Some(place) if TAKEN.put(key(place), [0; 3]) == Put::Done => (place, true),
        _ => (fresh(bytes), false),
    }
}

/// It is free again.
pub(crate) fn leave(place: u64) {
    TAKEN.take(key(place));
}

/// The table's first numbers stand for something else, and its own mixing passes over the lowest bits.
fn key(place: u64) -> u64 {
    place.rotate_left(4) | 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_touch() {
        let (one, other, third) = (fresh(1), fresh(PAGE + 1), fresh(u64::MAX));
        assert!(one + 1 < other && other + PAGE + 1 < third, "{one:x} {other:x} {third:x}");
    }

    #[test]
    fn an_offset_is_believed_only_where_it_can_be() {
        let begin = fresh(1000);
        let heap = Some((begin, 1000));
        assert_eq!(inside(heap, Some(100), 50), (begin + 100, true));
        assert!(!inside(heap, Some(100), 50).1, "taken");
        assert!(!inside(heap, Some(990), 11).1 && !inside(heap, Some(u64::MAX), 2).1, "beyond the end");
        assert!(!inside(heap, None, 1).1 && !inside(None, Some(0), 1).1);
        leave(begin + 100);
        assert_eq!(inside(heap, Some(100), 50), (begin + 100, true));
    }
}
