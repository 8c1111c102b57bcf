//! A naive allocator that the tests compare with: each segment is a plain list of blocks, and every
//! request scans all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::simulated_device::{DeviceCall, SimulatedDevice};
use crate::size_rules::{BlockSizeClass, block_bytes, segment_bytes, should_split, size_class_of};
use crate::stats::StatKind;
use crate::{CachingAllocator, EventId, PoolId};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum BlockUse {
    Free,
    Live { requested_bytes: u64, stream_uses: Vec<u64> },
    PendingFree { requested_bytes: u64, unrecorded: Vec<u64>, events: Vec<EventId> },
}

#[derive(Clone, Debug)]
pub(super) struct ModelBlock {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    pub(super) usage: BlockUse,
}

#[derive(Debug)]
pub(super) struct ModelSegment {
    pub(super) stream: u64,
    pub(super) pool: PoolId,
    pub(super) size_class: BlockSizeClass,
    pub(super) blocks: Vec<ModelBlock>,
}

impl ModelSegment {
    pub(super) fn free(&mut self, addr: u64) {
        let at = self.blocks.iter().position(|block| block.addr == addr).expect("a block");
        self.blocks[at].usage = BlockUse::Free;
        for at in [at + 1, at] {
            if at > 0
                && at < self.blocks.len()
                && [at - 1, at].iter().all(|at| self.blocks[*at].usage == BlockUse::Free)
            {
                let second = self.blocks.remove(at);
                self.blocks[at - 1].bytes += second.bytes;
            }
        }
    }

    fn is_free(&self) -> bool {
        self.blocks.len() == 1 && self.blocks[0].usage == BlockUse::Free
    }
}

#[derive(Debug, Default)]
pub(super) struct AllocatorModel {
    pub(super) segments: BTreeMap<u64, ModelSegment>,
    /// Addresses of blocks that were freed during a capture, in that order.
    pub(super) deferred: Vec<u64>,
    /// Users of each private pool.
    pub(super) users: BTreeMap<PoolId, u32>,
    pub(super) capture: Option<(PoolId, u64)>,
}

impl AllocatorModel {
    pub(super) fn block(&mut self, addr: u64) -> &mut ModelBlock {
        let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
        segment.blocks.iter_mut().find(|block| block.addr == addr).expect("a block")
    }

    /// Takes the next calls, which must record the events of these blocks, in order.
    fn take_recorded_events(&mut self, addrs: &[u64], calls: &mut VecDeque<DeviceCall>) {
        for addr in addrs {
            let BlockUse::PendingFree { unrecorded, events, .. } = &mut self.block(*addr).usage else {
                panic!("a pending free")
            };
            for stream in unrecorded.drain(..) {
                match calls.pop_front() {
                    Some(DeviceCall::RecordEvent(recorded, event)) if recorded == stream => {
                        events.push(event);
                    }
                    call => panic!("expected an event on stream {stream}, got {call:?}"),
                }
            }
        }
    }

    pub(super) fn record_deferred(&mut self, calls: &mut VecDeque<DeviceCall>) {
        let deferred = std::mem::take(&mut self.deferred);
        self.take_recorded_events(&deferred, calls);
    }

    pub(super) fn collect(&mut self, not_done: &BTreeSet<u64>) {
        let done = |block: &&ModelBlock| match &block.usage {
            BlockUse::PendingFree { events, unrecorded, .. } => {
                unrecorded.is_empty() && events.iter().all(|event| !not_done.contains(&event.0))
            }
            _ => false,
        };
        for segment in self.segments.values_mut() {
            let free: Vec<u64> = segment.blocks.iter().filter(done).map(|block| block.addr).collect();
            for addr in free {
                segment.free(addr);
            }
        }
    }

    pub(super) fn release(&mut self, calls: &mut VecDeque<DeviceCall>) {
        // The allocator waits for all events first.
        self.record_deferred(calls);
        self.collect(&BTreeSet::new());
        let mut freed = BTreeSet::new();
        while let Some(DeviceCall::Free(addr)) = calls.front() {
            freed.insert(*addr);
            calls.pop_front();
        }
        let users = &self.users;
        let is_releasable =
            |segment: &ModelSegment| segment.is_free() && users.get(&segment.pool).copied().unwrap_or(0) == 0;
        let expected: BTreeSet<u64> = self
            .segments
            .iter()
            .filter(|(_, segment)| is_releasable(segment))
            .map(|(addr, _)| *addr)
            .collect();
        assert_eq!(freed, expected, "the segments that return to the driver");
        self.segments.retain(|addr, _| !expected.contains(addr));
    }

