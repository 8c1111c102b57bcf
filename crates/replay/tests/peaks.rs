//! Compares the blocks of the peak, and their change since the step before, with a naive recount.

use std::collections::{BTreeMap, HashMap};

use gpumemtrace_format::event::MARK_STEP;
use gpumemtrace_format::{CodeDef, CodeId, EventKind, NodeId};
use gpumemtrace_replay::report::{Category, Confidence, MemoryLayer, Peak, PhaseBytes};
use gpumemtrace_replay::{Section, report};
use gpumemtrace_synthetic::{Synthetic, TORCH, analyse_for_peak};
use proptest::prelude::*;

/// Bytes by line, and blocks by address with the phase they were allocated in.
type State = (BTreeMap<u32, u64>, BTreeMap<u64, (u64, Option<u32>)>);

/// Live bytes and state at the first peak of each step.
fn peaks_of_steps(run: &Synthetic) -> Vec<(u64, State)> {
    let line_of = |stack: NodeId| run.nodes[stack.0 as usize - 1].offset_bytes as u32 / 2 + 1;
    let mut live: HashMap<u64, (u32, u64, Option<u32>)> = HashMap::new();
    let mut open: Vec<(u32, u32)> = Vec::new();
    let state = |live: &HashMap<u64, (u32, u64, Option<u32>)>| {
        let mut lines = BTreeMap::new();
        for (line, bytes, _) in live.values() {
            *lines.entry(*line).or_default() += bytes;
        }
        let blocks = live.iter().map(|(addr, (_, bytes, phase))| (*addr, (*bytes, *phase)));
        (lines, blocks.collect())
    };
    let mut steps = vec![(0, state(&live))];
    for event in &run.events {
        match event.kind {
            EventKind::MARK => {
                let sum = live.values().map(|(_, bytes, _)| bytes).sum();
                steps.push((sum, state(&live)));
            }
            EventKind::PHASE_BEGIN => open.push((event.thread.0, event.aux[0] as u32)),
            EventKind::PHASE_END => {
                if let Some(at) = open.iter().rposition(|(thread, _)| *thread == event.thread.0) {
                    open.remove(at);
                }
            }
            EventKind::BLOCK_ALLOC => {
                let phase = open.last().map(|(_, phase)| *phase);
                live.insert(event.addr, (line_of(event.python_stack), event.size, phase));
            }
            EventKind::BLOCK_FREE => {
                live.remove(&event.addr);
            }
            _ => {}
        }
        let sum: u64 = live.values().map(|(_, bytes, _)| bytes).sum();
        let last = steps.last_mut().unwrap();
        if sum > last.0 {
            *last = (sum, state(&live));
        }
    }
    steps
}

fn random_run(choices: &[(u8, u8, u16)]) -> Synthetic {
    let mut run = Synthetic::new();
    for (id, name) in [(900, "warm"), (901, "train")] {
        run.codes.push(CodeDef { id: CodeId(id), name: name.to_owned(), ..CodeDef::default() });
    }
    let mut live: Vec<u64> = Vec::new();
    for (what, line, size) in choices {
        let stack = run.frame(NodeId::NONE, "/work/a.py", "f", i32::from(line % 5) + 1);
        match *what {
            0..90 if !live.is_empty() => {
                let addr = live.swap_remove(usize::from(*size) % live.len());
                run.release(addr, stack);
            }
            230..240 => run.event(EventKind::MARK, 0, 0, [MARK_STEP, 0], NodeId::NONE),
            240..248 => {
                let phase = 900 + u64::from(line % 2);
                run.thread = 70 + u32::from(size % 2);
                run.event(EventKind::PHASE_BEGIN, 0, 0, [phase, 0], NodeId::NONE);
            }
            248..=255 => {
                run.thread = 70 + u32::from(size % 2);
                run.event(EventKind::PHASE_END, 0, 0, [0, 0], NodeId::NONE);
            }
            _ => live.push(run.alloc(stack, u64::from(*size) * 700 + 1)),
        }
    }
    run
}

