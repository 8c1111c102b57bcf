//! Finds contiguous runs of the allocator's memory, and the pages in them that are released
//! together.
//!
//! An ordinary segment is released as a whole. In an expandable segment, PyTorch unmaps each page
//! that no block touches (`ExpandableSegment::unmap` rounds inwards). A page is a mapping of the
//! driver where the trace has those, else it has PyTorch's own page size
//! (`fragmentation::tests::pages_are_driver_mappings_where_the_trace_has_them`).

use super::{AllocatorSnapshot, LARGE_PAGE, TorchRanges};
use crate::state::driver::MemoryRange;
use crate::state::pool_key::{PoolKey, SMALL_SEGMENT};
use crate::state::segments::Segment;
use crate::util::ids::StackId;

/// A part of a run that is released as a whole.
pub(super) struct Page {
    /// The address after its last byte.
    pub(super) end: u64,
    /// The stack that requested it, where it is known.
    pub(super) stack: Option<StackId>,
}

/// A contiguous run of addresses that the allocator reserved.
pub(super) struct MemoryRun {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) pool: Option<PoolKey>,
    pub(super) is_expandable: bool,
    /// The pages by ascending address; the last one ends at `end`.
    pub(super) pages: Vec<Page>,
}

/// The runs of the allocator's memory, sorted by address. `None` unless they sum to PyTorch's
/// reserved bytes.
pub(super) fn find_runs(
    snapshot: &AllocatorSnapshot<'_>,
    torch_ranges: &TorchRanges,
) -> Option<Vec<MemoryRun>> {
    runs_of_segments(snapshot).or_else(|| runs_of_driver_ranges(snapshot, torch_ranges))
}

/// Runs of the segments that PyTorch's tracker reported.
fn runs_of_segments(snapshot: &AllocatorSnapshot<'_>) -> Option<Vec<MemoryRun>> {
    let total = snapshot.segments.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.bytes))?;
    if total != snapshot.reserved || snapshot.segments.is_empty() {
        return None;
    }
    let is_same_run = |a: &Segment, b: &Segment| {
        a.is_expandable
            && b.is_expandable
            && a.end() == b.addr
            && PoolKey::of_segment(a) == PoolKey::of_segment(b)
    };
    let run = |parts: &[Segment]| MemoryRun {
        begin: parts[0].addr,
        end: parts[parts.len() - 1].end(),
        pool: Some(PoolKey::of_segment(&parts[0])),
        is_expandable: parts[0].is_expandable,
        pages: parts.iter().flat_map(|part| pages_of_part(part, &snapshot.ranges)).collect(),
    };
    Some(snapshot.segments.chunk_by(is_same_run).map(run).collect())
}

/// The pages of a segment, or of a part of an expandable one.
fn pages_of_part(part: &Segment, ranges: &[MemoryRange]) -> impl Iterator<Item = Page> {
    let stack = Some(part.stack);
    page_ends(part, ranges).into_iter().map(move |end| Page { end, stack })
}

/// End addresses of the pages of a segment, or of a part of an expandable one.
fn page_ends(segment: &Segment, ranges: &[MemoryRange]) -> Vec<u64> {
    if !segment.is_expandable {
        return vec![segment.end()];
    }
    let first = ranges.partition_point(|range| range.addr < segment.addr);
    let mappings = ranges[first..].iter().take_while(|range| range.addr < segment.end());
    let mut mapped_to = segment.addr;
    let mut ends = Vec::new();
    for range in mappings {
        if range.addr != mapped_to {
            break;
        }
        mapped_to = range.addr.saturating_add(range.bytes);
        ends.push(mapped_to);
    }
    if mapped_to == segment.end() && !ends.is_empty() {
        return ends;
    }
    let page = if segment.bytes <= SMALL_SEGMENT { SMALL_SEGMENT } else { LARGE_PAGE };
    if segment.bytes / page > MAX_PAGES {
        return vec![segment.end()];
    }
    let ends = (1..).map(|page_number| segment.addr.saturating_add(page * page_number));
    ends.take_while(|end| *end < segment.end()).chain([segment.end()]).collect()
}

/// Pages of one segment, about 1.25 TiB. A damaged trace may claim any size, and pages are listed.
const MAX_PAGES: u64 = 1 << 16;

/// Runs of driver memory in which PyTorch's allocator placed blocks.
fn runs_of_driver_ranges(
    snapshot: &AllocatorSnapshot<'_>,
    torch_ranges: &TorchRanges,
) -> Option<Vec<MemoryRun>> {
    let mut runs: Vec<MemoryRun> = Vec::new();
    let mut total = 0u64;
    for range in snapshot.ranges.iter().filter(|range| torch_ranges.contains(&range.addr)) {
        total = total.checked_add(range.bytes)?;
        let end = range.addr.checked_add(range.bytes)?;
        match runs.last_mut() {
            Some(last) if last.end > range.addr => return None,
            // A block may span adjacent mappings: they are one expandable segment.
            Some(last) if last.end == range.addr && last.is_expandable && range.is_mapped => {
                last.end = end;
                last.pages.push(Page { end, stack: None });
            }
            _ => runs.push(MemoryRun {
                begin: range.addr,
                end,
                pool: None,
                is_expandable: range.is_mapped,
                pages: vec![Page { end, stack: None }],
            }),
        }
    }
    (total == snapshot.reserved).then_some(runs)
}
