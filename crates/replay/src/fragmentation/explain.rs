//! Divides the gap of one moment by causes.
//!
//! [`explain_gap`] walks the segments and the blocks in them, both sorted by address. It costs
//! O(n log n) in blocks, and O(pages) in expandable segments. If blocks and segments contradict
//! each other, or the causes do not sum to the gap, everything but the rounding is unexplained.
//! `fragmentation::tests` compares the result with a model.

use std::collections::BTreeMap;

use super::by_pool::{SegmentBytes, TotalsByPool};
use super::free_runs::{MemoryRun, Page, find_runs};
use super::{AllocatorSnapshot, FreePiece, Gap, GapCause, TorchRanges};
use crate::state::live_set::LiveBlock;
use crate::state::pool_key::PoolKey;
use crate::util::block_totals::saturating_sum;
use crate::util::ids::{SiteId, StackId};

/// Collects the bytes of one cause by site and by pool.
#[derive(Default)]
struct CauseBytes {
    /// Bytes by the number of the site. No hash map: each block of each moment is added.
    by_site: Vec<u64>,
    /// The sites with bytes.
    sites: Vec<SiteId>,
    by_pool: BTreeMap<PoolKey, u64>,
}

impl CauseBytes {
    fn add(&mut self, site: SiteId, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let index = site.0 as usize;
        if index >= self.by_site.len() {
            self.by_site.resize(index + 1, 0);
        }
        if self.by_site[index] == 0 {
            self.sites.push(site);
        }
        self.by_site[index] = self.by_site[index].saturating_add(bytes);
    }

    fn add_to_pool(&mut self, pool: Option<PoolKey>, bytes: u64) {
        if let Some(pool) = pool {
            let sum = self.by_pool.entry(pool).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }

    fn into_cause(self) -> GapCause {
        let mut pools: Vec<(PoolKey, u64)> = self.by_pool.into_iter().collect();
        pools.sort_by_key(|(pool, bytes)| (std::cmp::Reverse(*bytes), *pool));
        let bytes_of = |site: SiteId| (site, self.by_site[site.0 as usize]);
        let mut culprits: Vec<(SiteId, u64)> = self.sites.into_iter().map(bytes_of).collect();
        culprits.sort_by_key(|(site, bytes)| (std::cmp::Reverse(*bytes), *site));
        GapCause {
            bytes: culprits.iter().map(|(_, bytes)| bytes).fold(0, |a, b| a.saturating_add(*b)),
            culprits,
            pools,
        }
    }
}

/// Divides the gap of a snapshot by causes. `torch_ranges` stand in for segments where those are
/// unknown.
#[allow(clippy::implicit_hasher)] // `TorchRanges` fixes the hasher.
pub(crate) fn explain_gap(
    snapshot: &AllocatorSnapshot<'_>,
    torch_ranges: &TorchRanges,
    site_of: impl Fn(StackId) -> SiteId,
) -> Gap {
    let mut blocks = Vec::with_capacity(snapshot.blocks.len() + snapshot.pending.len());
    let (mut live, mut requested, mut rounding) =
        (0u64, Some(0u64).filter(|_| !snapshot.segments.is_empty()), CauseBytes::default());
    for (addr, block) in snapshot.blocks.iter() {
        let placed = PlacedBlock::new(*addr, block, site_of(block.stack), false);
        live = live.saturating_add(block.bytes);
        let used = block.requested_bytes.map(|requested| requested.min(block.bytes));
        requested = requested.zip(used).map(|(sum, used)| sum.saturating_add(used));
        rounding.add(placed.site, block.bytes - used.unwrap_or(block.bytes));
        blocks.push(placed);
    }
    let pending = snapshot.pending.iter();
    blocks.extend(pending.map(|(addr, block)| PlacedBlock::new(*addr, block, site_of(block.stack), true)));
    // Most are in order already. Only the stable sort of the standard library merges such runs.
    blocks.sort_by_key(|placed| placed.addr);
    let rounding = if requested.is_some() { rounding.into_cause() } else { GapCause::default() };
    let gap = snapshot.reserved.saturating_sub(requested.unwrap_or(live));
    let base = Gap { live, requested, bytes: gap, request: snapshot.request, rounding, ..Gap::default() };
    explain_free_memory(snapshot, torch_ranges, base.clone(), &blocks, &site_of)
        .filter(|explained| explained.explained() == Some(gap))
        .unwrap_or(if base.rounding.bytes <= gap {
            Gap { unexplained: gap - base.rounding.bytes, ..base }
        } else {
            Gap { rounding: GapCause::default(), unexplained: gap, ..base }
        })
}

/// A block at its address, with its site.
#[derive(Clone, Copy)]
struct PlacedBlock {
    addr: u64,
    bytes: u64,
    site: SiteId,
    is_pending: bool,
}

impl PlacedBlock {
    fn new(addr: u64, block: &LiveBlock, site: SiteId, is_pending: bool) -> Self {
        Self { addr, bytes: block.bytes, site, is_pending }
    }

