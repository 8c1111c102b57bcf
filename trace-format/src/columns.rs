//! Many events in few bytes: the payload of an EVENTS block.
//!
//! Constraint: blocks must decode on their own (one may be lost) and fields of one kind lie close together for zstd.
//! Consequence: one byte stream per field ("column"), predictors that start from zero in every block, and rows that are
//! grouped by thread, because a thread's neighbours predict each other.
//!
//! ```text
//! payload = rows:varint  column*
//! column  = id:u8  length:varint  bytes            unknown ids are skipped; a missing known id is an error
//! RUNS    = (thread:varint  rows:varint)*          thread of each group of rows
//! KIND, DEVICE, API, FLAGS = one byte a row        flags bit 7: in flight; bit 6: has a detail
//! RESULT  = varint a row
//! SEQ     = delta from (previous row's seq + 1)    delta: zigzag varint of the wrapping difference
//! TIME    = delta from the previous row's time
//! ADDR    = delta from the previous row's addr
//! SIZE    = varint a row
//! AUX0    = delta from its prediction              block_alloc / block_free: the device's last aux0 plus / minus size;
//! AUX1    = delta from its prediction              the device's last aux1; all other kinds: the last value of that kind
//! PYTHON, NATIVE = varint a row                    node ids
//! REQUESTED, STREAM, POOL = a row for each detail; all three or none are there
//!           REQUESTED = delta from what was last asked for at an address of the same slot (addr / 512 mod 4096), or from
//!           SIZE where there was none; STREAM, POOL = delta from the row before
//! ```
//! All "previous" and "last" values start as 0, the previous seq as -1 (so that the first prediction is 0).

use crate::defs::NodeId;
use crate::event::{ApiId, Detail, Event, EventKind, ThreadId};
use crate::wire::{Cursor, WireError, add_delta, put_bytes, put_delta, put_varint};

/// Most rows one block may have.
pub const MAX_ROWS: usize = 1 << 20;

const RUNS: u8 = 0;
const KIND: u8 = 1;
const DEVICE: u8 = 2;
const API: u8 = 3;
const FLAGS: u8 = 4;
const RESULT: u8 = 5;
const SEQ: u8 = 6;
const TIME: u8 = 7;
const ADDR: u8 = 8;
const SIZE: u8 = 9;
const AUX0: u8 = 10;
const AUX1: u8 = 11;
const PYTHON: u8 = 12;
const NATIVE: u8 = 13;
/// Columns that are always there.
const COLUMNS: usize = 14;
const REQUESTED: u8 = 14;
const STREAM: u8 = 15;
const POOL: u8 = 16;
/// These and those that are there only with details.
const ALL_COLUMNS: usize = 17;
/// Columns of varints, one a row.
const NUMBER_COLUMNS: usize = 9;
/// Rows that are decoded together.
const CHUNK_ROWS: usize = 128;

const IN_FLIGHT: u8 = 0x80;
const HAS_DETAIL: u8 = 0x40;

