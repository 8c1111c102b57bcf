//! What one event costs in the program: the record itself, and the interning of a stack.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpumemtrace_format::{ApiId, EventKind, NodeId};
use gpumemtrace_recorder::stack_cache::{FrameKey, StackCache};
use gpumemtrace_recorder::{Draft, begin, event};

/// A cache as the session makes it: zeroed memory.
fn empty_cache() -> Box<StackCache> {
    let layout = std::alloc::Layout::new::<StackCache>();
    // SAFETY: zero bytes are the documented empty state of a StackCache, and the layout is its own.
    unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) }
}

fn events(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // SAFETY: before any other thread of this process exists.
    unsafe { std::env::set_var("GPUMEMTRACE_OUTPUT", folder.path().join("run.trace")) };
    let mut draft = Draft::new(EventKind::BLOCK_ALLOC, ApiId::default());
    draft.device = 0;
    draft.size = 512;
    c.bench_function("event without a stack", |b| b.iter(|| event(black_box(&draft))));
    draft.kind = EventKind::DEVICE_ALLOC;
    c.bench_function("driver call without a stack", |b| {
        b.iter(|| begin(black_box(&draft)).expect("recording").finish(0, |event| event.addr = 1));
    });
    gpumemtrace_recorder::end_at_exit();
}

fn stacks(c: &mut Criterion) {
    let mut ids = 0;
    let mut cache = empty_cache();
    let mut fill = |cache: &mut StackCache, innermost: usize| {
        for (depth, frame) in cache.frames.iter_mut().enumerate().take(33) {
            let code = if depth < 3 { innermost * 100 + depth + 1 } else { depth * 1000 };
            *frame = FrameKey { code, instr: code + 8, tag: code as u64 };
        }
        cache.intern(33, |_, _| {
            ids += 1;
            Some(NodeId(ids))
        })
    };
    c.bench_function("intern 33 frames, the same stack again", |b| b.iter(|| fill(black_box(&mut cache), 1)));
    let mut turn = 0;
    c.bench_function("intern 33 frames, 3 of them others each time", |b| {
        b.iter(|| {
            turn = (turn + 1) % 100;
            fill(black_box(&mut cache), turn)
        });
    });
}

criterion_group!(benches, events, stacks);
criterion_main!(benches);
