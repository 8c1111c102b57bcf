//! Takes over segments that exist already, with their blocks where they lie.
//!
//! A recording may begin while a program runs. The requests that led to the segments of that moment
//! are unknown, and repeating those for its blocks would give another layout.

use super::CachingAllocator;
use crate::arenas::ExpandableArena;
use crate::backend::CacheBackend;
use crate::blocks::{AllocatorBlock, BlockState};
use crate::ids::{ArenaId, BlockId, PoolId, PoolIndex, ProgramBlock};
use crate::size_rules::{BlockSizeClass, SMALL_SEGMENT_BYTES, size_class_of};
use crate::stats::StatKind;

/// What a part of an existing segment is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartUse {
    /// A live block, for which the program requested this many bytes.
    Block {
        /// Bytes that the program asked for.
        requested_bytes: u64,
    },
    /// Free memory between blocks.
    Free,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

/// A part of an existing segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExistingPart {
    /// Its bytes; more than 0.
    pub bytes: u64,
    /// What it is used for.
    pub part_use: PartUse,
}

/// A segment that exists already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExistingSegment {
    /// The first address; of an expandable segment, that of its first page with memory.
    pub addr: u64,
    /// The stream it is for.
    pub stream: u64,
    /// Its pool; (0, 0) is the default pool.
    pub pool: PoolId,
    /// The first and the last part of an expandable segment have memory.
    pub is_expandable: bool,
    /// All of it, in the order of addresses. No two free parts are adjacent.
    pub parts: Vec<ExistingPart>,
}

impl ExistingSegment {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Bytes of all parts that have memory. O(parts).
    pub fn mapped_bytes(&self) -> u64 {
        let parts = self.parts.iter().filter(|part| part.part_use != PartUse::Unmapped);
        parts.map(|part| part.bytes).sum()
    }

    /// An expandable segment shows it by its largest block; without a block it counts as large.
    fn size_class(&self) -> BlockSizeClass {
        if !self.is_expandable {
            let is_small = self.bytes() == SMALL_SEGMENT_BYTES;
            return if is_small { BlockSizeClass::Small } else { BlockSizeClass::Large };
        }
        let blocks = self.parts.iter().filter(|part| matches!(part.part_use, PartUse::Block { .. }));
        size_class_of(blocks.map(|part| part.bytes).max().unwrap_or(u64::MAX))
    }
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// Adds a segment that exists already, and returns its live blocks in the order of addresses.
    /// The device must count its memory itself. A private pool gets a user.
    ///
    /// Where releases number blocks or segments, the numbers of these are unknown: their addresses
    /// stand for them, and count as addresses that decide.
    pub fn adopt_segment(&mut self, segment: &ExistingSegment) -> Vec<ProgramBlock> {
        let size_class = segment.size_class();
        let pool = match segment.pool {
            (0, 0) => PoolIndex(0),
            id => self.pools.add_user(id),
        };
        let arena = segment.is_expandable.then(|| self.adopt_arena(segment, size_class));
        let mapped_bytes = segment.mapped_bytes();
        self.largest_segment_bytes = self.largest_segment_bytes.max(mapped_bytes);
        self.stats.add(StatKind::ReservedBytes, size_class, mapped_bytes as i64);
        if arena.is_some() {
            self.pools.get_mut(pool).mapped_bytes += mapped_bytes;
        } else {
            self.pools.get_mut(pool).segments += 1;
            self.stats.add(StatKind::Segment, size_class, 1);
            self.stats.oversize_segments.add(i64::from(mapped_bytes >= self.settings.max_split_bytes));
        }
        let mut rest = self.blocks.add_segment(AllocatorBlock {
            addr: segment.addr,
            bytes: self.arena_bytes(arena).unwrap_or(mapped_bytes),
            requested_bytes: 0,
            stream: segment.stream,
            pool,
            size_class,
            state: BlockState::Unmapped,
            order: segment.addr,
            free_since: 0,
            arena,
            segment: 0,
            stream_uses: Vec::new(),
            pending_events: 0,
            previous: None,
            next: None,
        });
        let mut live = Vec::new();
        for part in &segment.parts {
            let id = rest;
            if part.bytes < self.blocks[id].bytes {
                rest = self.blocks.split(id, part.bytes);
                self.blocks[rest].order += part.bytes;
            }
            self.adopt_part(id, part.part_use);
            if matches!(part.part_use, PartUse::Block { .. }) {
                live.push(ProgramBlock(id));
            }
        }
        // The addresses of an expandable segment behind its last page.
        if self.arena_bytes(arena).is_some_and(|bytes| bytes > segment.bytes()) {
            self.adopt_part(rest, PartUse::Unmapped);
        }
        live
    }

    /// The addresses of an expandable segment, which begin at its first page: those before it are
    /// unknown.
    fn adopt_arena(&mut self, segment: &ExistingSegment, size_class: BlockSizeClass) -> ArenaId {
        let page_bytes = match size_class {
            BlockSizeClass::Small => SMALL_SEGMENT_BYTES,
            BlockSizeClass::Large => self.settings.large_segment_bytes,
        };
        let bytes = ExpandableArena::bytes_to_reserve(self.backend.device_bytes(), page_bytes);
        let bytes = bytes.max(segment.bytes().next_multiple_of(page_bytes));
        self.arenas.add(ExpandableArena { addr: segment.addr, bytes, page_bytes })
    }

    fn arena_bytes(&self, arena: Option<ArenaId>) -> Option<u64> {
        arena.map(|arena| self.arenas.get(arena).bytes)
    }