fn the_peak(run: &Synthetic) -> Option<Peak> {
    let analyses = [analyse_for_peak(&run.file(7))];
    let mut report = report(&analyses, &[Section::Peak]);
    gpumemtrace_replay::add_peak_blocks(&mut report, &analyses);
    report.peak.unwrap().pop()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn blocks_changes_and_phases_of_the_peak_match_a_recount(
        choices in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 1..400),
    ) {
        let run = random_run(&choices);
        let Some(peak) = the_peak(&run) else { return Ok(()) };
        let steps = peaks_of_steps(&run);
        let highest = steps.iter().map(|(sum, _)| *sum).max().unwrap();
        let at = steps.iter().position(|(sum, _)| *sum == highest).unwrap();
        let (lines, blocks) = &steps[at].1;
        let found: BTreeMap<u64, u64> = peak.blocks.iter().flatten().map(|block| (block.addr, block.bytes)).collect();
        prop_assert_eq!(&found, &blocks.iter().map(|(addr, (bytes, _))| (*addr, *bytes)).collect());
        let by_category: u64 = peak.categories.iter().map(|share| share.bytes).sum();
        prop_assert_eq!((peak.live_bytes, by_category), (highest, highest));
        for site in &peak.sites {
            let categories: u64 = site.categories.iter().flatten().map(|part| part.bytes).sum();
            prop_assert_eq!(categories, site.bytes);
        }

        let has_marks = run.events.iter().any(|event| event.kind == EventKind::MARK);
        prop_assert_eq!(peak.since_previous_step.is_some(), has_marks && at > 0);
        if let Some(since) = &peak.since_previous_step {
            let (sum, (before, _)) = &steps[at - 1];
            prop_assert_eq!((since.step, since.live_bytes), (at as u64 - 1, *sum));
            prop_assert_eq!(since.rise_bytes, highest as i64 - *sum as i64);
            let mut expected: BTreeMap<u32, i64> = BTreeMap::new();
            for (line, bytes) in lines {
                *expected.entry(*line).or_default() += *bytes as i64;
            }
            for (line, bytes) in before {
                *expected.entry(*line).or_default() -= *bytes as i64;
            }
            expected.retain(|_, rise| *rise != 0);
            let mut rises: BTreeMap<u32, i64> = BTreeMap::new();
            for change in &since.changes {
                prop_assert_eq!(change.rise_bytes, change.bytes as i64 - change.before_bytes as i64);
                *rises.entry(change.site.line.unwrap()).or_default() += change.rise_bytes;
            }
            rises.retain(|_, rise| *rise != 0);
            prop_assert_eq!(rises, expected);
        }

        let begun = run.events.iter().any(|event| event.kind == EventKind::PHASE_BEGIN);
        prop_assert_eq!(peak.phases.is_some(), begun);
        if let Some(phases) = &peak.phases {
            let mut expected: BTreeMap<Option<String>, u64> = BTreeMap::new();
            for (bytes, phase) in blocks.values() {
                let name = phase.map(|phase| if phase == 900 { "warm".to_owned() } else { "train".to_owned() });
                *expected.entry(name).or_default() += bytes;
            }
            let found = phases.iter().map(|PhaseBytes { phase, bytes }| (phase.clone(), *bytes)).collect();
            prop_assert_eq!(expected, found);
        }
    }
}

#[test]
fn blocks_of_a_synthetic_training_have_their_categories() {
    let mut run = Synthetic::new();
    let torch = |file: &str| format!("{TORCH}{file}");
    let main = run.frame(NodeId::NONE, "/work/train.py", "main", 3);
    let moved = run.frame(main, &torch("nn/modules/module.py"), "_apply", 900);
    let called = run.frame(main, &torch("nn/modules/module.py"), "_call_impl", 1500);
    let backward = run.frame(main, &torch("autograd/__init__.py"), "backward", 260);
    let optimizer = run.frame(main, &torch("optim/optimizer.py"), "wrapper", 400);
    let states = run.frame(optimizer, &torch("optim/adam.py"), "_init_group", 150);
    let zero_grad = run.frame(main, &torch("optim/optimizer.py"), "zero_grad", 900);
    run.alloc(moved, 1000 << 10);
    run.alloc(main, 3 << 10);
    let mut batch = None;
    for step in 0..4 {
        // Blocks of the last step are larger, so that the peak lies in it and their sizes are
        // unique.
        let more = u64::from(step == 3);
        let old = batch.replace(run.alloc(main, (20 + more) << 10));
        if let Some(old) = old {
            run.release(old, main);
        }
        let activation = run.alloc(called, (30 + more) << 10);
        let scratch = run.alloc(called, (40 + more) << 10);
        run.release(scratch, called);
        let gradient = run.alloc(backward, 1000 << 10);
        let scratch = run.alloc(backward, (50 + more) << 10);
        run.release(scratch, backward);
        run.release(activation, backward);
        if step == 0 {
            run.alloc(states, 1000 << 10);
            run.alloc(states, 1000 << 10);
        }
        let scratch = run.alloc(optimizer, (160 + more) << 10);
        run.release(scratch, optimizer);
        run.release(gradient, zero_grad);
    }
    let end = run.alloc(called, 1 << 10);
    run.release(end, called);
    let peak = the_peak(&run).unwrap();
    let found: BTreeMap<(u64, u64), (Category, Option<Confidence>)> = peak
        .blocks
        .iter()
        .flatten()
        .map(|block| ((block.bytes >> 10, block.allocated_at_event), (block.category, block.confidence)))
        .collect();
    let of = |kib: u64| {
        let mut of: Vec<_> =
            found.iter().filter(|((size, _), _)| *size == kib).map(|(_, category)| *category).collect();
        of.sort_unstable();
        of
    };
    assert_eq!(of(3), [(Category::Unknown, None)]);
    assert_eq!(
        of(1000),
        [
            (Category::Parameters, Some(Confidence::High)),
            (Category::Gradients, Some(Confidence::High)),
            (Category::OptimizerState, Some(Confidence::High)),
            (Category::OptimizerState, Some(Confidence::High))
        ]
    );
    assert_eq!(of(161), [(Category::Temporaries, Some(Confidence::High))]);
    assert_eq!(peak.layer, MemoryLayer::Torch);
}

