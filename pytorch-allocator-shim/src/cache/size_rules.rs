//! How large things are made.
//!
//! Constraint: a program must need the same memory here as with PyTorch's native allocator, or what is learned here does not
//! hold there. Consequence: the sizes are those of `c10/cuda/CUDACachingAllocator.cpp` without any setting: blocks are
//! multiples of 512 bytes; up to 1 MiB they are cut from segments of 2 MiB, below 10 MiB from segments of 20 MiB, and from
//! there on each has a segment of its own, a multiple of 2 MiB.

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Blocks are multiples of this.
pub(crate) const GRAIN_BYTES: u64 = 512;
const SMALL_BYTES: u64 = MIB;
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
const OWN_SEGMENT_FROM_BYTES: u64 = 10 * MIB;
const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
const OWN_SEGMENT_GRAIN_BYTES: u64 = 2 * MIB;
/// No device has more; sums of sizes cannot overflow below it.
const LIMIT_BYTES: u64 = 1 << 60;

/// Which of a pool's two halves a block lies in. Their blocks never share a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Half {
    /// Blocks of up to 1 MiB.
    Small,
    /// All others.
    Large,
}

/// Bytes of the block that serves a request; `None` for more than any device has.
pub(crate) fn block_bytes(requested: u64) -> Option<u64> {
    (requested <= LIMIT_BYTES).then(|| requested.max(1).next_multiple_of(GRAIN_BYTES))
}

/// Where a block of this size belongs.
pub(crate) fn half_of(block_bytes: u64) -> Half {
    if block_bytes <= SMALL_BYTES { Half::Small } else { Half::Large }
}

/// Bytes of the segment that is made when no free block serves.
pub(crate) fn segment_bytes(block_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < OWN_SEGMENT_FROM_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        block_bytes.next_multiple_of(OWN_SEGMENT_GRAIN_BYTES)
    }
}

/// Whether what a block has too much becomes a block of its own.
pub(crate) fn is_worth_splitting(half: Half, rest_bytes: u64) -> bool {
    match half {
        Half::Small => rest_bytes >= GRAIN_BYTES,
        Half::Large => rest_bytes > 1024 * KIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_native_allocator() {
        assert_eq!(
            [1, 512, 513, 1 << 20].map(block_bytes),
            [Some(512), Some(512), Some(1024), Some(1 << 20)]
        );
        assert_eq!(block_bytes(u64::MAX), None);
        assert_eq!([MIB, MIB + 512].map(half_of), [Half::Small, Half::Large]);
        let segments = [512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512, 21 * MIB];
        assert_eq!(
            segments.map(|bytes| segment_bytes(bytes) / MIB),
            [2, 2, 20, 20, 10, 12, 22],
            "MiB of the segment for each size"
        );
        assert!(is_worth_splitting(Half::Small, 512) && !is_worth_splitting(Half::Small, 0));
        assert!(is_worth_splitting(Half::Large, MIB + 512) && !is_worth_splitting(Half::Large, MIB));
    }
}