    fn adopt_part(&mut self, id: BlockId, part_use: PartUse) {
        let AllocatorBlock { size_class, bytes, arena, pool, .. } = self.blocks[id];
        match part_use {
            PartUse::Unmapped => {
                self.pools.get_mut(pool).insert_unmapped(id, &self.blocks[id]);
            }
            PartUse::Free => {
                self.insert_free(id);
                if arena.is_none() && self.blocks[id].is_split() {
                    self.stats.add(StatKind::InactiveSplit, size_class, 1);
                    self.stats.add(StatKind::InactiveSplitBytes, size_class, bytes as i64);
                }
            }
            PartUse::Block { requested_bytes } => {
                let block = &mut self.blocks[id];
                (block.state, block.requested_bytes) = (BlockState::Allocated, requested_bytes);
                self.stats.add(StatKind::Allocation, size_class, 1);
                self.stats.add(StatKind::AllocatedBytes, size_class, bytes as i64);
                self.stats.add(StatKind::Active, size_class, 1);
                self.stats.add(StatKind::ActiveBytes, size_class, bytes as i64);
                self.stats.add(StatKind::RequestedBytes, size_class, requested_bytes as i64);
                if bytes >= self.settings.max_split_bytes {
                    self.stats.oversize_allocations.add(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{AllocatorTraceEntry, OutsideMemory, Rules, Settings, SimulatedDevice, TorchVersion};

    const MIB: u64 = 1 << 20;
    const SIZES: [u64; 6] = [3000, 200 << 10, 3 * MIB, 9 * MIB, 14 * MIB, 40 * MIB];

    type Device = SimulatedDevice<fn(AllocatorTraceEntry)>;
    type Allocator = CachingAllocator<Device>;

    fn random(seed: &mut u64, limit: u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % limit
    }

    /// Makes the same random requests to all allocators, which must give the same addresses.
    fn go_on(allocators: &mut [&mut Allocator], live: &mut Vec<u64>, seed: &mut u64, requests: u64) {
        for _ in 0..requests {
            if live.len() > 40 || (live.len() > SIZES.len() * 2 && random(seed, 5) < 2) {
                // The first blocks stay, so that no expandable segment loses its first page.
                let kept = SIZES.len() as u64 * 2;
                let addr = live.swap_remove((kept + random(seed, live.len() as u64 - kept)) as usize);
                for allocator in allocators.iter_mut() {
                    assert!(allocator.free(addr));
                }
                continue;
            }
            let size = SIZES[live.len() % SIZES.len()] + random(seed, 1000) * 512;
            let stream = (live.len() / SIZES.len() % 2) as u64;
            let found = allocators.iter_mut().map(|allocator| allocator.alloc(size, stream).expect("memory"));
            let found: BTreeSet<u64> = found.collect();
            assert_eq!(found.len(), 1, "addresses for {size} bytes: {found:?}");
            live.extend(found);
        }
    }

    /// The segments that have live blocks.
    fn segments_of(allocator: &Allocator, live: &[u64]) -> Vec<ExistingSegment> {
        let mut heads: BTreeSet<BlockId> = BTreeSet::new();
        for addr in live {
            let mut id = allocator.allocated[addr];
            while let Some(previous) = allocator.blocks[id].previous {
                id = previous;
            }
            heads.insert(id);
        }
        heads.into_iter().map(|head| segment_from(allocator, head)).collect()
    }

    fn segment_from(allocator: &Allocator, head: BlockId) -> ExistingSegment {
        let first = &allocator.blocks[head];
        let mut parts = Vec::new();
        let mut at = Some(head);
        while let Some(id) = at {
            let block = &allocator.blocks[id];
            let part_use = match block.state {
                BlockState::Allocated => PartUse::Block { requested_bytes: block.requested_bytes },
                BlockState::Free => PartUse::Free,
                BlockState::Unmapped => PartUse::Unmapped,
                BlockState::PendingFree => unreachable!("no stream uses it"),
            };
            parts.push(ExistingPart { bytes: block.bytes, part_use });
            at = block.next;
        }
        while parts.last().is_some_and(|part| part.part_use == PartUse::Unmapped) {
            parts.pop();
        }
        let is_expandable = first.arena.is_some();
        ExistingSegment { addr: first.addr, stream: first.stream, pool: (0, 0), is_expandable, parts }
    }

    #[test]
    fn adopted_state_goes_on_like_the_one_that_it_was() {
        for minor in [3, 7, 11] {
            let version = TorchVersion::new(minor).expect("known");
            for setting in ["", "expandable_segments:True", "max_split_size_mb:32"] {
                let settings = Settings::parse(setting, version).expect("accepted");
                let device = Device::new(4 << 30, OutsideMemory::default(), |_| ());
                let rules = Rules::of_version(version);
                let mut original = CachingAllocator::new(device, settings.clone(), rules);
                let (mut live, mut seed) = (Vec::new(), 40);
                go_on(&mut [&mut original], &mut live, &mut seed, 600);
                original.release_cached();
                let mut adopted = CachingAllocator::new(original.backend.clone(), settings, rules);
                for segment in segments_of(&original, &live) {
                    let blocks = adopted.adopt_segment(&segment);
                    adopted
                        .allocated
                        .extend(blocks.iter().map(|block| (adopted.blocks[block.0].addr, block.0)));
                }
                assert_eq!(adopted.held_bytes(), original.held_bytes());
                assert_eq!(adopted.unused_bytes(), original.unused_bytes());
                go_on(&mut [&mut original, &mut adopted], &mut live, &mut seed, 2000);
                original.release_cached();
                adopted.release_cached();
                assert_eq!(adopted.held_bytes(), original.held_bytes(), "{setting} in {version}");
            }
        }
    }
}
