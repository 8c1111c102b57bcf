//! Takes the gap of one moment apart: every byte has one cause.

use super::by_pool::TotalsByPool;
use super::free_runs::{MemoryRun, runs};
use super::{AllocatorSnapshot, FreePiece, Gap, GapCause, PoolKey, TorchRanges};
use crate::callsite::symbols::{SiteId, StackId};
use crate::state::live_set::LiveBlock;
use crate::util::seeded_map::SeededMap;

/// Bytes by site, on their way to a [`GapCause`].
#[derive(Default)]
struct BytesBySite(SeededMap<SiteId, u64>);

impl BytesBySite {
    fn add(&mut self, site: SiteId, bytes: u64) {
        let sum = self.0.entry(site).or_default();
        *sum = sum.saturating_add(bytes);
    }

    fn part(self) -> GapCause {
        let mut culprits: Vec<(SiteId, u64)> = self.0.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        culprits.sort_by_key(|(site, bytes)| (std::cmp::Reverse(*bytes), *site));
        GapCause {
            bytes: culprits.iter().map(|(_, bytes)| bytes).fold(0, |a, b| a.saturating_add(*b)),
            culprits,
        }
    }
}

/// Takes a gap apart. `touched`: the ranges in which a block ever was.
#[allow(clippy::implicit_hasher)] // The set is ours.
pub(crate) fn explain(
    snapshot: &AllocatorSnapshot,
    touched: &TorchRanges,
    site_of: impl Fn(StackId) -> SiteId,
) -> Gap {
    let sum = |of: fn(&LiveBlock) -> Option<u64>| {
        snapshot.blocks.iter().try_fold(0u64, |sum, (_, block)| Some(sum.saturating_add(of(block)?)))
    };
    let live = sum(|block| Some(block.bytes)).unwrap_or(0);
    let is_tracked = !snapshot.segments.is_empty();
    let requested =
        sum(|block| block.requested_bytes.map(|requested| requested.min(block.bytes))).filter(|_| is_tracked);
    let mut rounding = BytesBySite::default();
    if requested.is_some() {
        for (_, block) in &snapshot.blocks {
            let asked = block.requested_bytes.map_or(block.bytes, |requested| requested.min(block.bytes));
            rounding.add(site_of(block.stack), block.bytes - asked);
        }
    }
    let gap = snapshot.reserved.saturating_sub(requested.unwrap_or(live));
    let request = snapshot.request;
    let base = Gap { live, requested, bytes: gap, request, rounding: rounding.part(), ..Gap::default() };
    explain_free(snapshot, touched, base.clone(), &site_of)
        .filter(|known| known.known() == Some(gap))
        .unwrap_or(if base.rounding.bytes <= gap {
            Gap { unexplained: gap - base.rounding.bytes, ..base }
        } else {
            Gap { rounding: GapCause::default(), unexplained: gap, ..base }
        })
}

/// A block where it lies, and whether it was requested back.
type PlacedBlock<'a> = (u64, &'a LiveBlock, bool);

/// What one request cannot have, and why.
#[derive(Default)]
struct UnfitMemory {
    stream: BytesBySite,
    pool: BytesBySite,
    pinned: BytesBySite,
    cache: u64,
}

impl UnfitMemory {
    fn shares(&mut self, pool: Option<PoolKey>, request: Option<PoolKey>) -> &mut BytesBySite {
        match (pool, request) {
            (Some(its), Some(request)) if (its.pool, its.is_small) != (request.pool, request.is_small) => {
                &mut self.pool
            }
            (Some(its), Some(request)) if its.stream != request.stream => &mut self.stream,
            _ => &mut self.pinned,
        }
    }

