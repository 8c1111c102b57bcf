//! Reserved bytes that no tensor uses, and who keeps them from being given back.
//!
//! Definition: the gap is reserved bytes minus what the live blocks asked for, or minus the blocks themselves where nobody
//! said what was asked for. Its parts:
//! - `rounding`: blocks are larger than what was asked for; by their lines.
//! - `pending_free`: requested back, but another stream still uses the block; by the lines that allocated it.
//! - `cache`: in segments without a block; `empty_cache()` would give it back.
//! - `stranded_pool`, `stranded_stream`: free beside blocks, in segments that serve another pool or another stream than the
//!   request for which memory was lacking at that moment.
//! - `pinned`: free beside blocks, in segments that could have served it.
//!
//! What is free beside blocks is shared equally among the blocks of the segment, and summed by their lines. Segments are
//! those that PyTorch's tracker told; without it, runs of driver memory in which the allocator ever placed a block. If they
//! do not sum to what PyTorch says it has reserved, all but the rounding is `unexplained`: it is never guessed.
//!
//! Constraint: the moment of the highest reserved bytes is known only at the end, and copying all blocks at each new
//! maximum costs maxima x blocks. Consequence: blocks and ranges know when they were born, and [`PeakState`] keeps those
//! that were there at the last maximum and have gone since; with what is still there they are the state then. Nothing is
//! copied, and what is kept is at most what was there.

use std::collections::BTreeMap;

use crate::book::LiveBlock;
use crate::driver::{Place, Range};
use crate::keyed::KeyedMap;
use crate::live_blocks::LiveBlocks;
use crate::segments::{Segment, Segments};
use crate::symbols::SiteId;

/// Most culprits named.
pub const MAX_CULPRITS: usize = 20;

/// First addresses of the ranges in which PyTorch's allocator ever placed a block.
pub type Touched = crate::keyed::KeyedSet<u64>;

/// The stream and the pool of a request.
type Serves = (u64, u64);

/// A block that was requested back and is not free yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingFree {
    /// The block, as it was.
    pub block: LiveBlock,
    /// Which event of the book requested it back.
    pub since: u64,
}

/// A moment of one device's allocator.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When.
    pub time_ns: u64,
    /// Held by PyTorch.
    pub reserved: u64,
    /// What memory was lacking for, where that is known.
    pub wanted: Option<Serves>,
    /// Live blocks by address.
    pub blocks: Vec<(u64, LiveBlock)>,
    /// Blocks requested back that are not free yet.
    pub pending: Vec<(u64, LiveBlock)>,
    /// Segments of PyTorch's allocator, by address; empty where its tracker did not tell them.
    pub segments: Vec<Segment>,
    /// Driver ranges of the device.
    pub ranges: Vec<Range>,
}

/// A part of a gap, and whose it is, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// How much.
    pub bytes: u64,
    /// They sum to `bytes`, or are empty where nobody is to blame.
    pub culprits: Vec<(SiteId, u64)>,
}

/// A gap and its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Sum of the live blocks.
    pub live: u64,
    /// What they asked for, where that is known of each.
    pub requested: Option<u64>,
    /// Reserved minus requested, or minus live.
    pub gap: u64,
    /// In the order of the header; without `unexplained`.
    pub rounding: Part,
    /// See there.
    pub pending: Part,
    /// See there.
    pub stranded_stream: Part,
    /// See there.
    pub stranded_pool: Part,
    /// See there.
    pub pinned: Part,
    /// See there.
    pub cache: u64,
    /// The rest.
    pub unexplained: u64,
    /// Largest contiguous free piece in a segment that could serve what was wanted, where segments are known.
    pub largest_free: Option<u64>,
}

impl Gap {
    /// Its causes by the names that reports give them; they sum to `gap`.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("rounding", self.rounding.bytes),
            ("pending_free", self.pending.bytes),
            ("stranded_stream", self.stranded_stream.bytes),
            ("stranded_pool", self.stranded_pool.bytes),
            ("pinned", self.pinned.bytes),
            ("cache", self.cache),
            ("unexplained", self.unexplained),
        ]
    }

    fn known(&self) -> Option<u64> {
        let parts = [&self.rounding, &self.pending, &self.stranded_stream, &self.stranded_pool, &self.pinned];
        parts.into_iter().try_fold(self.cache, |sum, part| sum.checked_add(part.bytes))
    }
}

/// Bytes by site, on their way to a [`Part`].
#[derive(Default)]
struct Shares(KeyedMap<SiteId, u64>);

impl Shares {
    fn add(&mut self, site: SiteId, bytes: u64) {
        let sum = self.0.entry(site).or_default();
        *sum = sum.saturating_add(bytes);
    }

    fn part(self) -> Part {
        let mut culprits: Vec<(SiteId, u64)> = self.0.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        culprits.sort_by_key(|(site, bytes)| (std::cmp::Reverse(*bytes), *site));
        Part { bytes: culprits.iter().map(|(_, bytes)| bytes).fold(0, |a, b| a.saturating_add(*b)), culprits }
    }
}

