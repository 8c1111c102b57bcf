//! Compares the explained gap with a model that classifies every half mebibyte.

use super::*;
use crate::state::pool_key::SMALL_SEGMENT;
use crate::util::ids::StackId;
use proptest::prelude::*;

const UNIT: u64 = 512 << 10;

/// A segment, or a part of an expandable one, with its layout.
#[derive(Clone, Debug)]
struct GeneratedSegment {
    is_expandable: bool,
    is_small: bool,
    stream: u64,
    pool: u64,
    pages: u64,
    /// Lengths in [`UNIT`]s, alternating: free, used, free, ...
    lengths: Vec<u64>,
    /// Whether the block at the same index of `lengths` has a pending free.
    pending: Vec<bool>,
}

fn generated_segment() -> impl Strategy<Value = GeneratedSegment> {
    let kind = (any::<bool>(), any::<bool>(), 0u64..2, 0u64..2, 1u64..4);
    let layout = (proptest::collection::vec(0u64..30, 0..8), proptest::collection::vec(any::<bool>(), 8));
    (kind, layout).prop_map(|((is_expandable, is_small, stream, pool, pages), (lengths, pending))| {
        GeneratedSegment {
            is_expandable,
            is_small,
            stream,
            pool: pool << 32,
            pages: if is_small { 1 } else { pages },
            lengths,
            pending,
        }
    })
}

/// Bytes by cause, as the model counts them.
#[derive(Default, Debug, PartialEq, Eq)]
struct ExpectedGap {
    live: u64,
    pending: u64,
    stream: u64,
    pool: u64,
    pinned: u64,
    cache: u64,
    releasable: u64,
}

/// Builds a snapshot of these segments, with the expected causes for a request.
fn build_snapshot(
    segments: &[GeneratedSegment],
    request: PoolKey,
) -> (AllocatorSnapshot<'static>, ExpectedGap) {
    let (mut snapshot, mut expected) = (
        AllocatorSnapshot { request: Some(request), ..AllocatorSnapshot::default() },
        ExpectedGap::default(),
    );
    let mut addr = 1u64 << 40;
    for segment in segments {
        let page = if segment.is_small { SMALL_SEGMENT } else { LARGE_PAGE };
        let bytes = page * segment.pages;
        let pool = PoolKey { stream: segment.stream, pool: segment.pool, is_small: segment.is_small };
        snapshot.segments.push(Segment {
            addr,
            bytes,
            pool: (segment.stream, segment.pool),
            is_expandable: segment.is_expandable,
            serial: 1,
            stack: StackId(0),
            time_ns: 0,
        });
        let mut used = vec![false; (bytes / UNIT) as usize];
        let mut unit = 0;
        for (index, length) in segment.lengths.iter().enumerate() {
            let end = (unit + *length as usize).min(used.len());
            if index % 2 == 1 && end > unit {
                used[unit..end].fill(true);
                let block = LiveBlock {
                    bytes: (end - unit) as u64 * UNIT,
                    stack: StackId(index as u32),
                    ..LiveBlock::default()
                };
                let placed = (addr + unit as u64 * UNIT, block);
                if segment.pending[index] {
                    expected.pending += block.bytes;
                    snapshot.pending.push(placed);
                } else {
                    expected.live += block.bytes;
                    snapshot.blocks.to_mut().push(placed);
                }
            }
            unit = end;
        }
        let released_together = if segment.is_expandable { page } else { bytes };
        for units in used.chunks((released_together / UNIT) as usize) {
            let free = units.iter().filter(|used| !**used).count() as u64 * UNIT;
            let is_empty = free == units.len() as u64 * UNIT;
            if is_empty && segment.pool == 0 {
                expected.cache += free;
                expected.releasable += free;
            } else if is_empty || (pool.pool, pool.is_small) != (request.pool, request.is_small) {
                expected.pool += free;
            } else if pool.stream != request.stream {
                expected.stream += free;
            } else {
                expected.pinned += free;
            }
        }
        // Some segments are adjacent.
        addr += bytes + if segment.pages == 2 { 0 } else { LARGE_PAGE };
        snapshot.reserved += bytes;
    }
    (snapshot, expected)
}

