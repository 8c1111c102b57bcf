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

mod decode;
mod predictor;

use crate::event::Event;
use crate::wire::{put_bytes, put_delta, put_varint};
pub use decode::{decode, decode_into};
use predictor::Predictor;

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
        last.learn(event);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defs::NodeId;
    use crate::event::{ApiId, Detail, EventKind, ThreadId};
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
