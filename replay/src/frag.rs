//! Reserved bytes that no tensor uses, and who keeps them from being given back.
//!
//! Definition: the gap is reserved minus live bytes. A *segment* is a run of driver memory in which PyTorch's allocator ever
//! placed a block. If the segments sum to what PyTorch says it has reserved, the gap is told exactly: free bytes of segments
//! without a live block are `cache` (`empty_cache()` would give them back); free bytes of segments with live blocks are
//! `pinned`, shared equally among the live blocks of the segment and summed by their sites. If they do not, the gap is
//! `unexplained`: it is never guessed. Only rounded sizes are recorded, so what rounding costs is part of the live bytes.
//!
//! Constraint: the moment of the highest reserved bytes is known only at the end, and copying all blocks at each new
//! maximum costs maxima x blocks. Consequence: blocks and ranges know when they were born, and [`PeakState`] keeps those
//! that were there at the last maximum and have gone since; with what is still there they are the state then. Nothing is
//! copied, and what is kept is at most what was there.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::book::LiveBlock;
use crate::driver::{Place, Range};
use crate::symbols::SiteId;

/// Most culprits named.
pub const MAX_CULPRITS: usize = 20;

/// First addresses of the ranges in which PyTorch's allocator ever placed a block.
pub type Touched = rustc_hash::FxHashSet<u64>;

/// A moment of one device's allocator.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When.
    pub time_ns: u64,
    /// Held by PyTorch.
    pub reserved: u64,
    /// Live blocks by address.
    pub blocks: Vec<(u64, LiveBlock)>,
    /// Driver ranges of the device.
    pub ranges: Vec<Range>,
}

/// A gap and its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Sum of the live blocks.
    pub live: u64,
    /// Reserved minus live.
    pub gap: u64,
    /// Free in segments with live blocks.
    pub pinned: u64,
    /// `pinned` by the sites of those blocks, largest first.
    pub culprits: Vec<(SiteId, u64)>,
    /// In segments without live blocks.
    pub cache: u64,
    /// The rest.
    pub unexplained: u64,
    /// Largest contiguous free piece in a segment, where segments are known.
    pub largest_free: Option<u64>,
}

/// Takes a gap apart. `touched`: the ranges in which a block ever was.
#[allow(clippy::implicit_hasher)] // The set is ours.
pub fn explain(snapshot: &Snapshot, touched: &Touched, site_of: impl Fn(&LiveBlock) -> SiteId) -> Gap {
    let live: u64 = snapshot.blocks.iter().map(|(_, block)| block.bytes).fold(0, u64::saturating_add);
    let gap = snapshot.reserved.saturating_sub(live);
    explain_known(snapshot, touched, live, &site_of)
        .filter(|known| known.pinned.checked_add(known.cache) == Some(gap))
        .unwrap_or(Gap { live, gap, unexplained: gap, ..Gap::default() })
}

/// `None` where segments and blocks do not fit each other.
fn explain_known(
    snapshot: &Snapshot,
    touched: &Touched,
    live: u64,
    site_of: &impl Fn(&LiveBlock) -> SiteId,
) -> Option<Gap> {
    let segments = segments(snapshot, touched)?;
    let mut blocks: Vec<&(u64, LiveBlock)> = snapshot.blocks.iter().collect();
    blocks.sort_unstable_by_key(|(addr, _)| *addr);
    let gap = snapshot.reserved.checked_sub(live)?;
    let mut result = Gap { live, gap, largest_free: Some(0), ..Gap::default() };
    let mut culprits: FxHashMap<SiteId, u64> = FxHashMap::default();
    let mut rest = &blocks[..];
    for (begin, end) in segments {
        let inside = rest.partition_point(|(addr, _)| *addr < end);
        let (here, after) = rest.split_at(inside);
        rest = after;
        let (mut at, mut free) = (begin, 0u64);
        let mut pass = |at: u64, next: u64| {
            let piece = next.checked_sub(at)?;
            result.largest_free = result.largest_free.max(Some(piece));
            free += piece;
            Some(())
        };
        for (addr, block) in here {
            pass(at, *addr)?;
            at = addr.checked_add(block.bytes)?;
        }
        pass(at, end)?;
        if here.is_empty() {
            result.cache += free;
            continue;
        }
        result.pinned += free;
        let (each, left) = (free / here.len() as u64, free % here.len() as u64);
        for (index, (_, block)) in here.iter().enumerate() {
            let share = each + u64::from((index as u64) < left);
            *culprits.entry(site_of(block)).or_default() += share;
        }
    }
    if !rest.is_empty() {
        return None;
    }
    result.culprits = culprits.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    result.culprits.sort_by_key(|(site, bytes)| (std::cmp::Reverse(*bytes), *site));
    Some(result)
}

