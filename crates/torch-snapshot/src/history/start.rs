//! The state of a device before its first event.
//!
//! One pass over the events. The first event of an address shows what it was before: a free without
//! an allocation means that the block existed. Blocks and segments that exist at the end without an
//! event of their own existed before, too.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::event::NO_POOL;

use super::ranges::RangeSet;
use super::{DeviceLayout, HeldBlock, RoundingRules, SegmentPiece};
use crate::values::{
    BlockRecord, EndBlockState, EventAction, EventRun, SegmentRecord, StoredEvent, TorchSnapshot, TorchStack,
};

/// A block that existed before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StartBlock {
    pub(crate) addr: u64,
    pub(crate) held: HeldBlock,
    /// Known only for blocks that live to the end.
    pub(crate) stack: Option<TorchStack>,
}

/// A segment that existed before the first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StartSegment {
    pub(crate) addr: u64,
    pub(crate) piece: SegmentPiece,
    pub(crate) stack: Option<TorchStack>,
}

/// What the end of the snapshot says of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndFact {
    /// The block that this event allocated exists at the end, and has this size.
    BlockBytes(u64),
    /// The segment that this event added exists at the end, in this pool.
    SegmentPool(u64),
}

/// The state of a device before its first event.
#[derive(Debug, Default)]
pub(crate) struct HistoryStart {
    /// By address; they do not overlap.
    pub(crate) segments: Vec<StartSegment>,
    pub(crate) blocks: Vec<StartBlock>,
    /// By number of the event among those of the device.
    pub(crate) end_facts: HashMap<u64, EndFact>,
    /// Events and blocks that contradict each other.
    pub(crate) contradictions: u64,
    pub(crate) shape: HistoryShape,
    /// The state at the end is known. Else it is what the events leave.
    pub(crate) knows_end: bool,
    /// Pools of segments are from the end of the snapshot; events have none.
    pub(crate) pools_from_end: bool,
}

/// What the events so far say of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressState {
    /// Allocated by the event of this number; `None`: before the first event.
    Live(Option<u64>),
    Pending(Option<u64>),
    Free,
}

/// What the events of a device have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HistoryShape {
    /// Frees are completed by an event of their own. Recording may leave those out.
    pub(crate) has_completions: bool,
}

impl HistoryShape {
    fn of(snapshot: &TorchSnapshot, runs: &[EventRun]) -> Self {
        let mut events = runs.iter().flat_map(|run| snapshot.events.iter(*run));
        let has_pending = |segment: &SegmentRecord| {
            segment.blocks.iter().any(|block| block.state == EndBlockState::PendingFree)
        };
        let has_completions = snapshot.segments.iter().any(has_pending)
            || events.any(|event| event.action == EventAction::FreeCompleted);
        Self { has_completions }
    }
}

/// True if the pools in the file can be used: events have them, or there are no events.
pub(super) fn events_know_pools(snapshot: &TorchSnapshot) -> bool {
    let mut events = snapshot.traces.iter().flatten().flat_map(|run| snapshot.events.iter(*run));
    // Every event of a version that reports pools has one.
    events.next().is_none_or(|event| event.pool != NO_POOL)
}

impl HistoryStart {
    pub(crate) fn find(
        snapshot: &TorchSnapshot,
        rules: &RoundingRules,
        (ordinal, runs): (u8, &[EventRun]),
        knows_pools: bool,
    ) -> Self {
        let segments: Vec<&SegmentRecord> =
            snapshot.segments.iter().filter(|segment| segment.device == ordinal).collect();
        let has_private_pool = segments.iter().any(|segment| segment.pool != 0 && segment.pool != NO_POOL);
        let mut finder = StartFinder {
            state: Self {
                shape: HistoryShape::of(snapshot, runs),
                knows_end: snapshot.has_segments,
                pools_from_end: !knows_pools && has_private_pool,
                ..Self::default()
            },
            addresses: HashMap::new(),
            mapped: BTreeMap::new(),
            start_segments: DeviceLayout::default(),
            start_ranges: RangeSet::default(),
            end_ranges: RangeSet::default(),
            found: BTreeMap::new(),
            uses_end_pools: knows_pools || has_private_pool,
        };
        for (number, event) in (0..).zip(runs.iter().flat_map(|run| snapshot.events.iter(*run))) {
            finder.on_event(number, &event);
        }
        finder.add_end(&segments);
        finder.finish(rules)
    }
}

