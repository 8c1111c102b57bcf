//! Driver memory of libraries beside PyTorch's own allocator.

use gpumemtrace_format::event::{MARK_STEP, SAMPLE_SOURCE_PROGRAM};
use gpumemtrace_format::{EventKind, NodeId};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakKind, PoolFramework, VerdictEvidence};

use gpumemtrace_synthetic::Synthetic;

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

const GIB: u64 = 1 << 30;
const POOL: u64 = 0xbb;
const RELEASE_THRESHOLD: u64 = 4;
/// Bytes of contexts and code.
const CONTEXT: u64 = 512 * MIB;

/// A framework that takes 18 of the device's 24 GiB once into a pool, as XLA does, and keeps 1 MiB
/// in each of 200 steps. The driver is asked for its free memory after each step.
fn pool_framework() -> Synthetic {
    let mut run = Synthetic::new();
    run.call_driver_from("/env/lib/python3.11/site-packages/jaxlib/libjax_common.so");
    let start = run.frame(NodeId::NONE, "/work/train.py", "<module>", 5);
    run.event(EventKind::POOL_CREATE, 0, 0, [POOL, 0], start);
    run.event(EventKind::POOL_SET, 0, 18 * GIB, [POOL, RELEASE_THRESHOLD], start);
    run.event(EventKind::ASYNC_ALLOC, 0x7f00_0000_0000, 18 * GIB, [0, POOL], start);
    run.event(EventKind::ASYNC_FREE, 0x7f00_0000_0000, 0, [0, 0], start);
    let kept = run.frame(start, "/work/train.py", "keep", 30);
    for step in 0..200 {
        run.event(EventKind::ASYNC_ALLOC, 0x7f00_0000_0000 + step * MIB, MIB, [0, POOL], kept);
        run.event(EventKind::MEMORY_SAMPLE, 0, 18 * GIB + CONTEXT, [24 * GIB, SAMPLE_SOURCE_PROGRAM], start);
        run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], start);
    }
    run
}

#[test]
fn memory_that_a_pool_keeps_free_is_counted_once() {
    let report = pool_framework().report();
    let residual = report.devices[0].residual.as_ref().unwrap();
    assert_eq!((residual.bytes, residual.most_bytes), (CONTEXT, CONTEXT));
    assert_eq!(residual.pool_free_bytes, 18 * GIB - MIB);
    let levels = report.verdicts.iter().flatten().filter(|verdict| {
        !matches!(verdict.evidence, VerdictEvidence::Leak { .. } | VerdictEvidence::FailedCalls { .. })
    });
    assert_eq!(levels.count(), 0, "18.5 of 24 GiB is no pressure: {:#?}", report.verdicts);
}

#[test]
fn oom_forecast_lets_a_leak_use_the_memory_that_its_pool_keeps_free() {
    let report = pool_framework().report();
    assert_eq!(findings(&report), [(LeakKind::Device, Some(MIB))]);
    let forecast = report.leaks.as_ref().unwrap()[0].oom_step.unwrap();
    let truth = (24 * GIB - CONTEXT) / MIB;
    assert!(forecast.earliest < truth && truth < forecast.latest.unwrap(), "{forecast:?}, {truth}");
}

/// A program that takes 18 of the device's 24 GiB by a library in one block, and keeps it. Its
/// arrays lie inside, so nothing else is recorded.
fn preallocating_framework(library: &str, file: &str) -> Report {
    let mut run = Synthetic::new();
    run.call_driver_from(library);
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 5);
    let inner = run.frame(main, file, "create", 70);
    run.event(EventKind::DEVICE_ALLOC, 0x7f00_0000_0000, 18 * GIB, [0; 2], inner);
    for _ in 0..50 {
        run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], main);
    }
    run.report()
}

fn pools(report: &Report) -> Vec<(&str, Option<PoolFramework>, u64)> {
    report.devices[0].opaque_pools.iter().map(|pool| (&*pool.owner, pool.framework, pool.bytes)).collect()
}

#[test]
fn preallocated_block_is_an_opaque_pool_of_its_framework() {
    let jax = "/env/lib/python3.11/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so";
    let report = preallocating_framework(jax, "/env/lib/python3.11/site-packages/jax/_src/api.py");
    assert_eq!(pools(&report), [("xla_cuda_plugin.so", Some(PoolFramework::Xla), 18 * GIB)]);
    assert_eq!(report.devices[0].opaque_pools[0].site.line, Some(5));
    // A binding serves several frameworks; the Python package decides.
    let binding = "/env/lib/python3.11/site-packages/cupy_backends/cuda/api/runtime.so";
    let report =
        preallocating_framework(binding, "/env/lib/python3.11/site-packages/cupy/_creation/basic.py");
    assert_eq!(pools(&report), [("runtime.so", Some(PoolFramework::CuPy), 18 * GIB)]);
    let report = preallocating_framework("/opt/lib/libengine.so", "/work/engine.py");
    assert_eq!(pools(&report), [("libengine.so", None, 18 * GIB)]);
}

#[test]
fn pool_of_the_driver_and_segments_of_pytorch_are_not_opaque() {
    assert!(pools(&pool_framework().report()).is_empty(), "blocks of cudaMallocAsync are recorded");
    let allocator = preallocating_framework("/env/torch/lib/libc10_cuda.so", "/work/model.py");
    assert!(pools(&allocator).is_empty());
    let mut run = pluggable_training(|_, _| {});
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 10);
    run.event(EventKind::DEVICE_ALLOC, 0x5f00_0000_0000, 8 * GIB, [0; 2], main);
    run.event(EventKind::BLOCK_ALLOC, 0x5f00_0000_0000, 8 * GIB, [8 * GIB + 20 * MIB; 2], main);
    assert!(pools(&run.report()).is_empty(), "tensors lie inside");
}

#[test]
fn address_that_is_handed_out_before_its_free_returned_counts_once() {
    let mut run = Synthetic::new();
    run.call_driver_from("/env/lib/libnccl.so.2");
    for (address, bytes) in [(1, 8), (2, 4), (2, 0), (2, 6), (2, 0), (3, 5)] {
        let kind = if bytes == 0 { EventKind::DEVICE_FREE } else { EventKind::DEVICE_ALLOC };
        run.event(kind, address << 40, bytes * MIB, [0; 2], NodeId::NONE);
    }
    // The first free of address 2 is still in the driver when the program is killed.
    run.events[2].in_flight = true;
    let report = run.report();
    let device = &report.devices[0];
    let (peak, ledger) = (device.peak.device_bytes, device.ledger.iter().map(|row| row.bytes).sum());
    assert_eq!((peak, ledger), (Some(14 * MIB), 14 * MIB));
    let highest = report.timelines.unwrap()[0].points.iter().filter_map(|point| point.device_bytes).max();
    assert_eq!(highest, peak);
}