    fn end(&self) -> u64 {
        self.addr.saturating_add(self.bytes)
    }
}

/// Free memory by the reason why a request cannot have it.
#[derive(Default)]
struct UnusableMemory {
    stream: CauseBytes,
    pool: CauseBytes,
    pinned: CauseBytes,
    cache: u64,
}

impl UnusableMemory {
    fn cause_of_pinned(&mut self, pool: Option<PoolKey>, request: Option<PoolKey>) -> &mut CauseBytes {
        match (pool, request) {
            (Some(own), Some(request)) if (own.pool, own.is_small) != (request.pool, request.is_small) => {
                &mut self.pool
            }
            (Some(own), Some(request)) if own.stream != request.stream => &mut self.stream,
            (Some(own), None) if own.is_private() => &mut self.pool,
            _ => &mut self.pinned,
        }
    }

    /// Divides free bytes evenly among the blocks that pin them.
    fn add_pinned(&mut self, free: u64, blocks: &[PlacedBlock], run: &MemoryRun, request: Option<PoolKey>) {
        let cause = self.cause_of_pinned(run.pool, request);
        cause.add_to_pool(run.pool, free);
        let (share, remainder) = (free / blocks.len() as u64, free % blocks.len() as u64);
        for (index, placed) in blocks.iter().enumerate() {
            cause.add(placed.site, share + u64::from((index as u64) < remainder));
        }
    }

