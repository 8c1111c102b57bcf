//! A small caching allocator that keeps its whole history: what is true of a snapshot of it.

use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 * MIB;
const LARGE_SEGMENT: u64 = 20 * MIB;

/// A piece of a segment.
#[derive(Clone, Debug)]
struct Piece {
    addr: u64,
    bytes: u64,
    requested: u64,
    state: PieceState,
    line: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PieceState {
    Free,
    Live,
    Pending,
}

#[derive(Clone, Debug)]
struct Segment {
    addr: u64,
    bytes: u64,
    is_small: bool,
    is_expandable: bool,
    stream: u64,
    pieces: Vec<Piece>,
}

/// The totals after an event, which a trace must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Totals {
    pub(crate) live: u64,
    pub(crate) reserved: u64,
}

/// One event, and what is true after it.
#[derive(Clone, Debug)]
pub(crate) struct ModelEvent {
    pub(crate) json: Value,
    pub(crate) totals: Totals,
    /// The size of the block; 0 for segments.
    pub(crate) bytes: u64,
}

/// The allocator and its history.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocatorModel {
    segments: Vec<Segment>,
    pub(crate) events: Vec<ModelEvent>,
    pub(crate) is_expandable: bool,
    next_addr: u64,
    time_us: u64,
}

impl AllocatorModel {
    pub(crate) fn new(is_expandable: bool) -> Self {
        Self { is_expandable, next_addr: 0x7f00_0000_0000, time_us: 1_700_000_000_000_000, ..Self::default() }
    }

    pub(crate) fn totals(&self) -> Totals {
        let pieces = self.segments.iter().flat_map(|segment| &segment.pieces);
        let live = pieces.filter(|piece| piece.state == PieceState::Live).map(|piece| piece.bytes).sum();
        Totals { live, reserved: self.segments.iter().map(|segment| segment.bytes).sum() }
    }

    fn record(&mut self, action: &str, (addr, size, stream): (u64, u64, u64), bytes: u64, line: u32) {
        self.time_us += 3;
        let frames = match line {
            0 => json!([]),
            line => json!([
                { "filename": "/home/me/train.py", "line": line, "name": "step" },
                { "filename": "/home/me/train.py", "line": 7, "name": "<module>" },
            ]),
        };
        let json = json!({
            "action": action, "addr": addr, "size": size, "stream": stream, "time_us": self.time_us,
            "frames": frames, "pool_id": [0, 0], "compile_context": "N/A",
        });
        let totals = self.totals();
        self.events.push(ModelEvent { json, totals, bytes });
    }