/// Encodes rows. Callers group rows by thread, in the order of each thread.
pub fn encode(events: &[Event]) -> Vec<u8> {
    let mut columns: [Vec<u8>; ALL_COLUMNS] = Default::default();
    for run in events.chunk_by(|a, b| a.thread == b.thread) {
        put_varint(&mut columns[RUNS as usize], u64::from(run[0].thread.0));
        put_varint(&mut columns[RUNS as usize], run.len() as u64);
    }
    let mut last = Predictor::new();
    for event in events {
        let mut put =
            |column: u8, from: u64, value: u64| put_delta(&mut columns[column as usize], from, value);
        put(SEQ, last.seq.wrapping_add(1), event.seq);
        put(TIME, last.time_ns, event.time_ns);
        put(ADDR, last.addr, event.addr);
        let [aux0, aux1] = last.aux(event.kind, event.device, event.size);
        put(AUX0, aux0, event.aux[0]);
        put(AUX1, aux1, event.aux[1]);
        if let Some(detail) = event.detail {
            put(REQUESTED, last.requested(event.addr, event.size), detail.requested_bytes);
            put(STREAM, last.detail.stream, detail.stream);
            put(POOL, last.detail.pool, detail.pool);
        }
        let mut put = |column: u8, value: u64| put_varint(&mut columns[column as usize], value);
        put(RESULT, u64::from(event.result));
        put(SIZE, event.size);
        put(PYTHON, u64::from(event.python_stack.0));
        put(NATIVE, u64::from(event.native_stack.0));
        columns[KIND as usize].push(event.kind.0);
        columns[DEVICE as usize].push(event.device);
        columns[API as usize].push(event.api.0);
        let in_flight = if event.in_flight { IN_FLIGHT } else { 0 };
        let has_detail = if event.detail.is_some() { HAS_DETAIL } else { 0 };
        columns[FLAGS as usize].push((event.flags & !(IN_FLIGHT | HAS_DETAIL)) | in_flight | has_detail);
        last.update(event);
    }
    let mut out = Vec::with_capacity(columns.iter().map(|column| column.len() + 6).sum());
    put_varint(&mut out, events.len() as u64);
    let is_there = |id: usize, column: &Vec<u8>| id < COLUMNS || !column.is_empty();
    for (id, column) in columns.iter().enumerate().filter(|(id, column)| is_there(*id, column)) {
        out.push(id as u8);
        put_bytes(&mut out, column);
    }
    out
}

