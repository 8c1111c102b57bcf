//! Which requests a segment can serve: stream, pool and block size.

use gpumemtrace_format::Detail;

use crate::state::segments::Segment;

/// PyTorch's `kSmallSize` in bytes: blocks up to this size come from segments of the small pool.
const SMALL_BLOCK: u64 = 1 << 20;
/// PyTorch's `kSmallBuffer` in bytes: segments of the small pool, and pages of its expandable
/// segments.
pub(crate) const SMALL_SEGMENT: u64 = 2 << 20;
/// PyTorch's `kMinLargeAlloc` in bytes: larger blocks below this size come from segments of
/// [`LARGE_SEGMENT`].
const MIN_LARGE_BLOCK: u64 = 10 << 20;
/// PyTorch's `kLargeBuffer` in bytes.
const LARGE_SEGMENT: u64 = 20 << 20;

/// Bytes of the segment that PyTorch requests for a block (`get_allocation_size`).
pub(crate) fn segment_bytes(block_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BLOCK {
        SMALL_SEGMENT
    } else if block_bytes < MIN_LARGE_BLOCK {
        LARGE_SEGMENT
    } else {
        block_bytes.checked_next_multiple_of(SMALL_SEGMENT).unwrap_or(u64::MAX)
    }
}

/// Matches requests with the segments that can serve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolKey {
    /// Stream as PyTorch numbers it.
    pub stream: u64,
    /// Id of the pool in PyTorch. 0 is the default pool.
    pub pool: u64,
    /// For blocks of at most [`SMALL_BLOCK`] bytes.
    pub is_small: bool,
}

impl PoolKey {
    /// The pool that serves a request of `bytes`.
    pub(crate) fn of_request(detail: Detail, bytes: u64) -> Self {
        Self { stream: detail.stream, pool: detail.pool, is_small: bytes <= SMALL_BLOCK }
    }

    /// The pool of a block in a segment.
    pub(crate) fn of_block(segment: &Segment, bytes: u64) -> Self {
        let (stream, pool) = segment.pool;
        Self { stream, pool, is_small: bytes <= SMALL_BLOCK }
    }

    /// The pool that a segment, or a part of an expandable one, belongs to. Segments for large
    /// blocks are always larger than [`SMALL_SEGMENT`].
    pub(crate) fn of_segment(segment: &Segment) -> Self {
        let (stream, pool) = segment.pool;
        Self { stream, pool, is_small: segment.bytes <= SMALL_SEGMENT }
    }

    /// True for the pool of a CUDA graph or a `MemPool`.
    pub(crate) fn is_private(self) -> bool {
        self.pool != 0 && self.pool != gpumemtrace_format::event::NO_POOL
    }

    /// True for a pool that the capture of one CUDA graph created
    /// ([`PoolInfo::is_graph`](crate::report::PoolInfo::is_graph)).
    pub(crate) fn is_graph(self) -> bool {
        self.is_private() && self.pool >> 32 != 0
    }
}