    /// Adds a segment or page without a block. It is cache, unless it belongs to a private pool:
    /// `release_cached_blocks` of PyTorch's `CUDACachingAllocator.cpp` releases those only after
    /// the last user of the pool (a CUDA graph or a `MemPool`) is gone. For a request in the pool
    /// that `failed`, it is pinned. Returns true for cache.
    fn add_empty(
        &mut self,
        free: u64,
        run: &MemoryRun,
        page: &Page,
        failed: Option<PoolKey>,
        site_of: &impl Fn(StackId) -> SiteId,
    ) -> bool {
        let is_private = run.pool.is_some_and(PoolKey::is_private);
        match page.stack.filter(|_| is_private) {
            Some(stack) => {
                let cause = if run.pool == failed { &mut self.pinned } else { &mut self.pool };
                cause.add(site_of(stack), free);
                cause.add_to_pool(run.pool, free);
            }
            None => self.cache = self.cache.saturating_add(free),
        }
        !is_private
    }
}

/// Adds everything but the rounding to `base`. The blocks ascend by address. `None` if segments and
/// blocks contradict each other.
fn explain_free_memory(
    snapshot: &AllocatorSnapshot<'_>,
    torch_ranges: &TorchRanges,
    base: Gap,
    blocks: &[PlacedBlock],
    site_of: &impl Fn(StackId) -> SiteId,
) -> Option<Gap> {
    let runs = find_runs(snapshot, torch_ranges)?;
    let mut result = Gap { largest_free: Some(0), ..base };
    let (mut pending, mut unusable, mut totals) =
        (CauseBytes::default(), UnusableMemory::default(), TotalsByPool::default());
    let failed = snapshot.request.filter(|_| snapshot.has_failed);
    let mut remaining = blocks;
    for run in &runs {
        let inside = remaining.partition_point(|placed| placed.addr < run.end);
        let (in_run, after) = remaining.split_at(inside);
        remaining = after;
        let pieces = free_pieces(run, in_run)?;
        let could_serve = match (run.pool, snapshot.request) {
            (Some(pool), Some(request)) => pool == request,
            _ => true,
        };
        let largest = pieces.iter().copied().max().unwrap_or(0);
        if could_serve {
            result.largest_free = result.largest_free.max(Some(largest));
        }
        let in_pending = || in_run.iter().filter(|placed| placed.is_pending);
        in_pending().for_each(|placed| pending.add(placed.site, placed.bytes));
        let releasable = sum_releasable_pages(run, in_run, |page, free, pinning| {
            if pinning.is_empty() {
                return unusable.add_empty(free, run, page, failed, site_of);
            }
            unusable.add_pinned(free, pinning, run, snapshot.request);
            false
        });
        if let Some(pool) = run.pool {
            let segment = SegmentBytes {
                all: run.end - run.begin,
                free: saturating_sum(pieces.iter().copied()),
                pending: saturating_sum(in_pending().map(|placed| placed.bytes)),
                releasable,
                largest_free: largest,
            };
            totals.add_segment(pool, run.is_expandable, segment);
        }
        result.pieces.extend(pieces.iter().map(|bytes| FreePiece { pool: run.pool, bytes: *bytes }));
    }
    if !remaining.is_empty() {
        return None;
    }
    result.pending = pending.into_cause();
    result.stranded_stream = unusable.stream.into_cause();
    result.stranded_pool = unusable.pool.into_cause();
    result.pinned = unusable.pinned.into_cause();
    result.cache = unusable.cache;
    result.groups = totals.into_sorted();
    Some(result)
}

/// Lengths of the free pieces of a run. `None` if blocks overlap or lie outside of it.
fn free_pieces(run: &MemoryRun, blocks: &[PlacedBlock]) -> Option<Vec<u64>> {
    let mut pieces = Vec::new();
    let mut add_piece = |from: u64, to: u64| {
        let piece = to.checked_sub(from)?;
        if piece > 0 {
            pieces.push(piece);
        }
        Some(())
    };
    let mut free_from = run.begin;
    for placed in blocks {
        add_piece(free_from, placed.addr)?;
        free_from = placed.addr.checked_add(placed.bytes)?;
    }
    add_piece(free_from, run.end)?;
    Some(pieces)
}

/// Calls `is_releasable` for each page that is not full, with its free bytes and the blocks that
/// touch it. Returns the free bytes of all pages for which it returned true. Blocks must lie
/// inside of the run and not overlap.
fn sum_releasable_pages(
    run: &MemoryRun,
    blocks: &[PlacedBlock],
    mut is_releasable: impl FnMut(&Page, u64, &[PlacedBlock]) -> bool,
) -> u64 {
    let (mut begin, mut first, mut releasable) = (run.begin, 0, 0u64);
    for page in &run.pages {
        let end = &page.end;
        let last = first + blocks[first..].partition_point(|placed| placed.addr < *end);
        let pinning = &blocks[first..last];
        let used = |placed: &PlacedBlock| placed.end().min(*end).saturating_sub(placed.addr.max(begin));
        let free = (end - begin).saturating_sub(saturating_sum(pinning.iter().map(used)));
        if free > 0 && is_releasable(page, free, pinning) {
            releasable = releasable.saturating_add(free);
        }
        // A block that extends beyond the page pins the next one too.
        first = if pinning.last().is_some_and(|placed| placed.end() > *end) { last - 1 } else { last };
        begin = *end;
    }
    releasable
}
