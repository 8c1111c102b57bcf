//! What one event costs in the program: the record itself, and the interning of a stack.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpumemtrace_format::{ApiId, EventKind, NodeId};
use gpumemtrace_recorder::python::layout::PYTHON_3_12;
use gpumemtrace_recorder::python::memory::Direct;
use gpumemtrace_recorder::python::trail::Trail;
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

/// A stack of Python 3.12 in memory of our own: frames a hundred bytes apart, as on the interpreter's stack of them.
fn python(c: &mut Criterion) {
    const DEPTH: usize = 33;
    const FRAME_WORDS: usize = 13;
    let layout = &PYTHON_3_12;
    // Its serial number is half a word.
    let code = vec![7usize << 32 | 7; 40];
    let mut frames = vec![0usize; DEPTH * FRAME_WORDS];
    let at = |words: &[usize], word: usize| words.as_ptr() as usize + 8 * word;
    for depth in 0..DEPTH {
        let frame = depth * FRAME_WORDS;
        frames[frame + layout.frame_code / 8] = at(&code, 0);
        frames[frame + layout.frame_previous / 8] =
            if depth == 0 { 0 } else { at(&frames, frame - FRAME_WORDS) };
        frames[frame + layout.frame_instr / 8] = at(&code, 24) + depth;
    }
    let cframe = [at(&frames, (DEPTH - 1) * FRAME_WORDS)];
    let tstate = [at(&cframe, 0); 16];
    // SAFETY: zero bytes are the documented empty state of a Trail, and the layout is its own.
    let mut trail: Box<Trail> =
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<Trail>()).cast()) };
    // SAFETY: all that the walk can reach are the words above.
    let memory = unsafe { Direct::new() };
    let mut ids = 0;
    let mut find = |trail: &mut Trail| {
        let change = trail.look(&memory, layout, at(&tstate, 0), 0).expect("readable");
        trail.follow(change, |_, _| {
            ids += 1;
            Some(NodeId(ids))
        })
    };
    c.bench_function("33 Python frames that stand", |b| b.iter(|| find(black_box(&mut trail))));
    let innermost = (DEPTH - 1) * FRAME_WORDS + layout.frame_instr / 8;
    c.bench_function("33 Python frames, the innermost at another line", |b| {
        b.iter(|| {
            frames[innermost] ^= 2;
            find(black_box(&mut trail))
        });
    });
}

criterion_group!(benches, events, stacks, python);
criterion_main!(benches);
