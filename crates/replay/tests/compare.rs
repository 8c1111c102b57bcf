//! Comparisons: two runs of one program have no differences, and a planted change is found to the
//! byte.

use std::collections::HashMap;

use gpumemtrace_format::{EventKind, NodeId, ThreadId};
use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::compare::{
    ChangeStatus, Comparison, ComparisonNote, LineChange, PerStepTotals, Profile, TotalQuantity, Worsening,
    compare,
};
use gpumemtrace_synthetic::{Synthetic, analyse_by_steps};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn analysed(run: &Synthetic) -> (Analysis, PerStepTotals) {
    analyse_by_steps(&run.file(1000)).expect("a trace")
}

fn compared(before: &Synthetic, after: &Synthetic) -> Comparison {
    let (before, after) = (analysed(before), analysed(after));
    compare(&Profile::new(&before.0, &before.1), &Profile::new(&after.0, &after.1))
}

fn difference(before: &Synthetic, after: &Synthetic) -> String {
    let comparison = compared(before, after);
    assert_eq!(compared(after, before).differs, comparison.differs);
    let shown = (&comparison.totals, &comparison.lines, &comparison.leaks, &comparison.ooms);
    if comparison.differs { serde_json::to_string_pretty(&shown).unwrap() } else { String::new() }
}

/// A training with extra lines, each given by its size in KiB and a number that selects its
/// behaviour.
fn training(steps: u64, lines: &[(u16, u8)], out_of_memory: bool) -> Synthetic {
    let mut kept = Vec::new();
    let mut run = Synthetic::train(steps, |run, step, train| {
        for (index, (kib, what)) in lines.iter().enumerate() {
            let function = format!("f{}", index % 3);
            let line = run.frame(train, "/work/pkg/extra.py", &function, 10 + 3 * index as i32);
            let line = if what % 2 == 1 {
                run.frame(line, &format!("{}functional.py", gpumemtrace_synthetic::TORCH), "layer_norm", 40)
            } else {
                line
            };
            let block = run.alloc(line, u64::from(*kib) * 1024);
            match what % 5 {
                // Kept in every third step.
                0 if step % 3 == 0 => kept.push(block),
                1 if step == 1 => kept.push(block),
                2 => {
                    let more = run.alloc(line, 512);
                    run.release(more, NodeId::NONE);
                    run.release(block, train);
                }
                _ => run.release(block, train),
            }
        }
    });
    if out_of_memory {
        let line = run.frame(NodeId::NONE, "/work/train.py", "big", 77);
        run.oom(line, 40 << 30);
    }
    run
}

/// The same run in another process, with other addresses, times and threads.
fn in_another_process(mut run: Synthetic, salt: u64) -> Synthetic {
    let mut segments: HashMap<u64, u64> = HashMap::new();
    let moved = |segments: &HashMap<u64, u64>, addr: u64| {
        // Addresses keep their offset in the driver segment.
        segments
            .iter()
            .find(|(base, _)| addr >= **base && addr - **base < 1 << 30)
            .map_or(addr, |(base, to)| to + (addr - base))
    };
    for event in &mut run.events {
        if event.kind == EventKind::DEVICE_ALLOC {
            let slot = (segments.len() as u64 ^ (salt % 64)) << 31;
            segments.insert(event.addr, 0x7abc_0000_0000 + slot);
        }
        if event.addr > 0 {
            event.addr = moved(&segments, event.addr);
        }
        event.time_ns =
            1_000_000_000 + (event.time_ns - 1_000_000_000) * (1 + salt % 3) + event.seq * (salt % 500);
        event.thread = ThreadId(event.thread.0 + salt as u32 % 1000);
    }
    run.meta.set_number("pid", salt);
    run.time_ns = run.events.last().map_or(run.time_ns, |event| event.time_ns);
    run
}

/// The same run from another checkout, with lines inserted above or inside of each function.
fn from_another_checkout(mut run: Synthetic, lines: i32, above_functions: bool) -> Synthetic {
    for code in &mut run.codes {
        code.file = code.file.replace("/work/", "/home/you/checkout/").replace("/env/", "/opt/venv/");
        if above_functions {
            code.first_line += lines;
        }
    }
    let own: Vec<u32> =
        run.codes.iter().filter(|code| code.file.starts_with("/home")).map(|code| code.id.0).collect();
    for node in run.nodes.iter_mut().filter(|node| !above_functions && own.contains(&node.code.0)) {
        node.offset_bytes += 2 * lines;
    }
    run
}

