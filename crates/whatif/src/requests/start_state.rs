//! The segments and blocks that existed before the first recorded request.
//!
//! They are no requests: those that led to them are unknown. Every prediction begins with them as
//! they lay.

use std::collections::BTreeMap;

use gpumemtrace_caching_allocator::{ExistingPart, ExistingSegment, PartUse, PoolId};
use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{Event, EventKind};

use super::RecordedBlock;

/// Blocks of up to this size have expandable segments of their own.
const MAX_SMALL_BYTES: u64 = 1 << 20;
/// The allocator numbers segments from 2 to the power of 62 on; no device has such addresses.
const END_OF_ADDRESSES: u64 = 1 << 62;

/// The segments and blocks of a device before its first recorded request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartState {
    pub(crate) segments: Vec<StartSegment>,
    /// Number of live blocks.
    pub blocks: u64,
    /// Bytes of live blocks.
    pub allocated_bytes: u64,
    /// Bytes of segments and mapped pages.
    pub reserved_bytes: u64,
}

/// A segment, and the live blocks in it in the order of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartSegment {
    pub(crate) layout: ExistingSegment,
    pub(crate) blocks: Vec<RecordedBlock>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    stream: u64,
    pool: u64,
    is_expandable: bool,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: u64,
    requested_bytes: u64,
    number: RecordedBlock,
}

/// Collects what existed. A damaged file may have pieces and blocks that overlap: of these, the one
/// with the lower address counts.
#[derive(Debug, Default)]
pub(super) struct StartCollector {
    pieces: BTreeMap<u64, Piece>,
    blocks: BTreeMap<u64, LiveBlock>,
}

impl StartCollector {
    pub(super) fn add_segment(&mut self, event: &Event) {
        let [stream, pool] = event.aux;
        let pool = if pool == NO_POOL { 0 } else { pool };
        let is_expandable = event.kind == EventKind::SEGMENT_MAP;
        if is_address_range(event.addr, event.size) {
            self.pieces.insert(event.addr, Piece { bytes: event.size, stream, pool, is_expandable });
        }
    }

    pub(super) fn add_block(&mut self, event: &Event, number: RecordedBlock) {
        let requested_bytes = event.detail.map_or(event.size, |detail| detail.requested_bytes);
        if is_address_range(event.addr, event.size) {
            self.blocks.insert(event.addr, LiveBlock { bytes: event.size, requested_bytes, number });
        }
    }

    /// The state that was collected; `None` if nothing existed.
    pub(super) fn finish(self) -> Option<StartState> {
        let mut builder = StateBuilder::default();
        for (addr, piece) in join_pages(self.pieces) {
            let inside = self.blocks.range(addr..addr + piece.bytes).map(|(at, block)| (*at, *block));
            builder.add_piece(addr, piece, inside);
        }
        let state = builder.state;
        (!state.segments.is_empty()).then_some(state)
    }
}

/// Joins the pages of an expandable segment that follow each other: a block may lie in several.
/// Leaves out what overlaps.
fn join_pages(pieces: BTreeMap<u64, Piece>) -> Vec<(u64, Piece)> {
    let mut joined: Vec<(u64, Piece)> = Vec::new();
    for (addr, piece) in pieces {
        let last = joined.last_mut().map(|(at, last)| (*at + last.bytes, last));
        match last {
            Some((end, _)) if addr < end => {}
            Some((end, last))
                if addr == end
                    && (last.is_expandable && piece.is_expandable)
                    && (last.stream, last.pool) == (piece.stream, piece.pool) =>
            {
                last.bytes += piece.bytes;
            }
            _ => joined.push((addr, piece)),
        }
    }
    joined
}

fn is_address_range(addr: u64, bytes: u64) -> bool {
    bytes > 0 && addr.checked_add(bytes).is_some_and(|end| end < END_OF_ADDRESSES)
}

#[derive(Debug, Default)]
struct StateBuilder {
    state: StartState,
    /// Where the expandable segments of a stream, a pool and a size class are, and where they end.
    expandable: BTreeMap<(u64, u64, bool), (usize, u64)>,
}

impl StateBuilder {
    /// Adds a segment, or mapped pages of an expandable one, with the blocks in it.
    fn add_piece(&mut self, addr: u64, piece: Piece, blocks: impl Iterator<Item = (u64, LiveBlock)>) {
        let (mut parts, mut live, mut next, mut largest_bytes) = (Vec::new(), Vec::new(), addr, 0);
        let end = addr + piece.bytes;
        for (at, block) in blocks {
            if at < next || at + block.bytes > end {
                continue;
            }
            add_part(&mut parts, at - next, PartUse::Free);
            let requested_bytes = block.requested_bytes.min(block.bytes);
            add_part(&mut parts, block.bytes, PartUse::Block { requested_bytes });
            next = at + block.bytes;
            largest_bytes = largest_bytes.max(block.bytes);
            live.push(block.number);
            self.state.blocks += 1;
            self.state.allocated_bytes += block.bytes;
        }
        add_part(&mut parts, end - next, PartUse::Free);
        self.state.reserved_bytes += piece.bytes;
        if piece.is_expandable {
            let is_small = (1..=MAX_SMALL_BYTES).contains(&largest_bytes);
            self.add_pages((piece.stream, piece.pool, is_small), addr, parts, live);
        } else {
            self.add_segment(addr, &piece, parts, live);
        }
    }

