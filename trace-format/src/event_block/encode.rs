//! Rows into columns.
//!
//! Constraint: this runs beside the traced program, for each of its events, and a block may be many rounds of the rings long.
//! Consequence: rows are not kept until their block is full: what comes becomes bytes at once, [`CHUNK_ROWS`] rows at a time, in
//! buffers that are used again, with one look into a table for each allocation and what gives it back.

use super::expected::Expected;
use super::planes::Planes;
use super::{
    ADDR, AGE, API, AUX0, AUX1, COLUMNS, DEVICE, FLAGS, HAS_DETAIL, IN_FLIGHT, KIND, NATIVE, POOL, PYTHON,
    REQUESTED, RESULT, REUSE, RUNS, Role, SEQ, SIZE, STREAM, TIME, role, rounded,
};
use crate::event::{Detail, Event, EventKind, ThreadId};
use crate::wire::{put_varint, zigzag};

/// Rows that are encoded together.
const CHUNK_ROWS: usize = 128;
const FEWEST_SLOTS: usize = 1024;

/// A payload, and where what has statistics of its own begins.
#[derive(Debug, Default)]
pub struct Encoded {
    /// The payload.
    pub payload: Vec<u8>,
    /// Ascending offsets in it.
    pub cuts: Vec<usize>,
}

/// Encodes rows, their times in units of 2^`shift` ns (rounded down). Callers group rows by thread, in the order of each thread.
pub fn encode(events: &[Event], shift: u8) -> Encoded {
    let mut encoder = Encoder::new(shift);
    encoder.push(events);
    encoder.finish()
}

/// A block in the making.
pub struct Encoder {
    shift: u8,
    rows: usize,
    run: Option<(ThreadId, u64)>,
    last: Expected,
    allocations: Allocations,
    kinds: Vec<u8>,
    devices: Vec<u8>,
    apis: Vec<u8>,
    flags: Vec<u8>,
    columns: Vec<Planes>,
    chunk: Chunk,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Encoder {
    /// One without rows, for times in units of 2^`shift` ns.
    pub fn new(shift: u8) -> Self {
        Self {
            shift,
            rows: 0,
            run: None,
            last: Expected::new(),
            allocations: Allocations::new(),
            kinds: Vec::new(),
            devices: Vec::new(),
            apis: Vec::new(),
            flags: Vec::new(),
            columns: (0..COLUMNS).map(|_| Planes::default()).collect(),
            chunk: Chunk { numbers: vec![[0; CHUNK_ROWS]; COLUMNS], counts: [0; COLUMNS] },
        }
    }

    /// How many it has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// More of them.
    pub fn push(&mut self, events: &[Event]) {
        self.rows += events.len();
        for events in events.chunks(CHUNK_ROWS) {
            for event in events {
                self.row(event);
            }
            for (column, (numbers, count)) in
                self.columns.iter_mut().zip(self.chunk.numbers.iter().zip(&mut self.chunk.counts))
            {
                column.put_all(&numbers[..*count]);
                *count = 0;
            }
        }
    }

    #[inline]
    fn row(&mut self, event: &Event) {
        self.in_run(event.thread);
        let (last, chunk) = (&mut self.last, &mut self.chunk);
        self.kinds.push(event.kind.0);
        self.apis.push(event.api.0);
        let in_flight = if event.in_flight { IN_FLIGHT } else { 0 };
        let has_detail = if event.detail.is_some() { HAS_DETAIL } else { 0 };
        self.flags.push((event.flags & !(IN_FLIGHT | HAS_DETAIL)) | in_flight | has_detail);
        let (mut age, mut reuse) = (0, 0);
        match role(event.kind) {
            Role::Allocates => {
                reuse = self.allocations.note(event);
                chunk.put(REUSE, reuse);
            }
            Role::GivesBack(of) => {
                age = self.allocations.give_back(event, of);
                chunk.put(AGE, age);
            }
            Role::Other => {}
        }
        if age == 0 {
            self.devices.push(event.device);
            if reuse == 0 {
                chunk.put_delta(ADDR, last.addr(event.kind), event.addr);
                last.learn_addr(event.kind, event.addr);
            }
            if let Some(detail) = event.detail {
                chunk.put(REQUESTED, detail.requested_bytes);
                chunk.put_delta(STREAM, last.stream, detail.stream);
                chunk.put_delta(POOL, last.pool, detail.pool);
                (last.stream, last.pool) = (detail.stream, detail.pool);
            }
        }
        if age == 0 || event.kind != EventKind::BLOCK_FREE {
            match event.detail {
                Some(detail) => chunk.put_delta(SIZE, rounded(detail.requested_bytes), event.size),
                None => chunk.put(SIZE, event.size),
            }
        }
        let units = event.time_ns >> self.shift;
        chunk.put_delta(SEQ, last.seq.wrapping_add(1), event.seq);
        chunk.put_delta(TIME, last.units, units);
        (last.seq, last.units) = (event.seq, units);
        let [aux0, aux1] = last.aux(event.kind, event.device, event.size);
        chunk.put_delta(AUX0, aux0, event.aux[0]);
        chunk.put_delta(AUX1, aux1, event.aux[1]);
        last.learn_aux(event.kind, event.device, event.aux);
        chunk.put(RESULT, u64::from(event.result));
        chunk.put(PYTHON, last.python.tell(event.python_stack.0));
        chunk.put(NATIVE, last.native.tell(event.native_stack.0));
    }

    #[inline]
    fn in_run(&mut self, thread: ThreadId) {
        if let Some((of, rows)) = &mut self.run
            && *of == thread
        {
            *rows += 1;
            return;
        }
        self.end_run();
        self.run = Some((thread, 1));
    }

    fn end_run(&mut self) {
        if let Some((thread, rows)) = self.run.take() {
            self.columns[usize::from(RUNS)].put_all(&[u64::from(thread.0), rows]);
        }
    }

    /// The block; the next one begins.
    pub fn finish(&mut self) -> Encoded {
        self.end_run();
        let mut out = Encoded::default();
        put_varint(&mut out.payload, self.rows as u64);
        out.payload.push(self.shift);
        for (id, column) in (0..).zip(&mut self.columns) {
            let bytes = match id {
                KIND => Some(&mut self.kinds),
                DEVICE => Some(&mut self.devices),
                API => Some(&mut self.apis),
                FLAGS => Some(&mut self.flags),
                _ => None,
            };
            if let Some(bytes) = bytes {
                out.put_bytes(id, bytes);
                bytes.clear();
            } else {
                out.put_numbers(id, column);
                column.clear();
            }
        }
        self.rows = 0;
        self.last = Expected::new();
        self.allocations.clear();
        out
    }
}

impl Encoded {
    fn put_bytes(&mut self, id: u8, bytes: &[u8]) {
        // Rows are never believed before there are so many bytes.
        if id != KIND && bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        self.payload.push(id);
        put_varint(&mut self.payload, bytes.len() as u64);
        self.cuts.push(self.payload.len());
        self.payload.extend_from_slice(bytes);
        self.cuts.push(self.payload.len());
    }

