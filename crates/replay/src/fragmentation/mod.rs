//! Explains the fragmentation gap: reserved bytes that no tensor uses, each byte with one cause.
//!
//! The gap is reserved bytes minus the requested bytes of live blocks, or minus the blocks
//! themselves where requested sizes are unknown. Its causes:
//! - `rounding`: blocks are larger than requested. By allocating line.
//! - `pending_free`: freed by the program, but another stream still uses the block. By allocating
//!   line.
//! - `cache`: in segments without a block, which `empty_cache()` would release. In an expandable
//!   segment, pages without a block count (2 MiB for small blocks, 20 MiB for large ones).
//! - `stranded_pool`, `stranded_stream`: free, but in segments that serve another pool or stream
//!   than the request. PyTorch keeps small blocks (up to 1 MiB) in a pool of their own. Empty
//!   segments of a private pool (a CUDA graph's or a `MemPool`) are stranded for other requests:
//!   `empty_cache()` returns them only after the graph or the `MemPool` is gone.
//! - `pinned`: free, in segments that could serve the request, but pinned by live blocks, or empty
//!   and kept by the private pool of the request, if it failed.
//! - `unexplained`: the rest, where segments are unknown. It is never guessed.
//!
//! The *request* is the one that failed, or that took the last memory; at other moments, the pool
//! with most bytes requested. Free bytes are divided evenly among the blocks that pin the segment
//! (or page), and summed by their lines. Segments come from PyTorch's allocation tracker, else from
//! ranges of driver memory in which the allocator placed blocks. If they do not sum to PyTorch's
//! reserved bytes, all but the rounding is unexplained.
//!
//! [`explain`] analyses one moment, [`free_runs`] finds memory that is released together,
//! [`by_pool`] sums by stream and pool, [`fit`] counts allocations that fit, [`history`] follows
//! the gap over the run at the moments of [`gap_schedule`], and [`key_moments`] keeps the states
//! that are explained at the end. One moment costs O(n log n) in live blocks.
//! `fragmentation::tests` compares it with a model that looks at every half mebibyte.

pub(crate) mod by_pool;
pub(crate) mod explain;
pub(crate) mod fit;
pub(crate) mod free_runs;
pub(crate) mod gap_schedule;
pub(crate) mod history;
pub(crate) mod key_moments;
pub(crate) mod past_state;
pub(crate) mod releasable;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::report::CauseKind;
use crate::state::driver::{MemoryPlace, MemoryRange};
use crate::state::live_set::LiveBlock;
use crate::state::pool_key::PoolKey;
use crate::state::segments::Segment;
use crate::util::ids::SiteId;

pub(crate) use by_pool::PoolTotals;
pub(crate) use explain::explain_gap;
pub(crate) use fit::{FitForSize, fit_for_sizes};
pub(crate) use key_moments::KeyMoments;
pub(crate) use past_state::{PastMoment, PastState, PresentState};
pub(crate) use releasable::units_by_stacks;

/// Lines reported per cause of a gap.
pub(crate) const MAX_CULPRITS: usize = 20;
/// PyTorch's `kLargeBuffer` in bytes: pages of expandable segments for large blocks.
const LARGE_PAGE: u64 = 20 << 20;

/// Start addresses of driver ranges in which PyTorch's allocator ever placed a block.
pub(crate) type TorchRanges = crate::util::seeded_map::SeededSet<u64>;

/// A block that the program freed and another stream still uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFree {
    /// The block before it was freed.
    pub block: LiveBlock,
    /// Number of the event that freed it.
    pub since: u64,
}

