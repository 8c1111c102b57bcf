//! An allocator that is too slow to be wrong: each segment is a plain list of pieces, and every request looks through all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::simulated_device::{Call, Device};
use crate::cache::stats::Figure;
use crate::cache::{Cache, EventId, Half, PoolId, block_bytes, half_of, is_worth_splitting, segment_bytes};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Free,
    Live { requested_bytes: u64, used_by: Vec<u64> },
    Waiting { requested_bytes: u64, unmarked: Vec<u64>, events: Vec<EventId> },
}

#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    pub(super) what: Use,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) stream: u64,
    pub(super) pool: PoolId,
    pub(super) half: Half,
    pub(super) pieces: Vec<Piece>,
}

impl Segment {
    pub(super) fn free(&mut self, addr: u64) {
        let at = self.pieces.iter().position(|piece| piece.addr == addr).expect("a piece");
        self.pieces[at].what = Use::Free;
        for at in [at + 1, at] {
            if at > 0
                && at < self.pieces.len()
                && [at - 1, at].iter().all(|at| self.pieces[*at].what == Use::Free)
            {
                let second = self.pieces.remove(at);
                self.pieces[at - 1].bytes += second.bytes;
            }
        }
    }

    fn is_free(&self) -> bool {
        self.pieces.len() == 1 && self.pieces[0].what == Use::Free
    }
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) segments: BTreeMap<u64, Segment>,
    /// Of blocks that were given back during a capture, in that order.
    pub(super) apart: Vec<u64>,
    /// Users of each private pool.
    pub(super) users: BTreeMap<PoolId, u32>,
    pub(super) capture: Option<(PoolId, u64)>,
}

impl Model {
    pub(super) fn piece(&mut self, addr: u64) -> &mut Piece {
        let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
        segment.pieces.iter_mut().find(|piece| piece.addr == addr).expect("a piece")
    }

    /// The marks that the cache made must be those of the blocks that wait for one, in order.
    fn take_marks(&mut self, addrs: &[u64], calls: &mut VecDeque<Call>) {
        for addr in addrs {
            let Use::Waiting { unmarked, events, .. } = &mut self.piece(*addr).what else { panic!("waits") };
            for stream in unmarked.drain(..) {
                match calls.pop_front() {
                    Some(Call::Mark(marked, event)) if marked == stream => events.push(event),
                    call => panic!("an event on stream {stream} was due, not {call:?}"),
                }
            }
        }
    }

    pub(super) fn mark_apart(&mut self, calls: &mut VecDeque<Call>) {
        let apart = std::mem::take(&mut self.apart);
        self.take_marks(&apart, calls);
    }

    pub(super) fn collect(&mut self, not_done: &BTreeSet<u64>) {
        let done = |piece: &&Piece| match &piece.what {
            Use::Waiting { events, unmarked, .. } => {
                unmarked.is_empty() && events.iter().all(|event| !not_done.contains(&event.0))
            }
            _ => false,
        };
        for segment in self.segments.values_mut() {
            let free: Vec<u64> = segment.pieces.iter().filter(done).map(|piece| piece.addr).collect();
            for addr in free {
                segment.free(addr);
            }
        }
    }

    pub(super) fn release(&mut self, calls: &mut VecDeque<Call>) {
        // All events are waited for.
        self.mark_apart(calls);
        self.collect(&BTreeSet::new());
        let mut gone = BTreeSet::new();
        while let Some(Call::Free(addr)) = calls.front() {
            gone.insert(*addr);
            calls.pop_front();
        }
        let users = &self.users;
        let goes =
            |segment: &Segment| segment.is_free() && users.get(&segment.pool).copied().unwrap_or(0) == 0;
        let due: BTreeSet<u64> =
            self.segments.iter().filter(|(_, segment)| goes(segment)).map(|(addr, _)| *addr).collect();
        assert_eq!(gone, due, "the segments that go back to the driver");
        self.segments.retain(|addr, _| !due.contains(addr));
    }

