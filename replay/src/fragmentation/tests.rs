//! Held against somebody who looks at every half mebibyte.

use super::*;
use crate::callsite::symbols::StackId;
use proptest::prelude::*;

const UNIT: u64 = 512 << 10;

/// A segment, or a piece of an expandable one: how many units of what, which of them are in blocks.
#[derive(Clone, Debug)]
struct MadeSegment {
    is_expandable: bool,
    is_small: bool,
    stream: u64,
    pool: u64,
    pages: u64,
    /// Lengths of free and used by turns, in units.
    turns: Vec<u64>,
    pending: Vec<bool>,
}

fn made() -> impl Strategy<Value = MadeSegment> {
    let kind = (any::<bool>(), any::<bool>(), 0u64..2, 0u64..2, 1u64..4);
    let layout = (proptest::collection::vec(0u64..30, 0..8), proptest::collection::vec(any::<bool>(), 8));
    (kind, layout).prop_map(|((is_expandable, is_small, stream, pool, pages), (turns, pending))| {
        MadeSegment {
            is_expandable,
            is_small,
            stream,
            pool: pool << 32,
            pages: if is_small { 1 } else { pages },
            turns,
            pending,
        }
    })
}

/// What each unit is, by a person with a pencil.
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

/// The moment, and what it comes to.
fn build(all: &[MadeSegment], request: PoolKey) -> (AllocatorSnapshot, ExpectedGap) {
    let (mut snapshot, mut expected) = (
        AllocatorSnapshot { request: Some(request), ..AllocatorSnapshot::default() },
        ExpectedGap::default(),
    );
    let mut at = 1u64 << 40;
    for made in all {
        let page = if made.is_small { SMALL_SEGMENT } else { LARGE_PAGE };
        let bytes = page * made.pages;
        let pool = PoolKey { stream: made.stream, pool: made.pool, is_small: made.is_small };
        snapshot.segments.push(Segment {
            addr: at,
            bytes,
            pool: (made.stream, made.pool),
            is_expandable: made.is_expandable,
            born: 1,
            stack: StackId(0),
        });
        let mut used = vec![false; (bytes / UNIT) as usize];
        let mut unit = 0;
        for (turn, length) in made.turns.iter().enumerate() {
            let end = (unit + *length as usize).min(used.len());
            if turn % 2 == 1 && end > unit {
                used[unit..end].fill(true);
                let block = LiveBlock {
                    bytes: (end - unit) as u64 * UNIT,
                    stack: StackId(turn as u32),
                    ..LiveBlock::default()
                };
                let place = (at + unit as u64 * UNIT, block);
                if made.pending[turn] {
                    expected.pending += block.bytes;
                    snapshot.pending.push(place);
                } else {
                    expected.live += block.bytes;
                    snapshot.blocks.push(place);
                }
            }
            unit = end;
        }
        let together = if made.is_expandable { page } else { bytes };
        for part in used.chunks((together / UNIT) as usize) {
            let free = part.iter().filter(|used| !**used).count() as u64 * UNIT;
            let is_empty = free == part.len() as u64 * UNIT;
            if is_empty && (made.pool == 0 || made.pool == request.pool) {
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
        // Now and then two lie side by side.
        at += bytes + if made.pages == 2 { 0 } else { LARGE_PAGE };
        snapshot.reserved += bytes;
    }
    (snapshot, expected)
}

proptest! {
    #[test]
    fn every_byte_has_the_cause_that_it_has_by_hand(
        all in proptest::collection::vec(made(), 0..6),
        (stream, pool, is_small) in (0u64..2, 0u64..2, any::<bool>()),
    ) {
        let request = PoolKey { stream, pool: pool << 32, is_small };
        let (snapshot, expected) = build(&all, request);
        let gap = explain(&snapshot, &TorchRanges::default(), |stack| SiteId(stack.0));
        prop_assert_eq!(gap.bytes, snapshot.reserved - expected.live);
        prop_assert_eq!(gap.parts().iter().map(|(_, bytes)| bytes).sum::<u64>(), gap.bytes);
        prop_assert_eq!(gap.unexplained, 0);
        let of_gap = ExpectedGap {
            live: gap.live,
            pending: gap.pending.bytes,
            stream: gap.stranded_stream.bytes,
            pool: gap.stranded_pool.bytes,
            pinned: gap.pinned.bytes,
            cache: gap.cache,
            releasable: gap.groups.iter().map(|group| group.releasable).sum(),
        };
        prop_assert_eq!(of_gap, expected);
        for part in [&gap.pending, &gap.stranded_stream, &gap.stranded_pool, &gap.pinned] {
            prop_assert_eq!(part.culprits.iter().map(|(_, bytes)| bytes).sum::<u64>(), part.bytes);
        }
        let sum = |of: fn(&PoolTotals) -> u64| gap.groups.iter().map(of).sum::<u64>();
        prop_assert_eq!(sum(|group| group.reserved), snapshot.reserved);
        prop_assert_eq!(sum(|group| group.allocated), gap.live);
        prop_assert_eq!(sum(|group| group.pending), gap.pending.bytes);
        prop_assert_eq!(sum(|group| group.free), gap.pieces.iter().map(|piece| piece.bytes).sum::<u64>());
    }
}

/// Two mebibytes of a page are used.
fn one_page(is_expandable: bool) -> Gap {
    let made = MadeSegment {
        is_expandable,
        is_small: false,
        stream: 0,
        pool: 0,
        pages: 3,
        turns: vec![44, 4],
        pending: vec![false; 8],
    };
    let (snapshot, _) = build(&[made], PoolKey { stream: 0, pool: 0, is_small: false });
    explain(&snapshot, &TorchRanges::default(), |stack| SiteId(stack.0))
}

#[test]
fn a_block_keeps_its_segment_but_of_an_expandable_one_only_its_page() {
    let (fixed, expandable) = (one_page(false), one_page(true));
    assert_eq!((fixed.pinned.bytes >> 20, fixed.cache >> 20), (58, 0));
    assert_eq!((expandable.pinned.bytes >> 20, expandable.cache >> 20), (18, 40));
    // What can be had without the driver is the same.
    assert_eq!(fixed.largest_free, Some(36 << 20));
    assert_eq!(expandable.largest_free, Some(36 << 20));
}

#[test]
fn pages_are_those_of_the_driver_where_it_told_them() {
    let segment = Segment {
        addr: 1 << 40,
        bytes: 64 << 20,
        pool: (0, 0),
        is_expandable: true,
        born: 1,
        stack: StackId(0),
    };
    let range = |page: u64| MemoryRange {
        addr: (1 << 40) + (page << 25),
        bytes: 32 << 20,
        place: MemoryPlace::Device(0),
        born: 1,
        is_mapped: true,
    };
    let block = LiveBlock { bytes: 2 << 20, ..LiveBlock::default() };
    let snapshot = AllocatorSnapshot {
        reserved: 64 << 20,
        blocks: vec![(1 << 40, block)],
        segments: vec![segment],
        ranges: vec![range(0), range(1)],
        ..AllocatorSnapshot::default()
    };
    let cache = |snapshot: &AllocatorSnapshot| {
        explain(snapshot, &TorchRanges::default(), |stack| SiteId(stack.0)).cache >> 20
    };
    assert_eq!(cache(&snapshot), 32);
    assert_eq!(cache(&AllocatorSnapshot { ranges: vec![range(0)], ..snapshot }), 44);
}

#[test]
fn a_size_fits_as_often_as_it_goes_into_the_pieces_that_serve_it() {
    let mut requests = crate::state::request_histogram::RequestHistogram::default();
    for _ in 0..3 {
        requests.count(crate::state::request_histogram::BlockRequest { bytes: 8 << 20, stream: 0, pool: 0 });
    }
    requests.count(crate::state::request_histogram::BlockRequest { bytes: 512, stream: 0, pool: 0 });
    let usable = fit_for_sizes(&one_page(true), &requests);
    let rows: Vec<_> =
        usable.iter().map(|row| (row.request.bytes, row.times, row.free >> 20, row.fit)).collect();
    // 22 and 36 MiB are free, none of it for small blocks.
    assert_eq!(rows, [(8 << 20, 3, 58, 2 + 4), (512, 1, 0, 0)]);
}
