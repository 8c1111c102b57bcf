//! Sizes of blocks and segments.
//!
//! A program must need the same memory here as with PyTorch's native allocator, so the rules are
//! those of `c10/cuda/CUDACachingAllocator.cpp`. Blocks are multiples of 512 bytes. Blocks of up to
//! 1 MiB come from segments of 2 MiB, blocks below 10 MiB from segments of 20 MiB. Larger blocks
//! get a segment of their own, a multiple of 2 MiB.

const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Block sizes are multiples of this.
pub(crate) const GRAIN_BYTES: u64 = 512;
const SMALL_BYTES: u64 = MIB;
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
pub(crate) const OWN_SEGMENT_FROM_BYTES: u64 = 10 * MIB;
/// Segments for blocks below 10 MiB, unless set otherwise.
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
const OWN_SEGMENT_GRAIN_BYTES: u64 = 2 * MIB;
/// Larger requests fail. No device has as much memory, and sums of such sizes cannot overflow.
const LIMIT_BYTES: u64 = 1 << 60;

/// PyTorch's small and large pool. Blocks of different classes never share a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum BlockSizeClass {
    /// Blocks of up to 1 MiB.
    Small,
    /// Blocks of more than 1 MiB.
    Large,
}

/// Bytes of the block for a request; `None` if no device could serve it. With several divisions,
/// requests of more than 512 bytes for each are rounded up to a part of a power of two.
pub(crate) fn block_bytes(requested: u64, divisions: u64) -> Option<u64> {
    if requested > LIMIT_BYTES {
        return None;
    }
    if divisions > 1 && requested > GRAIN_BYTES * divisions {
        return Some(round_up_to_division(requested, divisions));
    }
    Some(requested.max(1).next_multiple_of(GRAIN_BYTES))
}

/// Rounds up to a part of the power of two below `bytes`, which has more bytes than `divisions`.
fn round_up_to_division(bytes: u64, divisions: u64) -> u64 {
    bytes.next_multiple_of((1 << bytes.ilog2()) / divisions)
}

pub(crate) fn size_class_of(block_bytes: u64) -> BlockSizeClass {
    if block_bytes <= SMALL_BYTES { BlockSizeClass::Small } else { BlockSizeClass::Large }
}

/// Bytes of the segment to allocate when no free block fits.
pub(crate) fn segment_bytes(block_bytes: u64, large_segment_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < OWN_SEGMENT_FROM_BYTES {
        large_segment_bytes
    } else {
        block_bytes.next_multiple_of(OWN_SEGMENT_GRAIN_BYTES)
    }
}

/// Whether the unused rest of a block becomes a free block. `can_expand` is true for a request that
/// an expandable segment may serve.
pub(crate) fn should_split(
    size_class: BlockSizeClass,
    block_bytes: u64,
    rest_bytes: u64,
    max_split_bytes: u64,
    can_expand: bool,
) -> bool {
    if size_class == BlockSizeClass::Small || can_expand {
        rest_bytes >= GRAIN_BYTES
    } else {
        rest_bytes > 1024 * KIB && block_bytes < max_split_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_native_allocator() {
        assert_eq!(
            [1, 512, 513, 1 << 20].map(|bytes| block_bytes(bytes, 0)),
            [Some(512), Some(512), Some(1024), Some(1 << 20)]
        );
        assert_eq!(block_bytes(u64::MAX, 4), None);
        assert_eq!([MIB, MIB + 512].map(size_class_of), [BlockSizeClass::Small, BlockSizeClass::Large]);
        let segments = [512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512, 21 * MIB];
        assert_eq!(
            segments.map(|bytes| segment_bytes(bytes, LARGE_SEGMENT_BYTES) / MIB),
            [2, 2, 20, 20, 10, 12, 22],
            "MiB of the segment for each size"
        );
        let splits = |class, rest| should_split(class, 4 * MIB, rest, u64::MAX, false);
        assert!(splits(BlockSizeClass::Small, 512) && !splits(BlockSizeClass::Small, 0));
        assert!(splits(BlockSizeClass::Large, MIB + 512) && !splits(BlockSizeClass::Large, MIB));
        assert!(should_split(BlockSizeClass::Large, 4 * MIB, 512, u64::MAX, true));
    }

    #[test]
    fn divisions_round_up_to_parts_of_a_power_of_two() {
        // The example of PyTorch's documentation: 4 divisions between 1024 and 2048.
        assert_eq!(
            [1024, 1025, 1200, 1281, 1800].map(|bytes| round_up_to_division(bytes, 4)),
            [1024, 1280, 1280, 1536, 2048]
        );
    }
}
