//! Reserved bytes that no tensor uses, and who keeps them from being given back.
//!
//! Definition: the gap is reserved bytes minus what the live blocks asked for, or minus the blocks themselves where nobody
//! said what was asked for. Its parts:
//! - `rounding`: blocks are larger than what was asked for; by their lines.
//! - `pending_free`: requested back, but another stream still uses the block; by the lines that allocated it.
//! - `cache`: in segments without a block; `empty_cache()` would give it back. Of an expandable segment each page (2 MiB for
//!   small blocks, 20 MiB for large ones) without a block.
//! - `stranded_pool`, `stranded_stream`: free beside blocks, in segments that serve another pool or another stream than the
//!   request for which memory was lacking at that moment. PyTorch keeps small blocks (up to 1 MiB) in a pool of their own. Of a private
//!   pool (a graph's, a `MemPool`) also whole segments: they are nobody else's while it lives.
//! - `pinned`: free beside blocks, in segments that could have served it.
//!
//! In the middle of a run, where no memory was lacking, the request is the one for which most bytes were asked so far; at the end nobody
//! asks. What is free beside blocks is shared equally among the blocks of the segment (of the page), and summed by their lines. Segments are those that PyTorch's tracker told; without
//! it, runs of driver memory in which the allocator ever placed a block. If they do not sum to what PyTorch says it has
//! reserved, all but the rounding is `unexplained`: it is never guessed.
//!
//! `explain` takes a moment apart, `runs` tells what may be given back together, `groups` sums by stream and pool, `usable` says what the free pieces are
//! good for, `course` follows all of it over the run, `peak_state` keeps the worst moment.

pub(crate) mod by_pool;
pub(crate) mod explain;
pub(crate) mod fit;
pub(crate) mod free_runs;
pub(crate) mod history;
pub(crate) mod peak_state;
pub(crate) mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gpumemtrace_format::Detail;

use crate::callsite::symbols::SiteId;
use crate::report::CauseKind;
use crate::state::driver::{MemoryPlace, MemoryRange};
use crate::state::live_set::LiveBlock;
use crate::state::segments::Segment;

pub(crate) use by_pool::PoolTotals;
pub(crate) use explain::explain;
pub(crate) use fit::{FitForSize, fit_for_sizes};
pub(crate) use peak_state::{ReservedPeak, ReservedPeakState};

/// Most culprits named.
pub(crate) const MAX_CULPRITS: usize = 20;
/// PyTorch's `kSmallSize`: blocks up to this come from segments for small ones.
const SMALL_BLOCK: u64 = 1 << 20;
/// `kSmallBuffer`: how large the segments for them are, and the pages of expandable ones.
const SMALL_SEGMENT: u64 = 2 << 20;
/// `kLargeBuffer`: pages of expandable segments for large blocks.
const LARGE_PAGE: u64 = 20 << 20;

/// First addresses of the ranges in which PyTorch's allocator ever placed a block.
pub(crate) type TorchRanges = crate::util::seeded_map::SeededSet<u64>;

/// Whose requests a segment serves, or which segments serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolKey {
    /// PyTorch's stream.
    pub stream: u64,
    /// PyTorch's id of the pool; 0 is the default.
    pub pool: u64,
    /// Blocks of at most 1 MiB.
    pub is_small: bool,
}

impl PoolKey {
    /// What a request needs.
    pub(crate) fn request(detail: Detail, bytes: u64) -> Self {
        Self { stream: detail.stream, pool: detail.pool, is_small: bytes <= SMALL_BLOCK }
    }

    /// What a segment, or a piece of an expandable one, is for: those for large blocks are never as small.
    pub(crate) fn segment(segment: &Segment) -> Self {
        let (stream, pool) = segment.pool;
        Self { stream, pool, is_small: segment.bytes <= SMALL_SEGMENT }
    }

    /// A graph's, or a `MemPool`.
    fn is_private(self) -> bool {
        self.pool != 0 && self.pool != gpumemtrace_format::event::NO_POOL
    }
}

/// A block that was requested back and is not free yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFree {
    /// The block, as it was.
    pub block: LiveBlock,
    /// Which event of the book requested it back.
    pub since: u64,
}

/// A moment of one device's allocator.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocatorSnapshot {
    /// When.
    pub time_ns: u64,
    /// Held by PyTorch.
    pub reserved: u64,
    /// What memory was lacking for, where that is known.
    pub request: Option<PoolKey>,
    /// Live blocks by address.
    pub blocks: Vec<(u64, LiveBlock)>,
    /// Blocks requested back that are not free yet.
    pub pending: Vec<(u64, LiveBlock)>,
    /// Segments of PyTorch's allocator, by address; empty where its tracker did not tell them.
    pub segments: Vec<Segment>,
    /// Driver ranges of the device.
    pub ranges: Vec<MemoryRange>,
}

/// A part of a gap, and whose it is, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GapCause {
    /// How much.
    pub bytes: u64,
    /// They sum to `bytes`, or are empty where nobody is to blame.
    pub culprits: Vec<(SiteId, u64)>,
}

/// Free bytes without a hole in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreePiece {
    /// Whose requests can have it, where that is known.
    pub pool: Option<PoolKey>,
    /// How much.
    pub bytes: u64,
}

/// A gap and its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Sum of the live blocks.
    pub live: u64,
    /// What they asked for, where that is known of each.
    pub requested: Option<u64>,
    /// Reserved minus requested, or minus live.
    pub bytes: u64,
    /// In the order of the header; without `unexplained`.
    pub rounding: GapCause,
    /// See there.
    pub pending: GapCause,
    /// See there.
    pub stranded_stream: GapCause,
    /// See there.
    pub stranded_pool: GapCause,
    /// See there.
    pub pinned: GapCause,
    /// See there.
    pub cache: u64,
    /// The rest.
    pub unexplained: u64,
    /// Largest contiguous free piece in a segment that could serve what was wanted, where segments are known.
    pub largest_free: Option<u64>,
    /// What was wanted.
    pub request: Option<PoolKey>,
    /// All free pieces; none where segments are not known.
    pub pieces: Vec<FreePiece>,
    /// The same by what they serve, largest first; none where PyTorch's tracker did not tell.
    pub groups: Vec<PoolTotals>,
}

/// All causes, in the order of [`Gap::parts`].
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
    /// Its causes; they sum to `gap`.
    pub(crate) fn parts(&self) -> [(CauseKind, u64); 7] {
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

    fn known(&self) -> Option<u64> {
        let parts = [&self.rounding, &self.pending, &self.stranded_stream, &self.stranded_pool, &self.pinned];
        parts.into_iter().try_fold(self.cache, |sum, part| sum.checked_add(part.bytes))
    }

    /// Free bytes that blocks keep, by the lines of these blocks.
    fn kept(&self) -> impl Iterator<Item = (SiteId, u64)> {
        let parts = [&self.stranded_stream, &self.stranded_pool, &self.pinned];
        parts.into_iter().flat_map(|part| part.culprits.iter().copied())
    }
}

/// The ranges of a device, by address.
pub(crate) fn of_device(ranges: &BTreeMap<u64, MemoryRange>, device: u8) -> Vec<MemoryRange> {
    ranges.values().filter(|range| range.place == MemoryPlace::Device(device)).copied().collect()
}