proptest! {
    #[test]
    fn every_byte_has_the_cause_that_the_model_gives_it(
        segments in proptest::collection::vec(generated_segment(), 0..6),
        (stream, pool, is_small) in (0u64..2, 0u64..2, any::<bool>()),
    ) {
        let request = PoolKey { stream, pool: pool << 32, is_small };
        let (snapshot, expected) = build_snapshot(&segments, request);
        let gap = explain_gap(&snapshot, &TorchRanges::default(), |stack| SiteId(stack.0));
        prop_assert_eq!(gap.bytes, snapshot.reserved - expected.live);
        prop_assert_eq!(gap.bytes_by_cause().iter().map(|(_, bytes)| bytes).sum::<u64>(), gap.bytes);
        prop_assert_eq!(gap.unexplained, 0);
        let explained = ExpectedGap {
            live: gap.live,
            pending: gap.pending.bytes,
            stream: gap.stranded_stream.bytes,
            pool: gap.stranded_pool.bytes,
            pinned: gap.pinned.bytes,
            cache: gap.cache,
            releasable: gap.groups.iter().map(|group| group.releasable).sum(),
        };
        prop_assert_eq!(explained, expected);
        for cause in [&gap.pending, &gap.stranded_stream, &gap.stranded_pool, &gap.pinned] {
            prop_assert_eq!(cause.culprits.iter().map(|(_, bytes)| bytes).sum::<u64>(), cause.bytes);
        }
        for cause in [&gap.stranded_stream, &gap.stranded_pool, &gap.pinned] {
            prop_assert_eq!(cause.pools.iter().map(|(_, bytes)| bytes).sum::<u64>(), cause.bytes);
        }
        let sum = |of: fn(&PoolTotals) -> u64| gap.groups.iter().map(of).sum::<u64>();
        prop_assert_eq!(sum(|group| group.reserved), snapshot.reserved);
        prop_assert_eq!(sum(|group| group.allocated), gap.live);
        prop_assert_eq!(sum(|group| group.pending), gap.pending.bytes);
        prop_assert_eq!(sum(|group| group.free), gap.pieces.iter().map(|piece| piece.bytes).sum::<u64>());
    }
}

/// The gap of a segment of three pages with one block of 2 MiB in the second page.
fn gap_of_one_block(is_expandable: bool) -> Gap {
    let segment = GeneratedSegment {
        is_expandable,
        is_small: false,
        stream: 0,
        pool: 0,
        pages: 3,
        lengths: vec![44, 4],
        pending: vec![false; 8],
    };
    let (snapshot, _) = build_snapshot(&[segment], PoolKey { stream: 0, pool: 0, is_small: false });
    explain_gap(&snapshot, &TorchRanges::default(), |stack| SiteId(stack.0))
}

#[test]
fn block_pins_its_segment_or_its_page_of_an_expandable_one() {
    let (fixed, expandable) = (gap_of_one_block(false), gap_of_one_block(true));
    assert_eq!((fixed.pinned.bytes >> 20, fixed.cache >> 20), (58, 0));
    assert_eq!((expandable.pinned.bytes >> 20, expandable.cache >> 20), (18, 40));
    // What fits without the driver is the same.
    assert_eq!(fixed.largest_free, Some(36 << 20));
    assert_eq!(expandable.largest_free, Some(36 << 20));
}

#[test]
fn pages_are_driver_mappings_where_the_trace_has_them() {
    let segment = Segment {
        addr: 1 << 40,
        bytes: 64 << 20,
        pool: (0, 0),
        is_expandable: true,
        serial: 1,
        stack: StackId(0),
        time_ns: 0,
    };
    let range = |page: u64| MemoryRange {
        addr: (1 << 40) + (page << 25),
        bytes: 32 << 20,
        place: MemoryPlace::Device(0),
        serial: 1,
        is_mapped: true,
    };
    let block = LiveBlock { bytes: 2 << 20, ..LiveBlock::default() };
    let snapshot = AllocatorSnapshot {
        reserved: 64 << 20,
        blocks: vec![(1 << 40, block)].into(),
        segments: vec![segment],
        ranges: vec![range(0), range(1)],
        ..AllocatorSnapshot::default()
    };
    let cache = |snapshot: &AllocatorSnapshot<'_>| {
        explain_gap(snapshot, &TorchRanges::default(), |stack| SiteId(stack.0)).cache >> 20
    };
    assert_eq!(cache(&snapshot), 32);
    assert_eq!(cache(&AllocatorSnapshot { ranges: vec![range(0)], ..snapshot }), 44);
}

#[test]
fn size_fits_as_often_as_it_divides_the_pieces_of_its_pool() {
    let mut requests = crate::state::request_histogram::RequestHistogram::default();
    for _ in 0..3 {
        requests.count(crate::state::request_histogram::BlockRequest { bytes: 8 << 20, stream: 0, pool: 0 });
    }
    requests.count(crate::state::request_histogram::BlockRequest { bytes: 512, stream: 0, pool: 0 });
    let fits = fit_for_sizes(&gap_of_one_block(true), &requests);
    let rows: Vec<_> =
        fits.iter().map(|row| (row.request.bytes, row.times, row.free >> 20, row.fit)).collect();
    // Two pieces of 22 and 36 MiB are free, none of them for small blocks.
    assert_eq!(rows, [(8 << 20, 3, 58, 2 + 4), (512, 1, 0, 0)]);
}