struct StartFinder {
    state: HistoryStart,
    addresses: HashMap<u64, AddressState>,
    /// Ranges that events mapped: first address, end and number of the event.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Segments before the first event; their pieces may overlap what events map later.
    start_segments: DeviceLayout,
    /// The ranges of these segments, and of the segments at the end.
    start_ranges: RangeSet,
    end_ranges: RangeSet,
    /// Blocks before the first event; `None` where only the request is known.
    found: BTreeMap<u64, (HeldBlock, Option<u64>, Option<TorchStack>)>,
    uses_end_pools: bool,
}

impl StartFinder {
    fn on_event(&mut self, number: u64, event: &StoredEvent) {
        let known = self.addresses.get(&event.addr).copied();
        match event.action {
            EventAction::Alloc => {
                let is_free = matches!(known, None | Some(AddressState::Free));
                self.state.contradictions += u64::from(!is_free);
                self.addresses.insert(event.addr, AddressState::Live(Some(number)));
            }
            EventAction::FreeRequested => {
                let allocated = match known {
                    None => self.add_block(event, false),
                    Some(AddressState::Live(number)) => number,
                    Some(AddressState::Pending(_) | AddressState::Free) => {
                        self.state.contradictions += 1;
                        return;
                    }
                };
                let is_free = !self.state.shape.has_completions;
                let after = if is_free { AddressState::Free } else { AddressState::Pending(allocated) };
                self.addresses.insert(event.addr, after);
            }
            EventAction::FreeCompleted => {
                match known {
                    None => drop(self.add_block(event, true)),
                    Some(AddressState::Free) => self.state.contradictions += 1,
                    Some(_) => {}
                }
                self.addresses.insert(event.addr, AddressState::Free);
            }
            EventAction::SegmentAlloc | EventAction::SegmentMap => {
                self.unmap(event.addr, event.size);
                if event.size > 0 {
                    self.mapped.insert(event.addr, (event.addr.saturating_add(event.size), number));
                }
            }
            EventAction::SegmentFree | EventAction::SegmentUnmap => {
                for (from, to) in self.unmap(event.addr, event.size) {
                    let piece = SegmentPiece {
                        bytes: to - from,
                        stream: event.stream,
                        pool: event.pool,
                        is_expandable: event.action == EventAction::SegmentUnmap,
                    };
                    self.add_segment(from, piece, None);
                }
            }
            _ => {}
        }
    }

    /// Notes a block that existed before the first event. Returns no event that allocated it.
    fn add_block(&mut self, event: &StoredEvent, is_pending: bool) -> Option<u64> {
        let held =
            HeldBlock { bytes: 0, requested: event.size, stream: event.stream, pool: event.pool, is_pending };
        self.found.insert(event.addr, (held, None, None));
        None
    }

    /// Removes a range of what events mapped. Returns the parts that no event had mapped.
    fn unmap(&mut self, addr: u64, bytes: u64) -> Vec<(u64, u64)> {
        let end = addr.saturating_add(bytes);
        let before = self.mapped.range(..addr).next_back().filter(|(_, (to, _))| *to > addr);
        let inside = self.mapped.range(addr..end.max(addr));
        let overlapping: Vec<(u64, (u64, u64))> =
            before.into_iter().chain(inside).map(|(at, to)| (*at, *to)).collect();
        let (mut unknown, mut next) = (Vec::new(), addr);
        for (from, (to, number)) in overlapping {
            self.mapped.remove(&from);
            if from < addr {
                self.mapped.insert(from, (addr, number));
            }
            if to > end {
                self.mapped.insert(end, (to, number));
            }
            if from > next {
                unknown.push((next, from));
            }
            next = next.max(to);
        }
        if next < end {
            unknown.push((next, end));
        }
        unknown
    }

    /// Adds the parts of a segment that are not known to exist before the first event.
    fn add_segment(&mut self, addr: u64, piece: SegmentPiece, stack: Option<TorchStack>) {
        let end = addr.saturating_add(piece.bytes);
        for (from, to) in self.start_ranges.add(addr, end) {
            let piece = SegmentPiece { bytes: to - from, ..piece };
            self.start_segments.map(from, piece);
            self.state.segments.push(StartSegment { addr: from, piece, stack });
        }
    }