    /// What must have happened at a request, before which these events were not done: the address, or none.
    pub(super) fn alloc(
        &mut self,
        not_done: &BTreeSet<u64>,
        requested_bytes: u64,
        stream: u64,
        calls: &mut VecDeque<Call>,
    ) -> Option<u64> {
        if self.capture.is_none() {
            // An event that is recorded now is not done.
            self.collect(not_done);
            self.mark_apart(calls);
        }
        let bytes = block_bytes(requested_bytes)?;
        let (half, segment_size) = (half_of(bytes), segment_bytes(bytes));
        let pool = self.capture.filter(|(_, of)| *of == stream).map_or((0, 0), |(pool, _)| pool);
        let of_this =
            |segment: &&Segment| (segment.stream, segment.pool, segment.half) == (stream, pool, half);
        let pieces = self.segments.values().filter(of_this).flat_map(|segment| &segment.pieces);
        let fits = pieces.filter(|piece| piece.what == Use::Free && piece.bytes >= bytes);
        let best = fits.map(|piece| (piece.bytes, piece.addr)).min().map(|(_, addr)| addr);
        let addr = best.or_else(|| {
            if !matches!(calls.front(), Some(Call::Alloc(..))) && self.capture.is_none() {
                self.release(calls);
            }
            let Some(Call::Alloc(addr, given)) = calls.pop_front() else { return None };
            assert_eq!(given, segment_size);
            let piece = Piece { addr, bytes: given, what: Use::Free };
            self.segments.insert(addr, Segment { stream, pool, half, pieces: vec![piece] });
            Some(addr)
        })?;
        let (_, segment) = self.segments.range_mut(..=addr).next_back()?;
        let at = segment.pieces.iter().position(|piece| piece.addr == addr)?;
        let rest = segment.pieces[at].bytes - bytes;
        if is_worth_splitting(half, rest) {
            segment.pieces.insert(at + 1, Piece { addr: addr + bytes, bytes: rest, what: Use::Free });
            segment.pieces[at].bytes = bytes;
        }
        segment.pieces[at].what = Use::Live { requested_bytes, used_by: Vec::new() };
        Some(addr)
    }

    pub(super) fn free(&mut self, addr: u64, calls: &mut VecDeque<Call>) {
        let capturing = self.capture.is_some();
        let piece = self.piece(addr);
        let Use::Live { requested_bytes, used_by } = piece.what.clone() else { panic!("live") };
        if used_by.is_empty() {
            let (_, segment) = self.segments.range_mut(..=addr).next_back().expect("a segment");
            return segment.free(addr);
        }
        piece.what = Use::Waiting { requested_bytes, unmarked: used_by, events: Vec::new() };
        if capturing { self.apart.push(addr) } else { self.take_marks(&[addr], calls) }
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = (&Segment, &Piece)> {
        self.segments.values().flat_map(|segment| segment.pieces.iter().map(move |piece| (segment, piece)))
    }

    /// All sums, counted again from the pieces.
    pub(super) fn check(&self, cache: &Cache<Device>) {
        let mut sums = [0u64; 9];
        for (segment, piece) in self.pieces() {
            let mut add = |figure: Figure, amount| sums[figure as usize] += amount;
            match &piece.what {
                Use::Free if segment.pieces.len() > 1 => {
                    add(Figure::InactiveSplit, 1);
                    add(Figure::InactiveSplitBytes, piece.bytes);
                }
                Use::Free => {}
                Use::Live { requested_bytes, .. } | Use::Waiting { requested_bytes, .. } => {
                    add(Figure::Active, 1);
                    add(Figure::ActiveBytes, piece.bytes);
                    add(Figure::RequestedBytes, *requested_bytes);
                }
            }
            if let Use::Live { .. } = piece.what {
                add(Figure::Allocation, 1);
                add(Figure::AllocatedBytes, piece.bytes);
            }
        }
        sums[Figure::Segment as usize] = self.segments.len() as u64;
        sums[Figure::ReservedBytes as usize] = cache.host.used_bytes;
        let figures = [
            Figure::Allocation,
            Figure::Segment,
            Figure::Active,
            Figure::InactiveSplit,
            Figure::AllocatedBytes,
            Figure::ReservedBytes,
            Figure::ActiveBytes,
            Figure::InactiveSplitBytes,
            Figure::RequestedBytes,
        ];
        for figure in figures {
            assert_eq!(cache.stats.current(figure), sums[figure as usize], "{figure:?}");
        }
    }
}
