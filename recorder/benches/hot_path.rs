//! What one event costs in the program: the record itself, and the interning of a stack.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gpumemtrace_format::{ApiId, EventKind, NodeId};
use gpumemtrace_recorder::internals::{
    self as native, Direct, FrameKey, NativeStack, PYTHON_3_12, PythonStackMemo, StackCache,
};
use gpumemtrace_recorder::{Draft, begin_call, record_event};

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
    c.bench_function("event without a stack", |b| b.iter(|| record_event(black_box(&draft))));
    draft.kind = EventKind::DEVICE_ALLOC;
    c.bench_function("driver call without a stack", |b| {
        b.iter(|| begin_call(black_box(&draft)).expect("recording").complete(0, |event| event.addr = 1));
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
    let mut trail: Box<PythonStackMemo> = unsafe {
        Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<PythonStackMemo>()).cast())
    };
    // SAFETY: all that the walk can reach are the words above.
    let memory = unsafe { Direct::new() };
    let mut ids = 0;
    let mut find = |trail: &mut PythonStackMemo| {
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

/// What is done at the bottom of a stack.
type StackCallback<'a> = &'a mut dyn FnMut();

/// Functions that call each other in turn, many times over: each call has a return address of its own.
macro_rules! chain {
    ($($name:ident $next:ident),*) => {
        $(
            #[inline(never)]
            fn $name<const WAY: usize>(left: usize, look: StackCallback<'_>) -> usize {
                if left == 0 {
                    look();
                    return WAY;
                }
                WAY + black_box($next::<WAY>(left - 1, look))
            }
        )*
    };
}

chain! {
    f00 f01, f01 f02, f02 f03, f03 f04, f04 f05, f05 f06, f06 f07, f07 f08, f08 f09, f09 f10,
    f10 f11, f11 f12, f12 f13, f13 f14, f14 f15, f15 f16, f16 f17, f17 f18, f18 f19, f19 f20,
    f20 f21, f21 f22, f22 f23, f23 f24, f24 f25, f25 f26, f26 f27, f27 f28, f28 f29, f29 f30,
    f30 f31, f31 f32, f32 f33, f33 f34, f34 f35, f35 f36, f36 f37, f37 f38, f38 f39, f39 f00
}

/// So many stacks that have nothing in common but where the thread begins.
const WAYS: [fn(usize, StackCallback<'_>) -> usize; 8] =
    [f00::<1>, f00::<2>, f00::<3>, f00::<4>, f00::<5>, f00::<6>, f00::<7>, f00::<8>];

/// Time of `iterations` looks from the bottom of stacks of 40 frames, in a thread of their own, and of the calls alone.
fn on_stacks(iterations: u64, ways: usize, mut look: impl FnMut() + Send) -> Duration {
    let depth = 40 - OUTER_FRAMES;
    std::thread::scope(|scope| {
        let looks = scope.spawn(move || {
            let begin = Instant::now();
            for turn in 0..iterations as usize {
                black_box(WAYS[turn % ways](depth, &mut look));
            }
            begin.elapsed()
        });
        looks.join().expect("no panic")
    })
}

/// Of a thread that has just begun, and of the look itself.
const OUTER_FRAMES: usize = 7;

fn native(c: &mut Criterion) {
    native::prepare();
    // SAFETY: zero bytes are the documented empty state of a NativeStack, and the layout is its own.
    let mut stack: Box<NativeStack> =
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<NativeStack>()).cast()) };
    let mut depths = Vec::new();
    for (name, ways) in [("the same again", 1), ("others each time", WAYS.len())] {
        c.bench_function(&format!("40 native frames, {name}: the calls alone"), |b| {
            b.iter_custom(|iterations| on_stacks(iterations, ways, || {}));
        });
        let mut ids = 0;
        c.bench_function(&format!("40 native frames, {name}: ours"), |b| {
            b.iter_custom(|iterations| {
                stack.forget();
                on_stacks(iterations, ways, || {
                    black_box(stack.find(|_, _| {
                        ids += 1;
                        Some(NodeId(ids))
                    }));
                })
            });
        });
        c.bench_function(&format!("40 native frames, {name}: the backtrace crate"), |b| {
            b.iter_custom(|iterations| {
                on_stacks(iterations, ways, || {
                    let mut depth = 0;
                    // SAFETY: no symbols are resolved through this crate at the same time.
                    unsafe {
                        backtrace::trace_unsynchronized(|frame| {
                            depth += usize::from(!black_box(frame.ip()).is_null());
                            true
                        });
                    }
                    depths.push(depth);
                    depths.truncate(1);
                })
            });
        });
    }
    assert!(depths.iter().all(|depth| (39..=41).contains(depth)), "{depths:?}");
}

criterion_group!(benches, events, stacks, python, native);
criterion_main!(benches);