    /// The address that a request must get, or `None`. `not_done` is the events that were
    /// outstanding before it, `calls` the calls that the allocator made.
    pub(super) fn alloc(
        &mut self,
        not_done: &BTreeSet<u64>,
        requested_bytes: u64,
        stream: u64,
        calls: &mut VecDeque<DeviceCall>,
    ) -> Option<u64> {
        if self.capture.is_none() {
            // An event that is recorded now has not completed.
            self.collect(not_done);
            self.record_deferred(calls);
        }
        let bytes = block_bytes(requested_bytes)?;
        let (size_class, segment_size) = (size_class_of(bytes), segment_bytes(bytes));
        let pool = self.capture.filter(|(_, of)| *of == stream).map_or((0, 0), |(pool, _)| pool);
        let of_this = |segment: &&ModelSegment| {
            (segment.stream, segment.pool, segment.size_class) == (stream, pool, size_class)
        };
        let blocks = self.segments.values().filter(of_this).flat_map(|segment| &segment.blocks);
        let fits = blocks.filter(|block| block.usage == BlockUse::Free && block.bytes >= bytes);
        let best = fits.map(|block| (block.bytes, block.addr)).min().map(|(_, addr)| addr);
        let addr = best.or_else(|| {
            if !matches!(calls.front(), Some(DeviceCall::Alloc(..))) && self.capture.is_none() {
                self.release(calls);
            }
            let Some(DeviceCall::Alloc(addr, given)) = calls.pop_front() else { return None };
            assert_eq!(given, segment_size);
            let block = ModelBlock { addr, bytes: given, usage: BlockUse::Free };
            self.segments.insert(addr, ModelSegment { stream, pool, size_class, blocks: vec![block] });
            Some(addr)
        })?;
        let (_, segment) = self.segments.range_mut(..=addr).next_back()?;
        let at = segment.blocks.iter().position(|block| block.addr == addr)?;
        let rest = segment.blocks[at].bytes - bytes;
        if should_split(size_class, rest) {
            segment
                .blocks
                .insert(at + 1, ModelBlock { addr: addr + bytes, bytes: rest, usage: BlockUse::Free });
            segment.blocks[at].bytes = bytes;
        }
        segment.blocks[at].usage = BlockUse::Live { requested_bytes, stream_uses: Vec::new() };
        Some(addr)
    }

    pub(super) fn free(&mut self, addr: u64, calls: &mut VecDeque<DeviceCall>) {
        let capturing = self.capture.is_some();
        let block = self.block(addr);
        let BlockUse::Live { requested_bytes, stream_uses } = block.usage.clone() else {
            panic!("a live block")
        };
        if stream_uses.is_empty() {
            let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
            return segment.free(addr);
        }
        block.usage = BlockUse::PendingFree { requested_bytes, unrecorded: stream_uses, events: Vec::new() };
        if capturing { self.deferred.push(addr) } else { self.take_recorded_events(&[addr], calls) }
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = (&ModelSegment, &ModelBlock)> {
        self.segments.values().flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)))
    }

    /// Compares the statistics with sums over all blocks.
    pub(super) fn check(&self, cache: &CachingAllocator<SimulatedDevice>) {
        let mut sums = [0u64; 9];
        for (segment, block) in self.blocks() {
            let mut add = |kind: StatKind, amount| sums[kind as usize] += amount;
            match &block.usage {
                BlockUse::Free if segment.blocks.len() > 1 => {
                    add(StatKind::InactiveSplit, 1);
                    add(StatKind::InactiveSplitBytes, block.bytes);
                }
                BlockUse::Free => {}
                BlockUse::Live { requested_bytes, .. } | BlockUse::PendingFree { requested_bytes, .. } => {
                    add(StatKind::Active, 1);
                    add(StatKind::ActiveBytes, block.bytes);
                    add(StatKind::RequestedBytes, *requested_bytes);
                }
            }
            if let BlockUse::Live { .. } = block.usage {
                add(StatKind::Allocation, 1);
                add(StatKind::AllocatedBytes, block.bytes);
            }
        }
        sums[StatKind::Segment as usize] = self.segments.len() as u64;
        sums[StatKind::ReservedBytes as usize] = cache.backend.used_bytes;
        let kinds = [
            StatKind::Allocation,
            StatKind::Segment,
            StatKind::Active,
            StatKind::InactiveSplit,
            StatKind::AllocatedBytes,
            StatKind::ReservedBytes,
            StatKind::ActiveBytes,
            StatKind::InactiveSplitBytes,
            StatKind::RequestedBytes,
        ];
        for kind in kinds {
            assert_eq!(cache.stats.current(kind), sums[kind as usize], "{kind:?}");
        }
    }
}