/// Takes a gap apart. `touched`: the ranges in which a block ever was.
#[allow(clippy::implicit_hasher)] // The set is ours.
pub fn explain(snapshot: &Snapshot, touched: &Touched, site_of: impl Fn(&LiveBlock) -> SiteId) -> Gap {
    let sum = |of: fn(&LiveBlock) -> Option<u64>| {
        snapshot.blocks.iter().try_fold(0u64, |sum, (_, block)| Some(sum.saturating_add(of(block)?)))
    };
    let live = sum(|block| Some(block.bytes)).unwrap_or(0);
    let is_tracked = !snapshot.segments.is_empty();
    let requested =
        sum(|block| block.requested_bytes.map(|requested| requested.min(block.bytes))).filter(|_| is_tracked);
    let mut rounding = Shares::default();
    if requested.is_some() {
        for (_, block) in &snapshot.blocks {
            let asked = block.requested_bytes.map_or(block.bytes, |requested| requested.min(block.bytes));
            rounding.add(site_of(block), block.bytes - asked);
        }
    }
    let gap = snapshot.reserved.saturating_sub(requested.unwrap_or(live));
    let base = Gap { live, requested, gap, rounding: rounding.part(), ..Gap::default() };
    explain_free(snapshot, touched, base.clone(), &site_of)
        .filter(|known| known.known() == Some(gap))
        .unwrap_or(if base.rounding.bytes <= gap {
            Gap { unexplained: gap - base.rounding.bytes, ..base }
        } else {
            Gap { rounding: Part::default(), unexplained: gap, ..base }
        })
}

/// `None` where segments and blocks do not fit each other.
fn explain_free(
    snapshot: &Snapshot,
    touched: &Touched,
    base: Gap,
    site_of: &impl Fn(&LiveBlock) -> SiteId,
) -> Option<Gap> {
    let runs = tracked_runs(snapshot).or_else(|| runs_of_ranges(snapshot, touched))?;
    let mut blocks: Vec<(u64, &LiveBlock, bool)> =
        snapshot.blocks.iter().map(|(addr, block)| (*addr, block, false)).collect();
    blocks.extend(snapshot.pending.iter().map(|(addr, block)| (*addr, block, true)));
    blocks.sort_unstable_by_key(|(addr, ..)| *addr);
    let mut result = Gap { largest_free: Some(0), ..base };
    let [mut pending, mut stream, mut pool, mut pinned] = [(); 4].map(|()| Shares::default());
    let mut rest = &blocks[..];
    for run in runs {
        let inside = rest.partition_point(|(addr, ..)| *addr < run.end);
        let (here, after) = rest.split_at(inside);
        rest = after;
        let could_serve = match (run.serves, snapshot.wanted) {
            (Some(serves), Some(wanted)) => serves == wanted,
            _ => true,
        };
        let (mut at, mut free) = (run.begin, 0u64);
        let mut pass = |at: u64, next: u64| {
            let piece = next.checked_sub(at)?;
            if could_serve {
                result.largest_free = result.largest_free.max(Some(piece));
            }
            free += piece;
            Some(())
        };
        for (addr, block, is_pending) in here {
            pass(at, *addr)?;
            at = addr.checked_add(block.bytes)?;
            if *is_pending {
                pending.add(site_of(block), block.bytes);
            }
        }
        pass(at, run.end)?;
        if here.is_empty() {
            result.cache += free;
            continue;
        }
        let shares = match (run.serves, snapshot.wanted) {
            (Some((_, its)), Some((_, wanted))) if its != wanted => &mut pool,
            (Some((its, _)), Some((wanted, _))) if its != wanted => &mut stream,
            _ => &mut pinned,
        };
        let (each, left) = (free / here.len() as u64, free % here.len() as u64);
        for (index, (_, block, _)) in here.iter().enumerate() {
            shares.add(site_of(block), each + u64::from((index as u64) < left));
        }
    }
    if !rest.is_empty() {
        return None;
    }
    result.pending = pending.part();
    result.stranded_stream = stream.part();
    result.stranded_pool = pool.part();
    result.pinned = pinned.part();
    Some(result)
}

/// Memory of the allocator without a hole in it.
struct Run {
    begin: u64,
    end: u64,
    serves: Option<Serves>,
}

/// The segments as the tracker told them. `None` unless they sum to what PyTorch says it has reserved.
fn tracked_runs(snapshot: &Snapshot) -> Option<Vec<Run>> {
    let held = snapshot.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.bytes))?;
    if held != snapshot.reserved || snapshot.segments.is_empty() {
        return None;
    }
    let same = |a: &Segment, b: &Segment| {
        a.is_expandable && b.is_expandable && a.end() == b.addr && a.serves == b.serves
    };
    let runs = snapshot.segments.chunk_by(same).map(|pieces| Run {
        begin: pieces[0].addr,
        end: pieces[pieces.len() - 1].end(),
        serves: Some(pieces[0].serves),
    });
    Some(runs.collect())
}

