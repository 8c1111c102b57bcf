//! Analyses and reports a million events: `cargo bench -p gpumemtrace-replay`.
//!
//! The time per iteration is CPU seconds per million events.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpumemtrace_format::NodeId;
use gpumemtrace_replay::{RingFile, report};
use gpumemtrace_synthetic::Synthetic;

const EVENTS: usize = 1_000_000;
const LINES: i32 = 150;
const DEPTH: i32 = 20;

/// A training with 150 allocating lines, 20 frames deep, and a leak.
fn training_trace() -> Vec<u8> {
    let mut steps = 0;
    let per_step = 2 * LINES as usize + 22;
    let run = Synthetic::train((EVENTS / per_step) as u64, |run, _, train| {
        steps += 1;
        let mut stack = train;
        for depth in 0..DEPTH {
            stack = run.frame(
                stack,
                "/env/lib/python3.11/site-packages/torch/nn/modules/module.py",
                "Module._call_impl",
                100 + depth,
            );
        }
        let lines: Vec<NodeId> =
            (0..LINES).map(|line| run.frame(stack, "/work/model.py", "Net.forward", 100 + line)).collect();
        let blocks: Vec<u64> =
            lines.iter().zip(1..).map(|(line, size)| run.alloc(*line, size * 1024)).collect();
        for addr in blocks.into_iter().rev() {
            run.release(addr, NodeId::NONE);
        }
        let keep = run.frame(train, "/work/hooks.py", "Keeper.hook", 7);
        run.alloc(keep, 4096);
    });
    run.file(65_536)
}

/// A server with 20,000 stacks at 5,000 sites, no optimizer, and a leak at one of them.
fn many_lines_trace() -> Vec<u8> {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/serve.py", "<module>", 3);
    let calls: Vec<NodeId> =
        (0..4).map(|line| run.frame(main, "/work/serve.py", "handle", 10 + line)).collect();
    let mut stacks = Vec::new();
    for file in 0..5 {
        let file = format!("/work/model{file}.py");
        for line in 0..1000 {
            stacks.extend(calls.clone().into_iter().map(|call| run.frame(call, &file, "forward", line + 1)));
        }
    }
    while run.events.len() < EVENTS {
        let blocks: Vec<u64> =
            stacks.iter().zip(1..).map(|(stack, size)| run.alloc(*stack, size % 64 * 512)).collect();
        for addr in blocks.into_iter().rev() {
            run.release(addr, NodeId::NONE);
        }
        run.alloc(stacks[7], 4096);
    }
    run.file(65_536)
}

fn replay(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("replay");
    group.sample_size(10);
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, bytes) in [("training", training_trace()), ("many lines", many_lines_trace())] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let analysis = gpumemtrace_synthetic::analyse_bytes(black_box(&bytes), RingFile::Absent);
                black_box(report(&[analysis], &[]))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, replay);
criterion_main!(benches);
