//! Compares live bytes by category and by pool over time with a naive recount, and with the
//! categories of the peak.

use std::collections::BTreeMap;

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{Detail, EventKind, NodeId};
use gpumemtrace_replay::report::{Category, PoolBlocks, PoolInfo};
use gpumemtrace_replay::{AnalysisOptions, DeviceHistory, Section, report};
use proptest::prelude::*;

use super::STARTED_NS;
use gpumemtrace_synthetic::{Synthetic, TORCH, analyse_part};

/// Bytes of the segment of each stream and pool.
const SEGMENT_BYTES: u64 = 1 << 40;

/// A block: its group, bytes, and the times of its allocation and free.
type GroupedBlock<K> = (K, u64, u64, Option<u64>);
type Block = GroupedBlock<(u64, u64, bool)>;

fn history_of(bytes: &[u8]) -> DeviceHistory {
    let options = AnalysisOptions { keeps_history: true, ..AnalysisOptions::default() };
    let mut history = analyse_part(bytes, options).take_history().expect("a history");
    history.devices.swap_remove(0)
}

/// A frame of plain code, or of one of PyTorch's passes.
fn frame(run: &mut Synthetic, what: u8) -> NodeId {
    let main = run.frame(NodeId::NONE, "/work/train.py", "main", i32::from(what) + 1);
    let torch = |file: &str| format!("{TORCH}{file}");
    match what {
        0 | 1 => run.frame(main, &torch("nn/modules/module.py"), "_call_impl", 1500),
        2 | 3 => run.frame(main, &torch("autograd/__init__.py"), "backward", 260),
        4 => run.frame(main, &torch("optim/optimizer.py"), "wrapper", 400),
        5 => run.frame(main, &torch("optim/optimizer.py"), "zero_grad", 900),
        6 => run.frame(main, &torch("nn/modules/module.py"), "_apply", 900),
        _ => main,
    }
}

/// A run with two streams and two pools.
fn random_run(choices: &[(u8, u8, u16)], pause_ns: u64) -> (Synthetic, Vec<Block>) {
    let mut run = Synthetic::new();
    let keys = [(0, 0), (7, 0), (0, 1)];
    let main = frame(&mut run, 9);
    for (index, (stream, pool)) in keys.iter().enumerate() {
        let addr = (index as u64 + 1) * SEGMENT_BYTES;
        run.event(EventKind::SEGMENT_ALLOC, addr, SEGMENT_BYTES, [*stream, *pool], main);
        run.reserved += SEGMENT_BYTES;
    }
    let (mut blocks, mut live): (Vec<Block>, Vec<(u64, usize)>) = (Vec::new(), Vec::new());
    let (mut used, mut allocated) = ([0; 3], 0);
    for (what, pick, size) in choices {
        let stack = frame(&mut run, pick % 9);
        match *what {
            0..100 if !live.is_empty() => {
                let (addr, index) = live.swap_remove(usize::from(*size) % live.len());
                let ((stream, pool, _), bytes, ..) = blocks[index];
                allocated -= bytes;
                run.event(EventKind::BLOCK_FREE, addr, bytes, [allocated, run.reserved], stack);
                let detail = Detail { requested_bytes: bytes, stream, pool };
                run.events.last_mut().expect("an event").detail = Some(detail);
                blocks[index].3 = Some(run.time_ns - STARTED_NS);
            }
            250..=252 => run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], NodeId::NONE),
            253..=255 => run.time_ns += pause_ns,
            _ => {
                let key = usize::from(*pick) % 3;
                let bytes = (u64::from(*size) % 40 + 1) << 16;
                let (stream, pool) = keys[key];
                let addr = (key as u64 + 1) * SEGMENT_BYTES + used[key];
                used[key] += bytes;
                allocated += bytes;
                run.event(EventKind::BLOCK_ALLOC, addr, bytes, [allocated, run.reserved], stack);
                let detail = Detail { requested_bytes: bytes, stream, pool };
                run.events.last_mut().expect("an event").detail = Some(detail);
                live.push((addr, blocks.len()));
                let is_small = bytes <= 1 << 20;
                blocks.push(((stream, pool, is_small), bytes, run.time_ns - STARTED_NS, None));
            }
        }
    }
    (run, blocks)
}

fn pool_key(pool: &PoolInfo) -> (u64, u64, bool) {
    (pool.stream, pool.pool.expect("a pool")[1], pool.blocks == PoolBlocks::Small)
}

fn sum_at<K>(series: &[(K, Vec<u64>)], bin: usize) -> u64 {
    series.iter().map(|(_, values)| values[bin]).sum()
}

