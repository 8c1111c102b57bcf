//! Memory of the allocator without a hole in it, and the pages that are given back together.
//!
//! A segment of its own is given back as a whole. Of an expandable one PyTorch unmaps each page that no block touches
//! (`ExpandableSegment::unmap` rounds inwards), so the rest of it is no reason to keep one. A page is a mapping of the driver where the trace
//! has those; else PyTorch's own sizes are taken.

use super::{AllocatorSnapshot, LARGE_PAGE, PoolKey, SMALL_SEGMENT, TorchRanges};
use crate::callsite::symbols::StackId;
use crate::state::driver::MemoryRange;
use crate::state::segments::Segment;

/// Memory without a hole.
pub(super) struct MemoryRun {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) pool: Option<PoolKey>,
    pub(super) is_expandable: bool,
    /// Who asked for the first of it, where that is known.
    pub(super) stack: Option<StackId>,
    /// Where pages end, `end` last.
    pub(super) page_ends: Vec<u64>,
}

/// What is known of the allocator's memory. `None` unless it sums to what PyTorch says it has reserved.
pub(super) fn runs(snapshot: &AllocatorSnapshot, touched: &TorchRanges) -> Option<Vec<MemoryRun>> {
    of_tracker(snapshot).or_else(|| of_ranges(snapshot, touched))
}

/// The segments as the tracker told them.
fn of_tracker(snapshot: &AllocatorSnapshot) -> Option<Vec<MemoryRun>> {
    let held = snapshot.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.bytes))?;
    if held != snapshot.reserved || snapshot.segments.is_empty() {
        return None;
    }
    let same = |a: &Segment, b: &Segment| {
        a.is_expandable && b.is_expandable && a.end() == b.addr && PoolKey::segment(a) == PoolKey::segment(b)
    };
    let run = |pieces: &[Segment]| MemoryRun {
        begin: pieces[0].addr,
        end: pieces[pieces.len() - 1].end(),
        pool: Some(PoolKey::segment(&pieces[0])),
        is_expandable: pieces[0].is_expandable,
        stack: Some(pieces[0].stack),
        page_ends: pieces.iter().flat_map(|piece| page_ends(piece, &snapshot.ranges)).collect(),
    };
    Some(snapshot.segments.chunk_by(same).map(run).collect())
}

fn page_ends(piece: &Segment, ranges: &[MemoryRange]) -> Vec<u64> {
    if !piece.is_expandable {
        return vec![piece.end()];
    }
    let first = ranges.partition_point(|range| range.addr < piece.addr);
    let inside = ranges[first..].iter().take_while(|range| range.addr < piece.end());
    let mut at = piece.addr;
    let mut ends = Vec::new();
    for range in inside {
        if range.addr != at {
            break;
        }
        at = range.addr.saturating_add(range.bytes);
        ends.push(at);
    }
    if at == piece.end() && !ends.is_empty() {
        return ends;
    }
    let page = if piece.bytes <= SMALL_SEGMENT { SMALL_SEGMENT } else { LARGE_PAGE };
    // A file may say anything; no more pages than could hold a mapping each.
    if piece.bytes / page > MOST_PAGES {
        return vec![piece.end()];
    }
    let whole = (1..).map(|page_number| piece.addr.saturating_add(page * page_number));
    whole.take_while(|end| *end < piece.end()).chain([piece.end()]).collect()
}

/// Of one piece: 1.25 TiB.
const MOST_PAGES: u64 = 1 << 16;

/// Driver memory in which blocks were.
fn of_ranges(snapshot: &AllocatorSnapshot, touched: &TorchRanges) -> Option<Vec<MemoryRun>> {
    let mut runs: Vec<MemoryRun> = Vec::new();
    let mut held = 0u64;
    for range in snapshot.ranges.iter().filter(|range| touched.contains(&range.addr)) {
        held = held.checked_add(range.bytes)?;
        let end = range.addr.checked_add(range.bytes)?;
        match runs.last_mut() {
            Some(last) if last.end > range.addr => return None,
            // A block may span mapped pieces that follow each other: they are one segment, of expandable ones.
            Some(last) if last.end == range.addr && last.is_expandable && range.is_mapped => {
                last.end = end;
                last.page_ends.push(end);
            }
            _ => runs.push(MemoryRun {
                begin: range.addr,
                end,
                pool: None,
                is_expandable: range.is_mapped,
                stack: None,
                page_ends: vec![end],
            }),
        }
    }
    (held == snapshot.reserved).then_some(runs)
}
