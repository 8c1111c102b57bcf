//! Expandable segments: maps pages for a request, and unmaps free ones.

use super::CachingAllocator;
use super::order::NewPart;
use super::search::ClassedRequest;
use crate::arenas::ExpandableArena;
use crate::backend::{CacheBackend, DriverError, OUT_OF_MEMORY, TraceAction};
use crate::blocks::{AllocatorBlock, BlockState};
use crate::ids::{ArenaId, BlockId};
use crate::size_rules::{BlockSizeClass, SMALL_SEGMENT_BYTES};
use crate::stats::StatKind;

impl<B: CacheBackend> CachingAllocator<B> {
    /// Maps pages at the lowest addresses where the request fits. Pages that were mapped before an
    /// error stay, as free blocks.
    pub(super) fn add_pages(&mut self, request: &ClassedRequest) -> Result<BlockId, DriverError> {
        let mut id = match self.find_address_space(request) {
            Some(id) => id,
            None => self.add_arena(request)?,
        };
        if self.blocks[id].state == BlockState::Unmapped {
            id = self.map_block(id, request.bytes)?;
        }
        while self.blocks[id].bytes < request.bytes {
            let missing = request.bytes - self.blocks[id].bytes;
            // A new segment has fewer addresses than a request for more memory than the device has.
            let next = self.blocks[id].next.ok_or(OUT_OF_MEMORY)?;
            id = self.map_block(next, missing)?;
        }
        self.take_from_pool(id);
        Ok(id)
    }

    /// The first of adjacent free and unmapped blocks that are large enough together.
    fn find_address_space(&self, request: &ClassedRequest) -> Option<BlockId> {
        let unmapped = self.pools.get(request.pool).unmapped_blocks(request.size_class, request.stream);
        let mut starts = unmapped.map(|id| {
            let previous = self.blocks[id].previous;
            previous.filter(|previous| self.blocks[*previous].state == BlockState::Free).unwrap_or(id)
        });
        starts.find(|start| {
            let (mut bytes, mut at) = (0, Some(*start));
            while let Some(block) = at.map(|at| &self.blocks[at]).filter(|_| bytes < request.bytes) {
                if !matches!(block.state, BlockState::Free | BlockState::Unmapped) {
                    break;
                }
                bytes += block.bytes;
                at = block.next;
            }
            bytes >= request.bytes
        })
    }

    /// Reserves a new expandable segment, as one unmapped block.
    fn add_arena(&mut self, request: &ClassedRequest) -> Result<BlockId, DriverError> {
        let &ClassedRequest { size_class, stream, pool, .. } = request;
        let page_bytes = match size_class {
            BlockSizeClass::Small => SMALL_SEGMENT_BYTES,
            BlockSizeClass::Large => self.settings.large_segment_bytes,
        };
        let bytes = ExpandableArena::bytes_to_reserve(self.backend.device_bytes(), page_bytes);
        let addr = self.backend.reserve_addresses(bytes)?;
        let arena = self.arenas.add(ExpandableArena { addr, bytes, page_bytes });
        let order = self.order_of_arena(addr);
        let id = self.blocks.add_segment(AllocatorBlock {
            addr,
            bytes,
            requested_bytes: 0,
            stream,
            pool,
            size_class,
            state: BlockState::Unmapped,
            order,
            free_since: 0,
            arena: Some(arena),
            segment: 0,
            stream_uses: Vec::new(),
            pending_events: 0,
            previous: None,
            next: None,
        });
        self.pools.get_mut(pool).insert_unmapped(id, &self.blocks[id]);
        Ok(id)
    }

    /// Maps the pages for the first `bytes` of an unmapped block, or for all of it. Returns the
    /// free block that contains them.
    fn map_block(&mut self, id: BlockId, bytes: u64) -> Result<BlockId, DriverError> {
        let AllocatorBlock { addr, bytes: unmapped_bytes, size_class, pool, .. } = self.blocks[id];
        let arena = self.arena_of(id);
        let (addr, mapped_bytes) = arena.touched_pages(addr, bytes.min(unmapped_bytes));
        self.backend.map(addr, mapped_bytes, arena.page_bytes)?;
        self.take_from_pool(id);
        if mapped_bytes < unmapped_bytes {
            let rest = self.split_block(id, mapped_bytes, NewPart::Behind);
            self.pools.get_mut(pool).insert_unmapped(rest, &self.blocks[rest]);
        }
        let (first, ..) = self.merge_with_neighbours(id, BlockState::Free);
        self.insert_free(first);
        self.pools.get_mut(pool).mapped_bytes += mapped_bytes;
        self.stats.add(StatKind::ReservedBytes, size_class, mapped_bytes as i64);
        self.stats.num_device_alloc += 1;
        self.trace_range(TraceAction::SegmentMap, first, addr, mapped_bytes, 0);
        Ok(first)
    }

    /// Unmaps the whole pages of a free block. The parts before and behind them stay free. A
    /// segment without pages is given back.
    pub(super) fn unmap_block(&mut self, id: BlockId) {
        let AllocatorBlock { addr, bytes, size_class, pool, stream, .. } = self.blocks[id];
        let arena = self.arena_of(id);
        let Some((pages_addr, pages_bytes)) = arena.whole_pages(addr, bytes) else { return };
        self.take_from_pool(id);
        self.backend.unmap(pages_addr, pages_bytes, arena.page_bytes, stream);
        let mut pages = id;
        if pages_addr > addr {
            pages = self.split_block(id, pages_addr - addr, NewPart::Before);
            self.insert_free(id);
        }
        if pages_bytes < self.blocks[pages].bytes {
            let behind = self.split_block(pages, pages_bytes, NewPart::Behind);
            self.insert_free(behind);
        }
        let (first, ..) = self.merge_with_neighbours(pages, BlockState::Unmapped);
        self.pools.get_mut(pool).insert_unmapped(first, &self.blocks[first]);
        self.pools.get_mut(pool).mapped_bytes -= pages_bytes;
        self.stats.add(StatKind::ReservedBytes, size_class, -(pages_bytes as i64));
        self.stats.num_device_free += 1;
        self.trace_range(TraceAction::SegmentUnmap, first, pages_addr, pages_bytes, 0);
        if !self.blocks[first].is_split() {
            self.release_arena(first);
        }
    }

    fn release_arena(&mut self, id: BlockId) {
        self.take_from_pool(id);
        let arena = self.arena_of(id);
        self.backend.release_addresses(arena.addr, arena.bytes);
        self.arenas.remove(self.arena_id(id));
        self.blocks.remove(id);
    }

    fn arena_of(&self, id: BlockId) -> ExpandableArena {
        self.arenas.get(self.arena_id(id))
    }

    fn arena_id(&self, id: BlockId) -> ArenaId {
        let Some(arena) = self.blocks[id].arena else { unreachable!("a block of an expandable segment") };
        arena
    }
}