    fn add_segment(
        &mut self,
        addr: u64,
        piece: &Piece,
        parts: Vec<ExistingPart>,
        blocks: Vec<RecordedBlock>,
    ) -> usize {
        let &Piece { stream, pool, is_expandable, .. } = piece;
        let layout = ExistingSegment { addr, stream, pool: pool_id(pool), is_expandable, parts };
        self.state.segments.push(StartSegment { layout, blocks });
        self.state.segments.len() - 1
    }

    /// Adds pages to the expandable segment of their stream, pool and size class.
    fn add_pages(
        &mut self,
        key: (u64, u64, bool),
        addr: u64,
        parts: Vec<ExistingPart>,
        blocks: Vec<RecordedBlock>,
    ) {
        let end = addr + parts.iter().map(|part| part.bytes).sum::<u64>();
        let Some((index, last_end)) = self.expandable.insert(key, (0, end)) else {
            let (stream, pool, _) = key;
            let index =
                self.add_segment(addr, &Piece { bytes: 0, stream, pool, is_expandable: true }, parts, blocks);
            self.expandable.insert(key, (index, end));
            return;
        };
        let segment = &mut self.state.segments[index];
        add_part(&mut segment.layout.parts, addr - last_end, PartUse::Unmapped);
        for part in parts {
            add_part(&mut segment.layout.parts, part.bytes, part.part_use);
        }
        segment.blocks.extend(blocks);
        self.expandable.insert(key, (index, end));
    }
}

/// Adds a part; free memory behind free memory is one part.
fn add_part(parts: &mut Vec<ExistingPart>, bytes: u64, part_use: PartUse) {
    if bytes == 0 {
        return;
    }
    match parts.last_mut() {
        Some(last) if last.part_use == PartUse::Free && part_use == PartUse::Free => last.bytes += bytes,
        _ => parts.push(ExistingPart { bytes, part_use }),
    }
}

/// Both halves of PyTorch's `MempoolId_t`.
pub(crate) fn pool_id(pool: u64) -> PoolId {
    (pool >> 32, pool & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use gpumemtrace_format::event::Detail;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(kind: EventKind, addr_mib: u64, mib: u64) -> Event {
        Event { addr: addr_mib * MIB, size: mib * MIB, ..Event::new(kind) }
    }

    fn state_of(segments: &[Event], blocks: &[(u64, u64)]) -> StartState {
        let mut collector = StartCollector::default();
        for event in segments {
            collector.add_segment(event);
        }
        for (number, (addr_mib, mib)) in (0..).zip(blocks) {
            let event = Event { addr: addr_mib * MIB, size: mib * MIB, ..Event::new(EventKind::BLOCK_ALLOC) };
            let detail = Some(Detail { requested_bytes: event.size - 1, stream: 0, pool: 0 });
            collector.add_block(&Event { detail, ..event }, RecordedBlock(number));
        }
        collector.finish().unwrap_or_default()
    }

    fn parts(segment: &StartSegment) -> Vec<(u64, char)> {
        let part = |part: &ExistingPart| {
            let letter = match part.part_use {
                PartUse::Block { .. } => 'b',
                PartUse::Free => 'f',
                PartUse::Unmapped => 'u',
            };
            (part.bytes / MIB, letter)
        };
        segment.layout.parts.iter().map(part).collect()
    }

    #[test]
    fn blocks_lie_where_they_lay() {
        let state = state_of(&[segment(EventKind::SEGMENT_ALLOC, 100, 20)], &[(102, 3), (105, 4), (119, 1)]);
        assert_eq!(parts(&state.segments[0]), [(2, 'f'), (3, 'b'), (4, 'b'), (10, 'f'), (1, 'b')]);
        assert_eq!((state.blocks, state.allocated_bytes, state.reserved_bytes), (3, 8 * MIB, 20 * MIB));
        assert_eq!(state.segments[0].blocks, [0, 1, 2].map(RecordedBlock));
    }

    #[test]
    fn pages_of_one_stream_and_size_are_one_segment() {
        let map = |addr_mib, mib| segment(EventKind::SEGMENT_MAP, addr_mib, mib);
        let state =
            state_of(&[map(100, 20), map(120, 20), map(160, 20), map(1000, 2)], &[(118, 4), (1001, 1)]);
        assert_eq!(
            parts(&state.segments[0]),
            [(18, 'f'), (4, 'b'), (18, 'f'), (20, 'u'), (20, 'f')],
            "{state:?}"
        );
        assert_eq!(parts(&state.segments[1]), [(1, 'f'), (1, 'b')], "small blocks have their own");
    }

    #[test]
    fn contradictions_are_left_out() {
        let two = [segment(EventKind::SEGMENT_ALLOC, 100, 20), segment(EventKind::SEGMENT_ALLOC, 110, 20)];
        let state = state_of(&two, &[(102, 3), (104, 2), (119, 2), (500, 1)]);
        assert_eq!(state.segments.len(), 1);
        assert_eq!(parts(&state.segments[0]), [(2, 'f'), (3, 'b'), (15, 'f')]);
        let wild = Event { addr: u64::MAX - 5, size: 4, ..Event::new(EventKind::SEGMENT_ALLOC) };
        assert_eq!(state_of(&[wild], &[]), StartState::default());
    }
}