#[test]
fn blocks_without_pytorch_are_unknown() {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/cuda.py", "main", 3);
    run.event(EventKind::DEVICE_ALLOC, 0x7f00_0000_0000, 5 << 20, [0; 2], main);
    let peak = the_peak(&run).unwrap();
    let categories: Vec<_> =
        peak.categories.iter().map(|share| (share.category, share.bytes, share.confidence)).collect();
    assert_eq!((peak.layer, categories), (MemoryLayer::Device, vec![(Category::Unknown, 5 << 20, None)]));
    assert!(peak.since_previous_step.is_none());
}

/// Bytes by label of the blocks at the first highest moment, with the labels set up to the next
/// change.
fn labels_at_peak(run: &Synthetic) -> BTreeMap<Option<u64>, u64> {
    let mut live: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
    let (mut highest, mut at_peak, mut is_at_peak) = (0, BTreeMap::new(), true);
    for event in &run.events {
        match event.kind {
            EventKind::BLOCK_ALLOC => drop(live.insert(event.addr, (event.size, None))),
            EventKind::BLOCK_FREE => drop(live.remove(&event.addr)),
            EventKind::BLOCK_LABEL => {
                live.entry(event.addr).and_modify(|(_, label)| *label = Some(event.aux[0]));
            }
            _ => continue,
        }
        is_at_peak &= event.kind == EventKind::BLOCK_LABEL;
        let sum: u64 = live.values().map(|(bytes, _)| bytes).sum();
        is_at_peak |= sum > highest;
        if is_at_peak {
            (highest, at_peak) = (sum, BTreeMap::new());
            for (bytes, label) in live.values() {
                *at_peak.entry(*label).or_default() += bytes;
            }
        }
    }
    at_peak
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn labels_of_the_peak_match_a_recount(
        choices in proptest::collection::vec((0u8..8, any::<u8>(), any::<u16>()), 1..200),
    ) {
        const NAMES: [&str; 4] = ["parameter", "cache", "unknown", "temporaries"];
        let mut run = Synthetic::new();
        for (id, name) in (910..).zip(NAMES) {
            run.codes.push(CodeDef { id: CodeId(id), name: name.to_owned(), ..CodeDef::default() });
        }
        let mut live: Vec<u64> = vec![0x10];
        for (what, line, size) in choices {
            let stack = run.frame(NodeId::NONE, "/work/a.py", "f", i32::from(line % 5) + 1);
            let pick = usize::from(size) % live.len();
            match what {
                0 | 1 if pick > 0 => run.release(live.swap_remove(pick), stack),
                2..=4 => {
                    let label = 910 + u64::from(line % 4);
                    run.event(EventKind::BLOCK_LABEL, live[pick], 0, [label, 0], NodeId::NONE);
                }
                _ => live.push(run.alloc(stack, u64::from(size) * 700 + 1)),
            }
        }
        let Some(peak) = the_peak(&run) else { return Ok(()) };
        let expected = labels_at_peak(&run);
        let name = |label: u64| NAMES[(label - 910) as usize].to_owned();
        let expected: BTreeMap<Option<String>, u64> =
            expected.into_iter().map(|(label, bytes)| (label.map(name), bytes)).collect();
        let Some(labels) = &peak.labels else {
            prop_assert!(expected.keys().all(Option::is_none));
            return Ok(());
        };
        let mut found: BTreeMap<Option<String>, u64> = BTreeMap::new();
        for pair in &labels.pairs {
            *found.entry(pair.label.clone()).or_default() += pair.bytes;
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(labels.pairs.iter().map(|pair| pair.bytes).sum::<u64>(), peak.live_bytes);
        let of_agreement = |wanted| labels.pairs.iter().filter(move |pair| pair.agrees == wanted).map(|pair| pair.bytes);
        let (agreeing, differing) = (of_agreement(Some(true)).sum::<u64>(), of_agreement(Some(false)).sum::<u64>());
        prop_assert_eq!((labels.agreeing_bytes, labels.compared_bytes), (agreeing, agreeing + differing));
        prop_assert_eq!(labels.differences.iter().map(|row| row.bytes).sum::<u64>(), differing);
    }
}