    /// Shares free bytes among the blocks that keep them.
    fn share(
        &mut self,
        free: u64,
        blocks: &[PlacedBlock<'_>],
        run: &MemoryRun,
        request: Option<PoolKey>,
        site_of: &impl Fn(StackId) -> SiteId,
    ) {
        let shares = self.shares(run.pool, request);
        let (each, left) = (free / blocks.len() as u64, free % blocks.len() as u64);
        for (index, (_, block, _)) in blocks.iter().enumerate() {
            shares.add(site_of(block.stack), each + u64::from((index as u64) < left));
        }
    }

    /// A whole segment or page that no block keeps: cache, unless a private pool keeps it.
    fn unused(
        &mut self,
        free: u64,
        run: &MemoryRun,
        request: Option<PoolKey>,
        site_of: &impl Fn(StackId) -> SiteId,
    ) -> bool {
        let is_foreign = run
            .pool
            .is_some_and(|its| its.is_private() && request.is_some_and(|request| request.pool != its.pool));
        match run.stack.filter(|_| is_foreign) {
            Some(stack) => self.pool.add(site_of(stack), free),
            None => self.cache = self.cache.saturating_add(free),
        }
        !is_foreign
    }
}

/// `None` where segments and blocks do not fit each other.
fn explain_free(
    snapshot: &AllocatorSnapshot,
    touched: &TorchRanges,
    base: Gap,
    site_of: &impl Fn(StackId) -> SiteId,
) -> Option<Gap> {
    let runs = runs(snapshot, touched)?;
    let mut blocks: Vec<PlacedBlock<'_>> =
        snapshot.blocks.iter().map(|(addr, block)| (*addr, block, false)).collect();
    blocks.extend(snapshot.pending.iter().map(|(addr, block)| (*addr, block, true)));
    blocks.sort_unstable_by_key(|(addr, ..)| *addr);
    let mut result = Gap { largest_free: Some(0), ..base };
    let (mut pending, mut kept, mut groups) =
        (BytesBySite::default(), UnfitMemory::default(), TotalsByPool::default());
    let mut rest = &blocks[..];
    for run in &runs {
        let inside = rest.partition_point(|(addr, ..)| *addr < run.end);
        let (here, after) = rest.split_at(inside);
        rest = after;
        let pieces = free_pieces(run, here)?;
        let could_serve = match (run.pool, snapshot.request) {
            (Some(pool), Some(request)) => pool == request,
            _ => true,
        };
        let largest = pieces.iter().copied().max().unwrap_or(0);
        if could_serve {
            result.largest_free = result.largest_free.max(Some(largest));
        }
        let mut pending_here = 0u64;
        for (_, block, _) in here.iter().filter(|(.., is_pending)| *is_pending) {
            pending.add(site_of(block.stack), block.bytes);
            pending_here = pending_here.saturating_add(block.bytes);
        }
        let releasable = pages(run, here, |free, keepers| {
            if keepers.is_empty() {
                return kept.unused(free, run, snapshot.request, site_of);
            }
            kept.share(free, keepers, run, snapshot.request, site_of);
            false
        });
        if let Some(pool) = run.pool {
            let free = crate::util::block_totals::saturating_sum(pieces.iter().copied());
            let group = groups.segment(pool, run.is_expandable);
            let bytes = run.end - run.begin;
            group.reserved = group.reserved.saturating_add(bytes);
            group.pending = group.pending.saturating_add(pending_here);
            group.free = group.free.saturating_add(free);
            group.allocated =
                group.allocated.saturating_add(bytes.saturating_sub(free).saturating_sub(pending_here));
            group.releasable = group.releasable.saturating_add(releasable);
            group.largest_free = group.largest_free.max(largest);
        }
        result.pieces.extend(pieces.iter().map(|bytes| FreePiece { pool: run.pool, bytes: *bytes }));
    }
    if !rest.is_empty() {
        return None;
    }
    result.pending = pending.part();
    result.stranded_stream = kept.stream.part();
    result.stranded_pool = kept.pool.part();
    result.pinned = kept.pinned.part();
    result.cache = kept.cache;
    result.groups = groups.list();
    Some(result)
}

/// Lengths of what is free between blocks; `None` if these overlap or lie elsewhere.
fn free_pieces(run: &MemoryRun, blocks: &[PlacedBlock<'_>]) -> Option<Vec<u64>> {
    let mut pieces = Vec::new();
    let mut at = run.begin;
    let mut pass = |at: u64, next: u64| {
        let piece = next.checked_sub(at)?;
        if piece > 0 {
            pieces.push(piece);
        }
        Some(())
    };
    for (addr, block, _) in blocks {
        pass(at, *addr)?;
        at = addr.checked_add(block.bytes)?;
    }
    pass(at, run.end)?;
    Some(pieces)
}

/// Calls `page` for each page with its free bytes and the blocks that touch it; what it says is releasable is summed.
/// Blocks do not overlap and lie inside.
fn pages(
    run: &MemoryRun,
    blocks: &[PlacedBlock<'_>],
    mut page: impl FnMut(u64, &[PlacedBlock<'_>]) -> bool,
) -> u64 {
    let end_of = |block: &PlacedBlock<'_>| block.0.saturating_add(block.1.bytes);
    let (mut begin, mut first, mut releasable) = (run.begin, 0, 0u64);
    for end in &run.page_ends {
        let last = first + blocks[first..].partition_point(|block| block.0 < *end);
        let keepers = &blocks[first..last];
        let used = |block: &PlacedBlock<'_>| end_of(block).min(*end).saturating_sub(block.0.max(begin));
        let free =
            (end - begin).saturating_sub(crate::util::block_totals::saturating_sum(keepers.iter().map(used)));
        if free > 0 && page(free, keepers) {
            releasable = releasable.saturating_add(free);
        }
        // A block that goes on behind the page keeps the next one too.
        first = if keepers.last().is_some_and(|block| end_of(block) > *end) { last - 1 } else { last };
        begin = *end;
    }
    releasable
}