    /// Allocates a block in the free piece that `pick` chooses, or in a new segment.
    pub(crate) fn allocate(&mut self, requested: u64, stream: u64, pick: usize, line: u32) {
        let rounded = requested.max(1).next_multiple_of(512);
        let is_small = rounded <= MIB;
        let fits: Vec<(usize, usize)> = self
            .segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| segment.is_small == is_small && segment.stream == stream)
            .flat_map(|(at, segment)| {
                segment.pieces.iter().enumerate().map(move |(index, piece)| (at, index, piece))
            })
            .filter(|(_, _, piece)| piece.state == PieceState::Free && piece.bytes >= rounded)
            .map(|(at, index, _)| (at, index))
            .collect();
        let (at, index) = match fits.len() {
            0 => (self.add_segment(rounded, is_small, stream, line), usize::MAX),
            count => fits[pick % count],
        };
        let segment = &mut self.segments[at];
        let index = if index == usize::MAX { segment.pieces.len() - 1 } else { index };
        let is_expandable = segment.is_expandable;
        let piece = &mut segment.pieces[index];
        let rest = piece.bytes - rounded;
        let splits = if is_small || is_expandable { rest >= 512 } else { rest > MIB };
        let free = splits.then(|| Piece {
            addr: piece.addr + rounded,
            bytes: rest,
            requested: 0,
            state: PieceState::Free,
            line: 0,
        });
        if splits {
            piece.bytes = rounded;
        }
        (piece.requested, piece.state, piece.line) = (requested, PieceState::Live, line);
        let (addr, bytes) = (piece.addr, piece.bytes);
        if let Some(free) = free {
            segment.pieces.insert(index + 1, free);
        }
        self.record("alloc", (addr, requested, stream), bytes, line);
    }

    fn add_segment(&mut self, rounded: u64, is_small: bool, stream: u64, line: u32) -> usize {
        let unit = if is_small { SMALL_SEGMENT } else { LARGE_SEGMENT };
        let bytes = rounded.next_multiple_of(unit);
        let addr = self.next_addr;
        self.next_addr += bytes + 64 * MIB;
        let free = Piece { addr, bytes, requested: 0, state: PieceState::Free, line: 0 };
        let is_expandable = self.is_expandable;
        self.segments.push(Segment { addr, bytes, is_small, is_expandable, stream, pieces: vec![free] });
        let action = if is_expandable { "segment_map" } else { "segment_alloc" };
        self.record(action, (addr, bytes, stream), 0, line);
        self.segments.len() - 1
    }

    fn pieces_in(&self, state: PieceState) -> Vec<(usize, usize)> {
        let all = self.segments.iter().enumerate();
        let all = all.flat_map(|(at, segment)| {
            segment.pieces.iter().enumerate().map(move |(index, piece)| (at, index, piece.state))
        });
        all.filter(|(_, _, is)| *is == state).map(|(at, index, _)| (at, index)).collect()
    }

    /// Frees a live block; with `waits`, another stream still uses it.
    pub(crate) fn free(&mut self, pick: usize, waits: bool) {
        let live = self.pieces_in(PieceState::Live);
        let Some((at, index)) = (!live.is_empty()).then(|| live[pick % live.len()]) else { return };
        let piece = &mut self.segments[at].pieces[index];
        piece.state = PieceState::Pending;
        let (addr, requested, bytes) = (piece.addr, piece.requested, piece.bytes);
        let stream = self.segments[at].stream;
        self.record("free_requested", (addr, requested, stream), bytes, 0);
        if !waits {
            self.complete_at((at, index));
        }
    }

    /// Completes a pending free.
    pub(crate) fn complete(&mut self, pick: usize) {
        let pending = self.pieces_in(PieceState::Pending);
        if !pending.is_empty() {
            self.complete_at(pending[pick % pending.len()]);
        }
    }

    fn complete_at(&mut self, (at, index): (usize, usize)) {
        let segment = &mut self.segments[at];
        let piece = segment.pieces[index].clone();
        segment.pieces[index].state = PieceState::Free;
        let mut index = index;
        for next in [index + 1, index] {
            let free = |piece: Option<&Piece>| piece.is_some_and(|piece| piece.state == PieceState::Free);
            if next > 0 && free(segment.pieces.get(next)) && free(segment.pieces.get(next - 1)) {
                let merged = segment.pieces.remove(next);
                segment.pieces[next - 1].bytes += merged.bytes;
                index = next - 1;
            }
        }
        let _ = index;
        let stream = segment.stream;
        self.record("free_completed", (piece.addr, piece.requested, stream), piece.bytes, 0);
    }

    /// Returns all free segments to the driver.
    pub(crate) fn empty_cache(&mut self) {
        let is_free =
            |segment: &Segment| segment.pieces.len() == 1 && segment.pieces[0].state == PieceState::Free;
        while let Some(at) = self.segments.iter().position(is_free) {
            let segment = self.segments.remove(at);
            let action = if segment.is_expandable { "segment_unmap" } else { "segment_free" };
            self.record(action, (segment.addr, segment.bytes, segment.stream), 0, 0);
        }
    }

    /// The snapshot with the last `events` events.
    pub(crate) fn snapshot(&self, events: usize) -> Value {
        let kept = &self.events[self.events.len().saturating_sub(events)..];
        let segments = self.segments.iter().map(|segment| {
            let sum = |of: &dyn Fn(&Piece) -> u64| segment.pieces.iter().map(of).sum::<u64>();
            let is = |piece: &Piece, states: &[PieceState]| states.contains(&piece.state);
            let blocks: Vec<Value> = segment.pieces.iter().map(|piece| {
                let state = match piece.state {
                    PieceState::Free => "inactive",
                    PieceState::Live => "active_allocated",
                    PieceState::Pending => "active_pending_free",
                };
                let frames = match (piece.state, piece.line) {
                    (PieceState::Free, _) | (_, 0) => json!([]),
                    (_, line) => json!([
                        { "filename": "/home/me/train.py", "line": line, "name": "step" },
                        { "filename": "/home/me/train.py", "line": 7, "name": "<module>" },
                    ]),
                };
                json!({ "address": piece.addr, "size": piece.bytes, "requested_size": piece.requested, "state": state, "frames": frames })
            }).collect();
            json!({
                "device": 0, "address": segment.addr, "total_size": segment.bytes, "stream": segment.stream,
                "allocated_size": sum(&|piece| if is(piece, &[PieceState::Live]) { piece.bytes } else { 0 }),
                "segment_type": if segment.is_small { "small" } else { "large" }, "segment_pool_id": [0, 0],
                "is_expandable": segment.is_expandable, "frames": [], "blocks": blocks,
            })
        });
        json!({
            "segments": segments.collect::<Vec<Value>>(),
            "device_traces": [kept.iter().map(|event| event.json.clone()).collect::<Vec<Value>>(), []],
            "allocator_settings": { "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": self.is_expandable },
            "external_annotations": [],
        })
    }
}