/// Driver memory in which blocks were. `None` unless it sums to what PyTorch says it has reserved.
fn runs_of_ranges(snapshot: &Snapshot, touched: &Touched) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut held = 0u64;
    for range in snapshot.ranges.iter().filter(|range| touched.contains(&range.addr)) {
        held = held.checked_add(range.bytes)?;
        let end = range.addr.checked_add(range.bytes)?;
        match runs.last_mut() {
            Some(last) if last.end > range.addr => return None,
            // A block may span mapped pieces that follow each other: they are one segment.
            Some(last) if last.end == range.addr => last.end = end,
            _ => runs.push(Run { begin: range.addr, end, serves: None }),
        }
    }
    (held == snapshot.reserved).then_some(runs)
}

/// The moment of the highest reserved bytes, and what had been born by then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Held by PyTorch.
    pub reserved: u64,
    /// When.
    pub time_ns: u64,
    /// What the allocator took more memory for.
    pub wanted: Option<Serves>,
    /// The last block.
    pub newest_block: u64,
    /// The last driver range.
    pub newest_range: u64,
    /// The last segment.
    pub newest_segment: u64,
}

/// The state at the moment of the highest reserved bytes.
#[derive(Debug, Default)]
pub struct PeakState {
    moment: Moment,
    gone_blocks: Vec<(u64, LiveBlock)>,
    gone_pending: Vec<(u64, LiveBlock)>,
    gone_segments: Vec<Segment>,
    gone_ranges: Vec<Range>,
}

impl PeakState {
    /// The highest reserved bytes so far.
    pub fn reserved(&self) -> u64 {
        self.moment.reserved
    }

    /// This moment is the highest so far.
    pub fn mark(&mut self, moment: Moment) {
        self.moment = moment;
        self.gone_blocks.clear();
        self.gone_pending.clear();
        self.gone_segments.clear();
        self.gone_ranges.clear();
    }

    /// A block is gone.
    #[inline]
    pub fn block_removed(&mut self, addr: u64, block: LiveBlock) {
        if block.born <= self.moment.newest_block {
            self.gone_blocks.push((addr, block));
        }
    }

    /// A block that had been requested back is free.
    pub fn pending_removed(&mut self, addr: u64, pending: PendingFree) {
        if pending.since <= self.moment.newest_block {
            self.gone_pending.push((addr, pending.block));
        }
    }

    /// A segment, or a piece of it, is gone.
    pub fn segment_removed(&mut self, segment: Segment) {
        if segment.born <= self.moment.newest_segment {
            self.gone_segments.push(segment);
        }
    }

    /// A driver range is gone.
    pub fn range_removed(&mut self, range: Range) {
        if range.born <= self.moment.newest_range {
            self.gone_ranges.push(range);
        }
    }

    /// The state then, given how things are now.
    #[allow(clippy::implicit_hasher)] // The maps are ours.
    pub fn snapshot(
        &self,
        live: &LiveBlocks,
        pending: &KeyedMap<u64, PendingFree>,
        segments: &Segments,
        ranges: &BTreeMap<u64, Range>,
        device: u8,
    ) -> Snapshot {
        let moment = &self.moment;
        let blocks = live.iter().filter(|(_, block)| block.born <= moment.newest_block);
        let blocks = blocks.map(|(addr, block)| (addr, *block)).chain(self.gone_blocks.iter().copied());
        let pending = pending.iter().filter(|(_, pending)| pending.since <= moment.newest_block);
        let pending =
            pending.map(|(addr, pending)| (*addr, pending.block)).chain(self.gone_pending.iter().copied());
        let segments = segments.iter().filter(|segment| segment.born <= moment.newest_segment).copied();
        let mut segments: Vec<Segment> = segments.chain(self.gone_segments.iter().copied()).collect();
        segments.sort_unstable_by_key(|segment| segment.addr);
        let still = ranges.values().filter(|range| range.born <= moment.newest_range).copied();
        let all = still.chain(self.gone_ranges.iter().copied());
        let mut ranges: Vec<Range> = all.filter(|range| range.place == Place::Device(device)).collect();
        ranges.sort_unstable_by_key(|range| range.addr);
        Snapshot {
            time_ns: moment.time_ns,
            reserved: moment.reserved,
            wanted: moment.wanted,
            blocks: blocks.collect(),
            pending: pending.collect(),
            segments,
            ranges,
        }
    }
}

/// The ranges of a device, by address.
pub fn of_device(ranges: &BTreeMap<u64, Range>, device: u8) -> Vec<Range> {
    ranges.values().filter(|range| range.place == Place::Device(device)).copied().collect()
}