    /// Adds what exists at the end without an event of its own.
    fn add_end(&mut self, segments: &[&SegmentRecord]) {
        for segment in segments {
            let end = segment.address.saturating_add(segment.bytes);
            if self.end_ranges.overlaps(segment.address, end) {
                self.state.contradictions += 1;
                continue;
            }
            self.end_ranges.add(segment.address, end);
            let pool = if self.uses_end_pools { segment.pool } else { NO_POOL };
            let before =
                self.mapped.range(..segment.address).next_back().filter(|(_, (to, _))| *to > segment.address);
            let inside = self.mapped.range(segment.address..end.max(segment.address));
            let mapped: Vec<(u64, u64, u64)> =
                before.into_iter().chain(inside).map(|(from, (to, number))| (*from, *to, *number)).collect();
            let mut next = segment.address;
            let piece =
                SegmentPiece { bytes: 0, stream: segment.stream, pool, is_expandable: segment.is_expandable };
            for (from, to, number) in mapped {
                if self.state.pools_from_end {
                    self.state.end_facts.insert(number, EndFact::SegmentPool(pool));
                }
                if from > next {
                    self.add_segment(next, SegmentPiece { bytes: from - next, ..piece }, segment.stack);
                }
                next = next.max(to);
            }
            if next < end {
                self.add_segment(next, SegmentPiece { bytes: end - next, ..piece }, segment.stack);
            }
            self.add_end_blocks(segment, pool);
        }
    }

    fn add_end_blocks(&mut self, segment: &SegmentRecord, pool: u64) {
        let mut next = segment.address;
        for block in &segment.blocks {
            let addr = block.address.unwrap_or(next);
            next = addr.saturating_add(block.size);
            let is_pending = match block.state {
                EndBlockState::Allocated => false,
                EndBlockState::PendingFree => true,
                EndBlockState::Inactive => continue,
            };
            match self.addresses.remove(&addr) {
                None => self.add_end_block(segment, (addr, block), (is_pending, pool)),
                Some(AddressState::Live(number) | AddressState::Pending(number)) => match number {
                    Some(number) => {
                        self.add_end_fact(number, EndFact::BlockBytes(block.size));
                    }
                    // Freed since, and pending: its size is that of now.
                    None => {
                        if let Some((_, bytes, stack)) = self.found.get_mut(&addr) {
                            (*bytes, *stack) = (Some(block.size), block.stack);
                        }
                    }
                },
                Some(AddressState::Free) => self.state.contradictions += 1,
            }
        }
    }

    fn add_end_fact(&mut self, number: u64, fact: EndFact) {
        self.state.end_facts.insert(number, fact);
    }

    fn add_end_block(
        &mut self,
        segment: &SegmentRecord,
        (addr, block): (u64, &BlockRecord),
        (is_pending, pool): (bool, u64),
    ) {
        let requested = block.requested.filter(|bytes| *bytes > 0).unwrap_or(block.size);
        let held = HeldBlock { bytes: block.size, requested, stream: segment.stream, pool, is_pending };
        self.found.insert(addr, (held, Some(block.size), block.stack));
    }

    fn finish(mut self, rules: &RoundingRules) -> HistoryStart {
        // Blocks that the events leave live must exist at the end.
        let missing = self.addresses.values().filter(|state| **state != AddressState::Free).count();
        self.state.contradictions += if self.state.knows_end { missing as u64 } else { 0 };
        self.state.segments.sort_by_key(|segment| segment.addr);
        let starts: Vec<u64> = self.found.keys().copied().collect();
        let mut end_before = 0;
        for (index, (addr, (held, bytes, stack))) in std::mem::take(&mut self.found).into_iter().enumerate() {
            let segment = self.start_segments.segment_at(addr).map(|(at, piece)| (at, *piece));
            let bytes = bytes.unwrap_or_else(|| {
                let Some((at, piece)) = segment.filter(|(_, piece)| !piece.is_expandable) else {
                    return rules.round(held.requested);
                };
                let next = starts.get(index + 1).copied().unwrap_or(u64::MAX);
                let room = at.saturating_add(piece.bytes).min(next) - addr;
                rules.block_bytes(held.requested, room, false)
            });
            if addr < end_before {
                // Two blocks of different times: the history has a hole.
                self.state.contradictions += 1;
                continue;
            }
            end_before = addr.saturating_add(bytes);
            let mut held = HeldBlock { bytes, ..held };
            if self.state.pools_from_end {
                held.pool = segment.map_or(NO_POOL, |(_, piece)| piece.pool);
            }
            self.state.blocks.push(StartBlock { addr, held, stack });
        }
        self.state
    }
}
