//! Measures the cost of one event in the program: the record, and the capture of its stacks.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use gpumemtrace_format::{ApiId, EventKind, NodeId};
use gpumemtrace_recorder::internals::{
    Direct, FrameKey, NativeStack, PYTHON_3_12, PythonStackMemo, StackCache, prepare,
};
use gpumemtrace_recorder::{Draft, begin_call, record_event};

/// A cache in zeroed memory, as in a session.
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
    c.bench_function("intern 33 frames, same stack", |b| b.iter(|| fill(black_box(&mut cache), 1)));
    let mut turn = 0;
    c.bench_function("intern 33 frames, 3 of them new each time", |b| {
        b.iter(|| {
            turn = (turn + 1) % 100;
            fill(black_box(&mut cache), turn)
        });
    });
}

/// Frames of Python 3.12 in our own memory, about a hundred bytes apart as on the interpreter's
/// frame stack.
fn python(c: &mut Criterion) {
    const DEPTH: usize = 33;
    const FRAME_WORDS: usize = 13;
    let layout = &PYTHON_3_12;
    // The serial number is half a word.
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
    let mut memo: Box<PythonStackMemo> = unsafe {
        Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<PythonStackMemo>()).cast())
    };
    // SAFETY: the walk reads only the words above.
    let memory = unsafe { Direct::new() };
    let mut ids = 0;
    let mut capture = |memo: &mut PythonStackMemo| {
        let change = memo.find_change(&memory, layout, at(&tstate, 0), 0).expect("readable");
        memo.apply(change, |_, _| {
            ids += 1;
            Some(NodeId(ids))
        })
    };
    c.bench_function("33 Python frames, unchanged", |b| b.iter(|| capture(black_box(&mut memo))));
    let innermost = (DEPTH - 1) * FRAME_WORDS + layout.frame_instr / 8;
    c.bench_function("33 Python frames, innermost at another line", |b| {
        b.iter(|| {
            frames[innermost] ^= 2;
            capture(black_box(&mut memo))
        });
    });
}

/// Runs at the bottom of a stack.
type StackCallback<'a> = &'a mut dyn FnMut();

/// Functions that call each other in turn, so that each call has a return address of its own.
macro_rules! chain {
    ($($name:ident $next:ident),*) => {
        $(
            #[inline(never)]
            fn $name<const WAY: usize>(left: usize, callback: StackCallback<'_>) -> usize {
                if left == 0 {
                    callback();
                    return WAY;
                }
                WAY + black_box($next::<WAY>(left - 1, callback))
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

/// Stacks that have only the start of the thread in common.
const WAYS: [fn(usize, StackCallback<'_>) -> usize; 8] =
    [f00::<1>, f00::<2>, f00::<3>, f00::<4>, f00::<5>, f00::<6>, f00::<7>, f00::<8>];

/// Time of `iterations` calls of `callback` at the bottom of stacks of 40 frames, in a thread of
/// its own. The time includes the calls that build the stacks.
fn on_stacks(iterations: u64, ways: usize, mut callback: impl FnMut() + Send) -> Duration {
    let depth = 40 - OUTER_FRAMES;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let begin = Instant::now();
            for turn in 0..iterations as usize {
                black_box(WAYS[turn % ways](depth, &mut callback));
            }
            begin.elapsed()
        });
        thread.join().expect("no panic")
    })
}

/// Frames of the start of a thread and of the capture itself.
const OUTER_FRAMES: usize = 7;

fn native(c: &mut Criterion) {
    prepare();
    // SAFETY: zero bytes are the documented empty state of a NativeStack, and the layout is its
    // own.
    let mut stack: Box<NativeStack> =
        unsafe { Box::from_raw(std::alloc::alloc_zeroed(std::alloc::Layout::new::<NativeStack>()).cast()) };
    let mut depths = Vec::new();
    for (name, ways) in [("same stack", 1), ("another stack each time", WAYS.len())] {
        c.bench_function(&format!("40 native frames, {name}: calls alone"), |b| {
            b.iter_custom(|iterations| on_stacks(iterations, ways, || {}));
        });
        let mut ids = 0;
        c.bench_function(&format!("40 native frames, {name}: our unwinder"), |b| {
            b.iter_custom(|iterations| {
                stack.forget();
                on_stacks(iterations, ways, || {
                    black_box(stack.capture(|_, _| {
                        ids += 1;
                        Some(NodeId(ids))
                    }));
                })
            });
        });
        c.bench_function(&format!("40 native frames, {name}: backtrace crate"), |b| {
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