fn training_arguments() -> impl Strategy<Value = (u64, Vec<(u16, u8)>, bool)> {
    (0u64..24, prop::collection::vec((1u16..2000, any::<u8>()), 0..12), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn another_run_of_one_program_has_no_differences((steps, lines, oom) in training_arguments(), salt in 1u64..10_000) {
        let run = || training(steps, &lines, oom);
        prop_assert_eq!(difference(&run(), &run()), "");
        prop_assert_eq!(difference(&run(), &in_another_process(run(), salt)), "");
    }

    #[test]
    fn damaged_trace_has_no_differences_from_itself((steps, lines, oom) in training_arguments(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut file = training(steps, &lines, oom).file(100);
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        // A file that cannot be opened is an error of its own.
        if let Some((one, other)) = analyse_by_steps(&file).zip(analyse_by_steps(&file)) {
            let comparison = compare(&Profile::new(&one.0, &one.1), &Profile::new(&other.0, &other.1));
            prop_assert!(!comparison.differs, "{:?}", comparison);
        }
    }

    #[test]
    fn moved_lines_have_no_differences((steps, lines, oom) in training_arguments(), moved in 1i32..300, above in any::<bool>()) {
        let run = || training(steps, &lines, oom);
        prop_assert_eq!(difference(&run(), &from_another_checkout(run(), moved, above)), "");
    }

    #[test]
    fn longer_run_of_one_program_has_no_differences_per_step(steps in 4u64..40, more in 1u64..20) {
        let comparison = compared(&training(steps, &[(7, 2), (100, 3)], false), &training(steps + more, &[(7, 2), (100, 3)], false));
        let names: Vec<String> = comparison.totals.iter().map(|total| total.name.to_string()).collect();
        prop_assert_eq!(names, ["steps"]);
        prop_assert!(comparison.lines.is_empty() && comparison.leaks.is_empty());
        prop_assert!(!comparison.is_worse_in(Worsening::Growth));
    }

    #[test]
    fn growth_of_one_line_is_found_to_the_byte(
        mut lines in prop::collection::vec((1u16..500, any::<u8>()), 1..8), at in any::<prop::sample::Index>(), more in 1u16..3000, moved in 0i32..50,
    ) {
        let at = at.index(lines.len());
        // Behaviour 1: the line keeps one block, of the second step.
        lines[at].1 = 1;
        let before = training(20, &lines, false);
        lines[at].0 += more;
        let after = from_another_checkout(in_another_process(training(20, &lines, false), 7), moved, false);
        let comparison = compared(&before, &after);
        let more = i64::from(more) * 1024;
        // Growth of one line may move the peak, where other lines then hold more or less.
        let of_the_line = |change: &&LineChange| change.retained_bytes.change != 0 || change.bytes_per_step.unwrap().change != 0;
        let found: Vec<&LineChange> = comparison.lines.iter().filter(of_the_line).collect();
        let [line] = &found[..] else { return Err(TestCaseError::fail(difference(&before, &after))) };
        prop_assert_eq!((line.retained_bytes.change, line.bytes_per_step.unwrap().change), (more, more));
        let (old, new) = (line.before.as_ref().unwrap(), line.after.as_ref().unwrap());
        prop_assert_eq!(old.line.unwrap(), 10 + 3 * at as u32);
        prop_assert_eq!(new.line.unwrap(), old.line.unwrap() + moved as u32);
        let total = |name: &str| comparison.totals.iter().find(|total| total.name.to_string() == name).and_then(|total| total.change);
        prop_assert_eq!(total("retained_bytes"), Some(more));
        let at_peak: i64 = comparison.lines.iter().map(|line| line.at_peak_bytes.change).sum();
        prop_assert_eq!(total("peak_live_bytes"), Some(at_peak));
    }
}

#[test]
fn one_added_mebibyte_among_a_million_events_is_found() {
    let run = |injected: bool| {
        let mut blocks = Vec::new();
        Synthetic::train(4600, |run, step, train| {
            for line in 0..100 {
                // The added line lies between the others.
                let moved = i32::from(injected && line >= 40);
                let stack = run.frame(train, "/work/extra.py", "forward", 10 + line + moved);
                blocks.push(run.alloc(stack, (line as u64 % 7 + 1) * 2048));
                if injected && line == 39 && step == 2000 {
                    let new = run.frame(train, "/work/extra.py", "forward", 50);
                    run.alloc(new, MIB);
                }
            }
            blocks.drain(..).rev().for_each(|block| run.release(block, NodeId::NONE));
        })
    };
    let (before, after) = (run(false), in_another_process(run(true), 99));
    assert!(before.events.len() > 1_000_000, "{}", before.events.len());
    let comparison = compared(&before, &after);
    let [line] = &comparison.lines[..] else { panic!("{}", difference(&before, &after)) };
    assert_eq!((line.status, line.site().unwrap().line), (ChangeStatus::Appeared, Some(50)));
    assert_eq!((line.at_peak_bytes.change, line.retained_bytes.change), (MIB as i64, MIB as i64));
    assert_eq!((line.at_peak_blocks.change, line.steps_that_differ), (1, Some(1)));
    let totals: HashMap<String, Option<i64>> =
        comparison.totals.iter().map(|total| (total.name.to_string(), total.change)).collect();
    assert_eq!(totals["peak_live_bytes"], Some(MIB as i64));
    assert_eq!(totals["retained_bytes"], Some(MIB as i64));
    assert_eq!(totals["peak_bytes_per_step"], Some(MIB as i64));
    assert!(!totals.contains_key("bytes_per_step") && !totals.contains_key("allocations_per_step"));
    assert!(comparison.leaks.is_empty());
    // With the runs swapped, the line disappears.
    let back = compared(&after, &before);
    assert_eq!((back.lines.len(), back.lines[0].status), (1, ChangeStatus::Disappeared));
    assert!(!back.is_worse_in(Worsening::Growth) && comparison.is_worse_in(Worsening::Growth));
}

#[test]
fn long_runs_of_unequal_length_are_compared_in_common_steps() {
    // The longer run has more changes than a series keeps, so its series has every other step.
    let run = |steps: u64| {
        Synthetic::train(steps, |run, step, train| {
            let line = run.frame(train, "/work/hooks.py", "hook", 7);
            run.alloc(line, 512 * (1 + step % 2));
            let block = run.alloc(line, 1024 + 512 * (step % 2));
            run.release(block, train);
        })
    };
    let comparison = compared(&run(2040), &run(4200));
    let shown: Vec<String> = comparison.totals.iter().map(|total| total.name.to_string()).collect();
    assert!(!shown.iter().any(|name| name.ends_with("per_step") || name == "retained_bytes"), "{shown:?}");
    // Bytes at the peak differ, since the runs have unequal lengths.
    let [line] = &comparison.lines[..] else { panic!("{:?}", comparison.lines) };
    assert_eq!((line.retained_bytes.change, line.steps_that_differ), (0, Some(0)));
    // With equal lengths, the last step is compared even if the series is thinned.
    let one_more = {
        let mut run = run(4200);
        let line = run.frame(NodeId::NONE, "/work/late.py", "late", 3);
        let stack = run.events.iter().rev().find(|event| event.size == 8192).unwrap().python_stack;
        run.alloc(line, 512);
        let ends_a_step = run.alloc(stack, 8192);
        run.release(ends_a_step, stack);
        run
    };
    let plain = {
        let mut run = run(4200);
        let stack = run.events.iter().rev().find(|event| event.size == 8192).unwrap().python_stack;
        let line = run.frame(NodeId::NONE, "/work/late.py", "late", 3);
        let block = run.alloc(line, 512);
        run.release(block, line);
        let ends_a_step = run.alloc(stack, 8192);
        run.release(ends_a_step, stack);
        run
    };
    let comparison = compared(&plain, &one_more);
    let total = comparison.totals.iter().find(|total| total.name == TotalQuantity::Retained).unwrap();
    assert_eq!(total.change, Some(512));
}

#[test]
fn leaks_appear_grow_and_disappear() {
    let run_of = |steps: u64, bytes: u64| {
        Synthetic::train(steps, |run, _, train| {
            let line = run.frame(train, "/work/hooks.py", "hook", 7);
            let block = run.alloc(line, bytes.max(512));
            if bytes == 0 {
                run.release(block, train);
            }
        })
    };
    let leaky = |bytes: u64| run_of(20, bytes);
    let statuses = |before: u64, after: u64| {
        let comparison = compared(&leaky(before), &from_another_checkout(leaky(after), 5, false));
        let rates = |leak: &gpumemtrace_replay::compare::LeakSide| leak.bytes_per_step.unwrap().0 as u64;
        comparison
            .leaks
            .iter()
            .map(|leak| (leak.status, leak.before.as_ref().map(rates), leak.after.as_ref().map(rates)))
            .collect::<Vec<_>>()
    };
    assert_eq!(statuses(0, MIB), [(ChangeStatus::Appeared, None, Some(MIB))]);
    assert_eq!(statuses(MIB, 0), [(ChangeStatus::Disappeared, Some(MIB), None)]);
    assert_eq!(statuses(MIB, 2 * MIB), [(ChangeStatus::Grew, Some(MIB), Some(2 * MIB))]);
    assert_eq!(statuses(MIB, MIB), []);
    // So few steps are not judged.
    for too_short in [4, 5] {
        let (short, whole) = (run_of(too_short, MIB), leaky(MIB));
        for comparison in [compared(&short, &whole), compared(&whole, &short)] {
            let [leak] = &comparison.leaks[..] else {
                panic!("{too_short}: {:?} {:?}", comparison.notes, comparison.leaks)
            };
            assert_eq!(leak.status, ChangeStatus::Unjudged, "{too_short} steps");
            assert!(!comparison.is_worse_in(Worsening::Leaks));
        }
    }
}

#[test]
fn runs_without_steps_are_compared_as_a_whole() {
    let run = |more: u64| {
        let mut run = Synthetic::new();
        let line = run.frame(NodeId::NONE, "/work/once.py", "<module>", 3);
        run.alloc(line, 4096 + more);
        let other = run.frame(NodeId::NONE, "/work/once.py", "<module>", 4);
        let block = run.alloc(other, 512);
        run.release(block, other);
        run
    };
    assert_eq!(difference(&run(0), &in_another_process(run(0), 3)), "");
    let comparison = compared(&run(0), &run(512));
    assert_eq!(comparison.steps, None);
    let [line] = &comparison.lines[..] else { panic!() };
    assert_eq!(
        (line.retained_bytes.change, line.allocations.unwrap().change, line.bytes_per_step),
        (512, 0, None)
    );
}

#[test]
fn leaks_without_steps_are_noted_and_not_compared() {
    // One line keeps 500 blocks and another one frees 300, mixed or one after the other.
    let run = |is_mixed: bool| {
        let mut run = Synthetic::new();
        let keep = run.frame(NodeId::NONE, "/work/fill.py", "fill", 3);
        let scratch = run.frame(NodeId::NONE, "/work/fill.py", "fill", 7);
        let scatter = |round: u64| ((round * round) ^ round).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 4093;
        let mut rounds: Vec<u64> = (0..800).collect();
        if is_mixed {
            rounds.sort_by_key(|round| scatter(*round));
        }
        for round in rounds {
            if round < 500 {
                run.alloc(keep, 512);
            } else {
                let block = run.alloc(scratch, 512);
                run.release(block, scratch);
            }
        }
        run.alloc(scratch, 512);
        run
    };
    let leaks = |run: &Synthetic| {
        let (analysis, amounts) = analysed(run);
        Profile::new(&analysis, &amounts).leaks.len()
    };
    assert_ne!(leaks(&run(false)), leaks(&run(true)), "or there is nothing to see here");
    assert_eq!(difference(&run(false), &run(true)), "");
    let notes = compared(&run(false), &run(true)).notes;
    assert!(
        notes.iter().any(|note| matches!(note.fact, ComparisonNote::LeaksNotCompared { .. })),
        "{notes:?}"
    );
}

#[test]
fn driver_memory_without_pytorch_is_compared() {
    let run = |bytes: u64| {
        let mut run = Synthetic::new();
        for step in 0..12u64 {
            run.event(EventKind::MARK, 0, 0, [1, 0], NodeId::NONE);
            let line = run.frame(NodeId::NONE, "/work/cupy.py", "f", 3);
            run.event(EventKind::DEVICE_ALLOC, 0x1000 + (step << 30), bytes, [0; 2], line);
            run.event(EventKind::DEVICE_FREE, 0x1000 + (step << 30), 0, [0; 2], line);
        }
        run
    };
    assert_eq!(difference(&run(4096), &in_another_process(run(4096), 5)), "");
    let comparison = compared(&run(4096), &run(8192));
    assert_eq!(comparison.lines[0].bytes_per_step.unwrap().change, 4096);
    let names: Vec<String> = comparison.totals.iter().map(|total| total.name.to_string()).collect();
    assert_eq!(names, ["held_by.unknown", "peak_device_bytes", "peak_bytes_per_step", "bytes_per_step"]);
}
