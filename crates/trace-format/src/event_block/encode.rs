//! Rows into columns.
//!
//! This runs beside the traced program for each of its events, and a block holds the events of many
//! drains of the rings. So rows are not kept until the block is full: they become bytes at once,
//! [`BATCH_ROWS`] at a time, in buffers that are reused. An allocation and its free take one table
//! lookup each.

use super::allocations::AllocationTable;
use super::planes::PlaneWriter;
use super::row_predictor::RowPredictor;
use super::{
    ADDR, AGE, API, AUX0, AUX1, COLUMNS, DEVICE, FLAGS, HAS_DETAIL, IN_FLIGHT, KIND, NATIVE, POOL, PYTHON,
    Pairing, REQUESTED, RESULT, REUSE, RUNS, SEQ, SIZE, STREAM, TIME, pairing, round_up,
};
use crate::event::{Event, EventKind};
use crate::ids::ThreadId;
use crate::wire::{put_varint, zigzag};

/// Rows that are encoded together.
const BATCH_ROWS: usize = 128;

/// A payload, and the offsets where its statistics change.
#[derive(Debug, Default)]
pub struct EncodedEvents {
    /// The payload of an EVENTS block.
    pub payload: Vec<u8>,
    /// Ascending offsets in the payload, for [`crate::block::BlockPacker::encode_block`].
    pub split_offsets: Vec<usize>,
}

/// Encodes events with times in units of 2^`shift` ns, rounded down. Callers group events by
/// thread, in the order of each thread.
#[doc(hidden)]
pub fn encode(events: &[Event], shift: u8) -> EncodedEvents {
    let mut encoder = EventEncoder::new(shift);
    encoder.push(events);
    encoder.finish()
}

/// Encodes one block after the other.
pub struct EventEncoder {
    shift: u8,
    rows: usize,
    run: Option<(ThreadId, u64)>,
    last: RowPredictor,
    allocations: AllocationTable,
    kinds: Vec<u8>,
    devices: Vec<u8>,
    apis: Vec<u8>,
    flags: Vec<u8>,
    columns: Vec<PlaneWriter>,
    batch: ColumnBatch,
}

impl std::fmt::Debug for EventEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventEncoder").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl EventEncoder {
    /// An empty block with times in units of 2^`shift` ns.
    pub fn new(shift: u8) -> Self {
        Self {
            shift,
            rows: 0,
            run: None,
            last: RowPredictor::new(),
            allocations: AllocationTable::new(),
            kinds: Vec::new(),
            devices: Vec::new(),
            apis: Vec::new(),
            flags: Vec::new(),
            columns: (0..COLUMNS).map(|_| PlaneWriter::default()).collect(),
            batch: ColumnBatch { numbers: vec![[0; BATCH_ROWS]; COLUMNS], counts: [0; COLUMNS] },
        }
    }

    /// Number of events in the block so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Appends events to the block.
    pub fn push(&mut self, events: &[Event]) {
        self.rows += events.len();
        for events in events.chunks(BATCH_ROWS) {
            for event in events {
                self.push_row(event);
            }
            for (column, (numbers, count)) in
                self.columns.iter_mut().zip(self.batch.numbers.iter().zip(&mut self.batch.counts))
            {
                column.put_all(&numbers[..*count]);
                *count = 0;
            }
        }
    }

    #[inline]
    fn push_row(&mut self, event: &Event) {
        self.extend_run(event.thread);
        let (last, batch) = (&mut self.last, &mut self.batch);
        self.kinds.push(event.kind.0);
        self.apis.push(event.api.0);
        let in_flight = if event.in_flight { IN_FLIGHT } else { 0 };
        let has_detail = if event.detail.is_some() { HAS_DETAIL } else { 0 };
        self.flags.push((event.flags & !(IN_FLIGHT | HAS_DETAIL)) | in_flight | has_detail);
        let (mut age, mut reuse) = (0, 0);
        match pairing(event.kind) {
            Pairing::Allocates => {
                reuse = self.allocations.allocate(event);
                batch.put(REUSE, reuse);
            }
            Pairing::Frees(of) => {
                age = self.allocations.free(event, of);
                batch.put(AGE, age);
            }
            Pairing::Neither => {}
        }
        if age == 0 {
            self.devices.push(event.device);
            if reuse == 0 {
                batch.put_delta(ADDR, last.predict_addr(event.kind), event.addr);
                last.update_addr(event.kind, event.addr);
            }
            if let Some(detail) = event.detail {
                batch.put(REQUESTED, detail.requested_bytes);
                batch.put_delta(STREAM, last.stream, detail.stream);
                batch.put_delta(POOL, last.pool, detail.pool);
                (last.stream, last.pool) = (detail.stream, detail.pool);
            }
        }
        if age == 0 || event.kind != EventKind::BLOCK_FREE {
            match event.detail {
                Some(detail) => batch.put_delta(SIZE, round_up(detail.requested_bytes), event.size),
                None => batch.put(SIZE, event.size),
            }
        }
        let units = event.time_ns >> self.shift;
        batch.put_delta(SEQ, last.seq.wrapping_add(1), event.seq);
        batch.put_delta(TIME, last.units, units);
        (last.seq, last.units) = (event.seq, units);
        let [aux0, aux1] = last.aux.predict(event.kind, event.device, event.size);
        batch.put_delta(AUX0, aux0, event.aux[0]);
        batch.put_delta(AUX1, aux1, event.aux[1]);
        last.aux.update(event.kind, event.device, event.aux);
        batch.put(RESULT, u64::from(event.result));
        batch.put(PYTHON, last.python.encode(event.python_stack.0));
        batch.put(NATIVE, last.native.encode(event.native_stack.0));
    }

    #[inline]
    fn extend_run(&mut self, thread: ThreadId) {
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

    /// Returns the block and begins the next one.
    pub fn finish(&mut self) -> EncodedEvents {
        self.end_run();
        let mut out = EncodedEvents::default();
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
        self.last = RowPredictor::new();
        self.allocations.clear();
        out
    }
}

impl EncodedEvents {
    fn put_bytes(&mut self, id: u8, bytes: &[u8]) {
        // KIND is always there: it is what a reader checks the number of rows against.
        if id != KIND && bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        self.payload.push(id);
        put_varint(&mut self.payload, bytes.len() as u64);
        self.split_offsets.push(self.payload.len());
        self.payload.extend_from_slice(bytes);
        self.split_offsets.push(self.payload.len());
    }

    fn put_numbers(&mut self, id: u8, numbers: &PlaneWriter) {
        if numbers.is_zero() {
            return;
        }
        self.payload.push(id);
        numbers.append_to(&mut self.payload, &mut self.split_offsets);
        self.split_offsets.push(self.payload.len());
    }
}

/// The numbers of a few rows, by column.
struct ColumnBatch {
    numbers: Vec<[u64; BATCH_ROWS]>,
    counts: [usize; COLUMNS],
}

impl ColumnBatch {
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
