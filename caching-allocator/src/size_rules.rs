//! Sizes of blocks and segments.
//!
//! A program must need the same memory here as with PyTorch's native allocator, so the rules are
//! those of `c10/cuda/CUDACachingAllocator.cpp` with default settings. Blocks are multiples of 512
//! bytes. Blocks of up to 1 MiB come from segments of 2 MiB, blocks below 10 MiB from segments of
//! 20 MiB. Larger blocks get a segment of their own, a multiple of 2 MiB.

const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Block sizes are multiples of this.
pub(crate) const GRAIN_BYTES: u64 = 512;
const SMALL_BYTES: u64 = MIB;
const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
pub(crate) const OWN_SEGMENT_FROM_BYTES: u64 = 10 * MIB;
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

/// Bytes of the block for a request; `None` if no device could serve it.
pub(crate) fn block_bytes(requested: u64) -> Option<u64> {
    (requested <= LIMIT_BYTES).then(|| requested.max(1).next_multiple_of(GRAIN_BYTES))
}

pub(crate) fn size_class_of(block_bytes: u64) -> BlockSizeClass {
    if block_bytes <= SMALL_BYTES { BlockSizeClass::Small } else { BlockSizeClass::Large }
}

/// Bytes of the segment to allocate when no free block fits.
pub(crate) fn segment_bytes(block_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < OWN_SEGMENT_FROM_BYTES {
        LARGE_SEGMENT_BYTES
    } else {
        block_bytes.next_multiple_of(OWN_SEGMENT_GRAIN_BYTES)
    }
}

/// Whether the unused rest of a block becomes a free block.
pub(crate) fn should_split(size_class: BlockSizeClass, rest_bytes: u64) -> bool {
    match size_class {
        BlockSizeClass::Small => rest_bytes >= GRAIN_BYTES,
        BlockSizeClass::Large => rest_bytes > 1024 * KIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_native_allocator() {
        assert_eq!(
            [1, 512, 513, 1 << 20].map(block_bytes),
            [Some(512), Some(512), Some(1024), Some(1 << 20)]
        );
        assert_eq!(block_bytes(u64::MAX), None);
        assert_eq!([MIB, MIB + 512].map(size_class_of), [BlockSizeClass::Small, BlockSizeClass::Large]);
        let segments = [512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512, 21 * MIB];
        assert_eq!(
            segments.map(|bytes| segment_bytes(bytes) / MIB),
            [2, 2, 20, 20, 10, 12, 22],
            "MiB of the segment for each size"
        );
        assert!(should_split(BlockSizeClass::Small, 512) && !should_split(BlockSizeClass::Small, 0));
        assert!(should_split(BlockSizeClass::Large, MIB + 512) && !should_split(BlockSizeClass::Large, MIB));
    }
}