/// The bytes of a group in a bin are those of the blocks that were live there. A bin that begins at
/// an event has the state before it.
fn is_recount<K: Ord + Clone, B>(
    found: &BTreeMap<K, u64>,
    time_ns: u64,
    blocks: &[B],
    facts: impl Fn(&B) -> GroupedBlock<K>,
) -> bool {
    [time_ns, time_ns - 1].into_iter().any(|at_ns| {
        let mut sums = BTreeMap::new();
        for (key, bytes, allocated_ns, freed_ns) in blocks.iter().map(&facts) {
            if allocated_ns <= at_ns && freed_ns.is_none_or(|freed_ns| freed_ns > at_ns) {
                *sums.entry(key).or_default() += bytes;
            }
        }
        sums == *found
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn groups_of_each_bin_equal_a_recount(
        choices in proptest::collection::vec(any::<(u8, u8, u16)>(), 20..500),
        pause_ns in 1_000u64..50_000_000,
        has_end in any::<bool>(),
    ) {
        let (run, blocks) = random_run(&choices, pause_ns);
        prop_assume!(!blocks.is_empty());
        let device = history_of(&if has_end { run.file(1000) } else { run.file_without_end(1000) });
        for (bin, (live, time_ns)) in device.bin_live.iter().zip(&device.bin_times_ns).enumerate() {
            prop_assert_eq!(sum_at(&device.categories, bin), *live);
            prop_assert_eq!(sum_at(&device.pools, bin), *live);
            let pools = device.pools.iter().filter(|(_, values)| values[bin] > 0);
            let found: BTreeMap<_, u64> =
                pools.map(|(pool, values)| (pool_key(&pool.expect("a known pool")), values[bin])).collect();
            prop_assert!(is_recount(&found, *time_ns, &blocks, |block| *block));
        }
    }
}

/// A training in which each block has one known category.
struct Training {
    run: Synthetic,
    /// The blocks, with their addresses.
    blocks: Vec<(u64, GroupedBlock<Category>)>,
}

impl Training {
    fn alloc(&mut self, stack: NodeId, kib: u64, category: Category) -> u64 {
        self.run.time_ns += 300_000;
        let addr = self.run.alloc(stack, kib << 10);
        let block = (category, self.run.size_of(addr), self.run.time_ns - STARTED_NS, None);
        self.blocks.push((addr, block));
        addr
    }

    fn free(&mut self, addr: u64, stack: NodeId) {
        self.run.time_ns += 200_000;
        self.run.release(addr, stack);
        let (_, block) = self.blocks.iter_mut().rfind(|(one, _)| *one == addr).expect("a block");
        block.3 = Some(self.run.time_ns - STARTED_NS);
    }
}

#[test]
fn categories_of_each_bin_equal_a_recount_of_a_training() {
    let mut one = Training { run: Synthetic::new(), blocks: Vec::new() };
    let [forward, backward, optimizer, zero_grad, moved, main] =
        [0, 2, 4, 5, 6, 9].map(|what| frame(&mut one.run, what));
    let states = one.run.frame(optimizer, &format!("{TORCH}optim/adam.py"), "_init_group", 150);
    let weights: Vec<u64> = (1..4).map(|layer| layer * 100).collect();
    for kib in &weights {
        one.alloc(moved, *kib, Category::Parameters);
    }
    for step in 0..9u64 {
        one.run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], NodeId::NONE);
        let batch = one.alloc(main, 20 + step, Category::Inputs);
        let scratch = one.alloc(forward, 41 + step, Category::Temporaries);
        let activations = weights.iter().map(|kib| one.alloc(forward, kib / 2, Category::Activations));
        let activations: Vec<u64> = activations.collect();
        one.free(scratch, forward);
        let mut gradients = Vec::new();
        for (kib, activation) in weights.iter().zip(activations) {
            gradients.push(one.alloc(backward, *kib, Category::Gradients));
            let scratch = one.alloc(backward, 7, Category::Temporaries);
            one.free(scratch, backward);
            one.free(activation, backward);
        }
        one.free(batch, main);
        if step == 0 {
            for kib in &weights {
                one.alloc(states, *kib, Category::OptimizerState);
            }
        }
        let scratch = one.alloc(optimizer, 160, Category::Temporaries);
        one.free(scratch, optimizer);
        for gradient in gradients {
            one.free(gradient, zero_grad);
        }
    }
    let device = history_of(&one.run.file(1000));
    assert!(device.bin_live.len() > 100);
    for (bin, time_ns) in device.bin_times_ns.iter().enumerate() {
        let found = device.categories.iter().map(|(category, values)| (*category, values[bin]));
        let found: BTreeMap<Category, u64> = found.filter(|(_, bytes)| *bytes > 0).collect();
        assert!(is_recount(&found, *time_ns, &one.blocks, |(_, block)| *block), "bin {bin}: {found:?}");
    }
    assert_eq!(device.categories.len(), 6);
}

#[test]
fn categories_at_the_peak_are_those_of_the_report() {
    let golden = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/cuda-train.trace"));
    let bytes = golden.expect("a golden trace");
    let device = history_of(&bytes);
    let analysis = analyse_part(&bytes, AnalysisOptions::default());
    let peak = report(&[analysis], &[Section::Peak]).peak.expect("peaks").swap_remove(0);
    let expected: BTreeMap<Category, u64> =
        peak.categories.iter().map(|share| (share.category, share.bytes)).collect();
    let bin = device.bin_live.iter().position(|live| *live == peak.live_bytes).expect("the peak");
    let found = device.categories.iter().map(|(category, values)| (*category, values[bin]));
    assert_eq!(found.filter(|(_, bytes)| *bytes > 0).collect::<BTreeMap<_, _>>(), expected);
}