/// First and last address of each segment. `None` unless they sum to what PyTorch says it has reserved.
fn segments(snapshot: &Snapshot, touched: &Touched) -> Option<Vec<(u64, u64)>> {
    let mut segments: Vec<(u64, u64)> = Vec::new();
    let mut held = 0u64;
    for range in snapshot.ranges.iter().filter(|range| touched.contains(&range.addr)) {
        held = held.checked_add(range.bytes)?;
        let end = range.addr.checked_add(range.bytes)?;
        match segments.last_mut() {
            Some((_, last)) if *last > range.addr => return None,
            // A block may span mapped pieces that follow each other: they are one segment.
            Some((_, last)) if *last == range.addr => *last = end,
            _ => segments.push((range.addr, end)),
        }
    }
    (held == snapshot.reserved).then_some(segments)
}

/// The state at the moment of the highest reserved bytes.
#[derive(Debug, Default)]
pub struct PeakState {
    reserved: u64,
    time_ns: u64,
    /// The last block and the last range that were born by then.
    newest_block: u64,
    newest_range: u64,
    gone_blocks: Vec<(u64, LiveBlock)>,
    gone_ranges: Vec<Range>,
}

impl PeakState {
    /// The highest reserved bytes so far.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// This moment is the highest so far; so many blocks and ranges were ever born.
    pub fn mark(&mut self, reserved: u64, time_ns: u64, newest_block: u64, newest_range: u64) {
        *self = Self {
            reserved,
            time_ns,
            newest_block,
            newest_range,
            gone_blocks: std::mem::take(&mut self.gone_blocks),
            gone_ranges: std::mem::take(&mut self.gone_ranges),
        };
        self.gone_blocks.clear();
        self.gone_ranges.clear();
    }

    /// A block is gone.
    #[inline]
    pub fn block_removed(&mut self, addr: u64, block: LiveBlock) {
        if block.born <= self.newest_block {
            self.gone_blocks.push((addr, block));
        }
    }

    /// A driver range is gone.
    pub fn range_removed(&mut self, range: Range) {
        if range.born <= self.newest_range {
            self.gone_ranges.push(range);
        }
    }

    /// The state then, given how things are now.
    pub fn snapshot(
        &self,
        live: &FxHashMap<u64, LiveBlock>,
        ranges: &BTreeMap<u64, Range>,
        device: u8,
    ) -> Snapshot {
        let still = live.iter().filter(|(_, block)| block.born <= self.newest_block);
        let blocks = still.map(|(addr, block)| (*addr, *block)).chain(self.gone_blocks.iter().copied());
        let still = ranges.values().filter(|range| range.born <= self.newest_range).copied();
        let all = still.chain(self.gone_ranges.iter().copied());
        let mut ranges: Vec<Range> = all.filter(|range| range.place == Place::Device(device)).collect();
        ranges.sort_unstable_by_key(|range| range.addr);
        Snapshot { time_ns: self.time_ns, reserved: self.reserved, blocks: blocks.collect(), ranges }
    }
}

/// The ranges of a device, by address.
pub fn of_device(ranges: &BTreeMap<u64, Range>, device: u8) -> Vec<Range> {
    ranges.values().filter(|range| range.place == Place::Device(device)).copied().collect()
}