    fn put_numbers(&mut self, id: u8, numbers: &Planes) {
        if numbers.is_zero() {
            return;
        }
        self.payload.push(id);
        numbers.put_into(&mut self.payload, &mut self.cuts);
        self.cuts.push(self.payload.len());
    }
}

/// Numbers of a few rows, by column.
struct Chunk {
    numbers: Vec<[u64; CHUNK_ROWS]>,
    counts: [usize; COLUMNS],
}

impl Chunk {
    #[inline]
    fn put(&mut self, column: u8, value: u64) {
        let count = &mut self.counts[usize::from(column)];
        self.numbers[usize::from(column)][*count] = value;
        *count += 1;
    }

    #[inline]
    fn put_delta(&mut self, column: u8, from: u64, value: u64) {
        self.put(column, zigzag(value.wrapping_sub(from) as i64));
    }
}

/// What a row that gives back need not repeat.
#[derive(Clone, Copy)]
struct Allocation {
    addr: u64,
    size: u64,
    /// Number of its detail, from 1; 0 if it has none. Apart, because many have none and this is looked up at random.
    detail: u32,
    /// How many were given back when this was; 0 if it was not.
    given_back: u32,
    kind: EventKind,
    device: u8,
}

/// The block's allocations.
struct Allocations {
    all: Vec<Allocation>,
    given_back: u32,
    details: Vec<Detail>,
    /// By address: number of the allocation, from 1. A power of two slots, at most half of them taken.
    slots: Vec<u32>,
}

impl Allocations {
    fn new() -> Self {
        Self { all: Vec::new(), given_back: 0, details: Vec::new(), slots: vec![0; FEWEST_SLOTS] }
    }

    fn clear(&mut self) {
        self.all.clear();
        self.given_back = 0;
        self.details.clear();
        self.slots.fill(0);
    }

    /// The slot of the last allocation of this kind at this address, or where it belongs.
    #[inline]
    fn slot(&self, kind: EventKind, addr: u64) -> usize {
        let most = self.slots.len() - 1;
        let mut at = (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & most;
        while let Some(number) = self.slots[at].checked_sub(1) {
            let found = &self.all[number as usize];
            if found.addr == addr && found.kind == kind {
                break;
            }
            at = (at + 1) & most;
        }
        at
    }

    /// Notes an allocation; returns how many were given back since what lay at its address before was, that one included. 0 if
    /// nothing is known of its address.
    #[inline]
    fn note(&mut self, event: &Event) -> u64 {
        let Event { addr, size, kind, device, .. } = *event;
        self.details.extend(event.detail);
        let detail = if event.detail.is_some() { self.details.len() as u32 } else { 0 };
        self.all.push(Allocation { addr, size, detail, given_back: 0, kind, device });
        if 2 * self.all.len() > self.slots.len() {
            self.grow();
        }
        let slot = self.slot(kind, addr);
        let before = std::mem::replace(&mut self.slots[slot], self.all.len() as u32);
        let given_back = before.checked_sub(1).map_or(0, |number| self.all[number as usize].given_back);
        if given_back > 0 { u64::from(self.given_back - given_back) + 1 } else { 0 }
    }

    #[cold]
    fn grow(&mut self) {
        self.slots = vec![0; 2 * self.slots.len()];
        for number in 0..self.all.len() - 1 {
            let Allocation { kind, addr, .. } = self.all[number];
            let slot = self.slot(kind, addr);
            self.slots[slot] = number as u32 + 1;
        }
    }

    /// How many allocations ago the one was made that this gives back, if it says nothing else of it; else 0.
    #[inline]
    fn give_back(&mut self, event: &Event, of: EventKind) -> u64 {
        let number = self.slots[self.slot(of, event.addr)] as usize;
        let count = self.all.len();
        let Some(made) = number.checked_sub(1).and_then(|at| self.all.get_mut(at)) else { return 0 };
        let is_same = made.device == event.device
            && (of != EventKind::BLOCK_ALLOC || made.size == event.size)
            && match event.detail {
                Some(detail) => made.detail > 0 && self.details[made.detail as usize - 1] == detail,
                None => made.detail == 0,
            };
        if !is_same {
            return 0;
        }
        self.given_back += 1;
        made.given_back = self.given_back;
        (count - number) as u64 + 1
    }
}
