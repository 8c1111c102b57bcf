//! Driver memory of libraries beside PyTorch's own allocator.

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{EventKind, NodeId};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakKind};

mod synthetic;
use synthetic::Synthetic;

const MIB: u64 = 1 << 20;

/// Kinds and bytes per step of all findings.
fn findings(report: &Report) -> Vec<(LeakKind, Option<u64>)> {
    let rate = |leak: &Leak| leak.bytes_per_step.map(|rate| rate.0.round() as u64);
    report.leaks.iter().flatten().map(|leak| (leak.kind, rate(leak))).collect()
}

/// A training whose allocator takes each block from the driver, as `gpumemtrace_malloc` does when
/// PyTorch passes it no other hooks. Keeps one block of 1 MiB per step.
fn pluggable_training(mut each_step: impl FnMut(&mut Synthetic, NodeId)) -> Synthetic {
    let mut run = Synthetic::new();
    run.call_driver_from("/env/torch/lib/libtorch_cuda.so");
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 10);
    let (used, kept) =
        (run.frame(main, "/work/train.py", "forward", 20), run.frame(main, "/work/train.py", "keep", 30));
    let (mut held, mut next) = (0, 0x7f00_0000_0000);
    for _ in 0..20 {
        for (stack, is_kept) in [(used, false), (kept, true)] {
            next += 16 * MIB;
            held += MIB;
            run.event(EventKind::DEVICE_ALLOC, next, MIB, [0; 2], stack);
            run.event(EventKind::BLOCK_ALLOC, next, MIB, [held; 2], stack);
            if !is_kept {
                held -= MIB;
                run.event(EventKind::BLOCK_FREE, next, MIB, [held; 2], stack);
                run.event(EventKind::DEVICE_FREE, next, 0, [0; 2], stack);
            }
        }
        each_step(&mut run, main);
        run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], main);
    }
    run
}

#[test]
fn leak_through_a_pluggable_allocator_is_one_finding() {
    let report = pluggable_training(|_, _| {}).report();
    assert_eq!(findings(&report), [(LeakKind::Tensors, Some(MIB))]);
}

#[test]
fn leak_of_another_library_beside_a_pluggable_allocator_is_found() {
    let mut next = 0x6f00_0000_0000;
    let report = pluggable_training(|run, main| {
        run.call_driver_from("/env/lib/libworkspace.so");
        let line = run.frame(main, "/work/train.py", "extend", 40);
        next += 16 * MIB;
        run.event(EventKind::DEVICE_ALLOC, next, 2 * MIB, [0; 2], line);
        run.call_driver_from("/env/torch/lib/libtorch_cuda.so");
    })
    .report();
    assert_eq!(findings(&report), [(LeakKind::Device, Some(2 * MIB)), (LeakKind::Tensors, Some(MIB))]);
}