/// Decodes [`encode`].
pub fn decode(payload: &[u8]) -> Result<Vec<Event>, WireError> {
    let mut cursor = Cursor::new(payload);
    let rows = cursor.count(COLUMNS - 1)?;
    if rows > MAX_ROWS {
        return Err(WireError::Limit);
    }
    let mut columns: [Option<Cursor<'_>>; ALL_COLUMNS] = [None; ALL_COLUMNS];
    while !cursor.is_empty() {
        let id = cursor.byte()?;
        let bytes = cursor.bytes()?;
        if let Some(column) = columns.get_mut(id as usize) {
            *column = Some(Cursor::new(bytes));
        }
    }
    let [
        Some(mut runs),
        Some(mut kind),
        Some(mut device),
        Some(mut api),
        Some(mut flags),
        Some(mut result),
        Some(mut seq),
        Some(mut time),
        Some(mut addr),
        Some(mut size),
        Some(mut aux0),
        Some(mut aux1),
        Some(mut python),
        Some(mut native),
        requested,
        stream,
        pool,
    ] = columns
    else {
        return Err(WireError::UnexpectedEnd);
    };
    let empty = Cursor::new(&[]);
    let [mut requested, mut stream, mut pool] = [requested, stream, pool].map(|c| c.unwrap_or(empty));
    let mut events = Vec::with_capacity(rows);
    let mut last = Predictor::new();
    let (mut thread, mut left_in_run) = (ThreadId(0), 0u64);
    // Column by column over a few rows at a time: one cursor stays in registers, and what it gives in the nearest cache.
    let mut numbers = [[0u64; CHUNK_ROWS]; NUMBER_COLUMNS];
    while events.len() < rows {
        let here = CHUNK_ROWS.min(rows - events.len());
        let [seqs, times, addrs, sizes, aux0s, aux1s, results, pythons, natives] = &mut numbers;
        // The predictor runs ahead here and is led through the same values again below.
        fill(&mut seq, &mut seqs[..here], |folded| {
            last.seq = add_delta(last.seq.wrapping_add(1), folded);
            last.seq
        })?;
        // Where the next of them begins is known only when one is read: three columns at once hide each other's waiting.
        let mut long = [time, addr, size];
        for ((time_ns, addr), size) in times.iter_mut().zip(addrs.iter_mut()).zip(sizes.iter_mut()).take(here)
        {
            last.time_ns = long[0].delta(last.time_ns)?;
            last.addr = long[1].delta(last.addr)?;
            (*time_ns, *addr, *size) = (last.time_ns, last.addr, long[2].varint()?);
        }
        [time, addr, size] = long;
        fill(&mut aux0, &mut aux0s[..here], |folded| folded)?;
        fill(&mut aux1, &mut aux1s[..here], |folded| folded)?;
        fill(&mut result, &mut results[..here], |value| value)?;
        fill(&mut python, &mut pythons[..here], |value| value)?;
        fill(&mut native, &mut natives[..here], |value| value)?;
        let (kinds, devices) = (kind.take(here)?, device.take(here)?);
        let (apis, all_flags) = (api.take(here)?, flags.take(here)?);
        for row in 0..here {
            while left_in_run == 0 {
                thread = ThreadId(runs.varint_u32()?);
                left_in_run = runs.varint()?;
            }
            left_in_run -= 1;
            let [seq, time_ns, addr, size, aux0, aux1, result, python, native] = [
                numbers[0][row],
                numbers[1][row],
                numbers[2][row],
                numbers[3][row],
                numbers[4][row],
                numbers[5][row],
                numbers[6][row],
                numbers[7][row],
                numbers[8][row],
            ];
            let node = |id| u32::try_from(id).map(NodeId).map_err(|_| WireError::Range);
            let mut event = Event {
                seq,
                time_ns,
                thread,
                kind: EventKind(kinds[row]),
                device: devices[row],
                api: ApiId(apis[row]),
                flags: all_flags[row] & !(IN_FLIGHT | HAS_DETAIL),
                result: u16::try_from(result).map_err(|_| WireError::Range)?,
                in_flight: all_flags[row] & IN_FLIGHT != 0,
                addr,
                size,
                aux: [0; 2],
                python_stack: node(python)?,
                native_stack: node(native)?,
                detail: None,
            };
            if all_flags[row] & HAS_DETAIL != 0 {
                event.detail = Some(Detail {
                    requested_bytes: requested.delta(last.requested(addr, size))?,
                    stream: stream.delta(last.detail.stream)?,
                    pool: pool.delta(last.detail.pool)?,
                });
            }
            let predicted = last.aux(event.kind, event.device, size);
            event.aux = [add_delta(predicted[0], aux0), add_delta(predicted[1], aux1)];
            last.update(&event);
            events.push(event);
        }
    }
    let all = [
        runs, kind, device, api, flags, result, seq, time, addr, size, aux0, aux1, python, native, requested,
        stream, pool,
    ];
    if left_in_run != 0 || all.iter().any(|column| !column.is_empty()) {
        return Err(WireError::Range);
    }
    Ok(events)
}

/// The next values of a column of varints.
#[inline]
fn fill(
    column: &mut Cursor<'_>,
    values: &mut [u64],
    mut of: impl FnMut(u64) -> u64,
) -> Result<(), WireError> {
    // A copy, so that it stays in registers.
    let mut cursor = *column;
    let mut eights = values.chunks_exact_mut(8);
    for eight in &mut eights {
        if let Some(bytes) = cursor.eight_short_varints() {
            for (value, byte) in eight.iter_mut().zip(bytes) {
                *value = of(u64::from(byte));
            }
            continue;
        }
        for value in eight {
            *value = of(cursor.varint()?);
        }
    }
    for value in eights.into_remainder() {
        *value = of(cursor.varint()?);
    }
    *column = cursor;
    Ok(())
}

/// What writer and reader both know before a row. They must update it identically: it is one type for that reason.
struct Predictor {
    seq: u64,
    time_ns: u64,
    addr: u64,
    aux_by_kind: [[u64; 2]; 256],
    block_totals_by_device: [[u64; 2]; 256],
    detail: Detail,
    requested_by_slot: Vec<u64>,
}

/// Slots for what was asked for at an address: a block is freed where it was allocated.
const SLOTS: usize = 4096;

impl Predictor {
    fn new() -> Self {
        Self {
            seq: u64::MAX,
            time_ns: 0,
            addr: 0,
            aux_by_kind: [[0; 2]; 256],
            block_totals_by_device: [[0; 2]; 256],
            detail: Detail::default(),
            requested_by_slot: vec![0; SLOTS],
        }
    }

    fn slot(addr: u64) -> usize {
        (addr >> 9) as usize % SLOTS
    }

    fn requested(&self, addr: u64, size: u64) -> u64 {
        match self.requested_by_slot[Self::slot(addr)] {
            0 => size,
            requested => requested,
        }
    }

    fn aux(&self, kind: EventKind, device: u8, size: u64) -> [u64; 2] {
        let [allocated, reserved] = self.block_totals_by_device[device as usize];
        match kind {
            EventKind::BLOCK_ALLOC => [allocated.wrapping_add(size), reserved],
            EventKind::BLOCK_FREE => [allocated.wrapping_sub(size), reserved],
            _ => self.aux_by_kind[kind.0 as usize],
        }
    }

    fn update(&mut self, event: &Event) {
        self.seq = event.seq;
        self.time_ns = event.time_ns;
        self.addr = event.addr;
        if let Some(detail) = event.detail {
            self.detail = detail;
            self.requested_by_slot[Self::slot(event.addr)] = detail.requested_bytes;
        }
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                self.block_totals_by_device[event.device as usize] = event.aux;
            }
            kind => self.aux_by_kind[kind.0 as usize] = event.aux,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<[u64; 2]>());
        let bytes = (any::<u8>(), any::<u8>(), any::<u8>(), 0u8..64);
        let detail = proptest::option::of(any::<[u64; 3]>());
        (numbers, bytes, any::<u16>(), any::<bool>(), 0u32..4, any::<u32>(), any::<u32>(), detail).prop_map(
            |(
                (seq, time_ns, addr, size, aux),
                (kind, device, api, flags),
                result,
                in_flight,
                thread,
                py,
                nat,
                detail,
            )| Event {
                seq,
                time_ns,
                thread: ThreadId(thread),
                kind: EventKind(kind),
                device,
                api: ApiId(api),
                flags,
                result,
                in_flight,
                addr,
                size,
                aux,
                python_stack: NodeId(py),
                native_stack: NodeId(nat),
                detail: detail.map(|[requested_bytes, stream, pool]| Detail {
                    requested_bytes,
                    stream,
                    pool,
                }),
            },
        )
    }

    proptest! {
        #[test]
        fn rows_come_back(events in vec(any_event(), 0..60)) {
            prop_assert_eq!(decode(&encode(&events)), Ok(events));
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_damaged_payload_is_refused_or_read_without_panic(
            events in vec(any_event(), 1..20), at: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut bytes = encode(&events);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = decode(&bytes);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls libzstd")]
    fn a_loop_of_blocks_costs_its_predictions_nothing() {
        let mut total = 0;
        let events: Vec<Event> = (0..1000u64)
            .map(|i| {
                let alloc = i % 2 == 0;
                total = if alloc { total + 512 } else { total - 512 };
                Event {
                    seq: i,
                    time_ns: 1000 * i,
                    thread: ThreadId(7),
                    kind: if alloc { EventKind::BLOCK_ALLOC } else { EventKind::BLOCK_FREE },
                    device: 0,
                    api: ApiId(0),
                    flags: 0,
                    result: 0,
                    in_flight: false,
                    addr: 0x7f00_0000_0000,
                    size: 512,
                    aux: [total, 2 << 20],
                    python_stack: NodeId(3),
                    native_stack: NodeId::NONE,
                    detail: Some(Detail { requested_bytes: 500, stream: 0x7f00_1234, pool: 1 << 32 }),
                }
            })
            .collect();
        let payload = encode(&events);
        let squeezed = zstd::bulk::compress(&payload, 3).unwrap();
        assert_eq!(decode(&payload), Ok(events));
        assert!(squeezed.len() < 200, "{} bytes for 1000 predictable events", squeezed.len());
    }

    #[test]
    fn a_column_of_a_newer_writer_is_skipped() {
        let mut payload = encode(&[]);
        payload.extend_from_slice(&[200, 3, 1, 2, 3]);
        assert_eq!(decode(&payload), Ok(vec![]));
    }
}
