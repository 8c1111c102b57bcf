//! Encoding and decoding a block of events like those of a training loop.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpumemtrace_format::block::{BlockKind, BlockPacker};
use gpumemtrace_format::event_block::{self, EventEncoder};
use gpumemtrace_format::{ApiId, Event, EventKind, NodeId, ThreadId};

const ROWS: u64 = 16_384;

/// A loop of 40 lines that each allocate and free a block of their own size.
fn training_loop() -> Vec<Event> {
    let mut allocated = 0;
    (0..ROWS)
        .map(|i| {
            let line = i / 2 % 40;
            let (size, alloc) = (512 * (1 + line * line), i % 2 == 0);
            allocated = if alloc { allocated + size } else { allocated - size };
            Event {
                seq: i,
                time_ns: 1_000_000 + 700 * i + i % 13,
                thread: ThreadId(7),
                kind: if alloc { EventKind::BLOCK_ALLOC } else { EventKind::BLOCK_FREE },
                device: 0,
                api: ApiId::default(),
                flags: 0,
                result: 0,
                in_flight: false,
                addr: 0x3000_0000_0000 + line * (2 << 20),
                size,
                aux: [allocated, 64 << 20],
                python_stack: NodeId(line as u32 + if alloc { 1 } else { 100 }),
                native_stack: NodeId::NONE,
                detail: None,
            }
        })
        .collect()
}

fn blocks(c: &mut Criterion) {
    let events = training_loop();
    let mut encoder = EventEncoder::new(10);
    let mut encode = |events: &[Event]| {
        encoder.push(events);
        encoder.finish()
    };
    let encoded = encode(&events);
    let mut packer = BlockPacker::new(3);
    let mut group = c.benchmark_group("16,384 events");
    group.throughput(Throughput::Elements(ROWS));
    group.bench_function("encode columns", |b| b.iter(|| encode(black_box(&events))));
    group.bench_function("pack block", |b| {
        b.iter(|| {
            packer.encode_block(BlockKind::EVENTS, black_box(&encoded.payload), &encoded.split_offsets)
        });
    });
    group.bench_function("decode columns", |b| b.iter(|| event_block::decode(black_box(&encoded.payload))));
    group.finish();
}

criterion_group!(benches, blocks);
criterion_main!(benches);
