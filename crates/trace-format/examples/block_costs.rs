//! Encodes and decodes one block of the first 100,000 events of a trace (`scripts/checks/budgets`).
//!
//! Each part is a function of its own, so that a profile has its cost.
//!
//! usage: `block_costs TRACE`

use std::hint::black_box;

use gpumemtrace_format::Event;
use gpumemtrace_format::block::{BlockKind, BlockPacker};
use gpumemtrace_format::event_block::{self, EncodedEvents, EventEncoder};
use gpumemtrace_format::reader::{Item, TraceReader};

const EVENTS: usize = 100_000;
/// The recorder's zstd level.
const LEVEL: i32 = 3;
/// Bits by which the recorder shifts timestamps.
const TIME_SHIFT: u8 = 10;

#[inline(never)]
fn encode_columns(encoder: &mut EventEncoder, events: &[Event]) -> EncodedEvents {
    encoder.push(events);
    encoder.finish()
}

#[inline(never)]
fn pack_block(packer: &mut BlockPacker, columns: &EncodedEvents) -> Vec<u8> {
    packer.encode_block(BlockKind::EVENTS, &columns.payload, &columns.split_offsets)
}

#[inline(never)]
fn decode_columns(payload: &[u8]) -> Vec<Event> {
    event_block::decode(payload).expect("columns that were just encoded")
}

fn main() {
    let path = std::env::args_os().nth(1).expect("usage: block_costs TRACE");
    let file = std::fs::File::open(path).expect("a readable trace");
    let mut events = Vec::new();
    for item in TraceReader::new(file).expect("a trace").events_only() {
        if let Item::Events(block) = item {
            events.extend(block);
        }
        if events.len() >= EVENTS {
            break;
        }
    }
    events.truncate(EVENTS);
    assert_eq!(events.len(), EVENTS, "the trace is too short");
    let columns = encode_columns(&mut EventEncoder::new(TIME_SHIFT), black_box(&events));
    let block = pack_block(&mut BlockPacker::new(LEVEL), black_box(&columns));
    black_box(block);
    assert_eq!(decode_columns(black_box(&columns.payload)).len(), EVENTS);
}