/// The state of one device's allocator at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocatorSnapshot<'a> {
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// Number of events of PyTorch's blocks on the device up to the moment.
    pub block_events: u64,
    /// Bytes reserved by PyTorch.
    pub reserved: u64,
    /// The request that the free memory is judged for, where it is known.
    pub request: Option<PoolKey>,
    /// The request failed at this moment.
    pub has_failed: bool,
    /// Live blocks with their addresses, in any order.
    pub blocks: Cow<'a, [(u64, LiveBlock)]>,
    /// Blocks with a pending free, in any order.
    pub pending: Vec<(u64, LiveBlock)>,
    /// Segments of PyTorch's allocator, sorted by address. Empty without PyTorch's tracker.
    pub segments: Vec<Segment>,
    /// Ranges of driver memory on the device, sorted by address.
    pub ranges: Vec<MemoryRange>,
}

/// Bytes of a gap that have the same cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GapCause {
    /// Sum over all lines.
    pub bytes: u64,
    /// Bytes by line, most first. They sum to `bytes`.
    pub culprits: Vec<(SiteId, u64)>,
    /// Bytes by the pool in which they are free, most first. Empty where pools are unknown.
    pub pools: Vec<(PoolKey, u64)>,
}

/// A contiguous piece of free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePiece {
    /// The pool it belongs to, where segments are known.
    pub pool: Option<PoolKey>,
    /// Length of the piece.
    pub bytes: u64,
}

/// A fragmentation gap, divided by causes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes that the program requested for them. `None` unless known for every block.
    pub requested: Option<u64>,
    /// Reserved minus requested bytes, or minus live bytes.
    pub bytes: u64,
    // The causes; see the module's documentation.
    pub rounding: GapCause,
    pub pending: GapCause,
    pub stranded_stream: GapCause,
    pub stranded_pool: GapCause,
    pub pinned: GapCause,
    pub cache: u64,
    pub unexplained: u64,
    /// Bytes of the largest free piece in a segment that could serve the request. `None` where
    /// segments are unknown.
    pub largest_free: Option<u64>,
    /// The request that the free memory is judged for.
    pub request: Option<PoolKey>,
    /// All free pieces. Empty where segments are unknown.
    pub pieces: Vec<FreePiece>,
    /// Totals by pool, most reserved bytes first. Empty without PyTorch's tracker.
    pub groups: Vec<PoolTotals>,
}

/// All causes, in the order of [`Gap::bytes_by_cause`].
pub(crate) const CAUSES: [CauseKind; 7] = [
    CauseKind::Rounding,
    CauseKind::PendingFree,
    CauseKind::StrandedStream,
    CauseKind::StrandedPool,
    CauseKind::Pinned,
    CauseKind::Cache,
    CauseKind::Unexplained,
];

impl Gap {
    /// Bytes of each cause. They sum to `bytes`.
    pub(crate) fn bytes_by_cause(&self) -> [(CauseKind, u64); 7] {
        let bytes = [
            self.rounding.bytes,
            self.pending.bytes,
            self.stranded_stream.bytes,
            self.stranded_pool.bytes,
            self.pinned.bytes,
            self.cache,
            self.unexplained,
        ];
        std::array::from_fn(|cause| (CAUSES[cause], bytes[cause]))
    }

    /// Sum of the causes that are known; `None` if it overflows.
    fn explained(&self) -> Option<u64> {
        let causes =
            [&self.rounding, &self.pending, &self.stranded_stream, &self.stranded_pool, &self.pinned];
        causes.into_iter().try_fold(self.cache, |sum, cause| sum.checked_add(cause.bytes))
    }

    /// Free bytes in segments that live blocks pin, by the lines of these blocks.
    fn pinned_by_line(&self) -> impl Iterator<Item = (SiteId, u64)> {
        let causes = [&self.stranded_stream, &self.stranded_pool, &self.pinned];
        causes.into_iter().flat_map(|cause| cause.culprits.iter().copied())
    }
}

/// The driver ranges of a device, sorted by address.
pub(crate) fn ranges_of_device(ranges: &BTreeMap<u64, MemoryRange>, device: u8) -> Vec<MemoryRange> {
    ranges.values().filter(|range| range.place == MemoryPlace::Device(device)).copied().collect()
}
