//! Growth that must not be called a leak without doubt, and growth that no report may pass over.

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::report::{
    AssessmentLimit, BenignRule, GrowingSite, GrowthClass, Severity, StepSource, VerdictEvidence,
};
use gpumemtrace_replay::{Report, blocks_of_leaks};
use gpumemtrace_synthetic::Synthetic;

const MIB: u64 = 1 << 20;

fn growth(report: &Report) -> &[GrowingSite] {
    &report.leak_assessment.as_ref().unwrap()[0].growth
}

fn leaking_lines(report: &Report) -> Vec<u32> {
    report.leaks.iter().flatten().filter_map(|leak| leak.site.line).collect()
}

fn assert_is_warned_about(report: &Report) {
    let verdicts = report.verdicts.as_ref().unwrap();
    let warns = verdicts.iter().any(|verdict| {
        verdict.severity == Severity::Warning && matches!(verdict.evidence, VerdictEvidence::Growth { .. })
    });
    assert!(warns, "{verdicts:#?}");
}

/// A script that calls a model of three lines `calls` times. Each call frees two blocks and keeps
/// one. Nothing is allocated or freed between the calls.
fn calls_on_resident_input(calls: u64, keeps: bool) -> Report {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/main.py", "<module>", 9);
    let call = run.frame(main, "/venv/torch/nn/modules/module.py", "Module._wrapped_call_impl", 50);
    let lines: Vec<NodeId> =
        (0..3).map(|line| run.frame(call, "/work/model.py", "Net.forward", 20 + line)).collect();
    for _ in 0..calls {
        let blocks: Vec<u64> = lines.iter().map(|line| run.alloc(*line, MIB)).collect();
        let freed = if keeps { 2 } else { 3 };
        blocks[..freed].iter().for_each(|block| run.release(*block, lines[2]));
    }
    run.report()
}

#[test]
fn model_called_again_and_again_on_one_input_is_a_possible_leak() {
    let report = calls_on_resident_input(400, true);
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line, one.needs), (GrowthClass::PossibleLeak, Some(22), None));
    assert_is_warned_about(&report);
    assert!(growth(&calls_on_resident_input(400, false)).is_empty());
}

#[test]
fn equal_tensors_in_one_go_are_no_leak() {
    let allocate = |run: &mut Synthetic, blocks: u64| {
        let line = run.frame(NodeId::NONE, "/work/cache.py", "<module>", 3);
        (0..blocks).for_each(|_| {
            run.alloc(line, 2 * MIB);
        });
    };
    let mut run = Synthetic::new();
    allocate(&mut run, 64);
    let alone = run.report();
    assert_eq!(leaking_lines(&alone), Vec::<u32>::new());
    let [one] = growth(&alone) else { panic!("{:#?}", growth(&alone)) };
    assert_eq!(one.class, GrowthClass::PossibleLeak, "a loop that does nothing else looks the same");
    // What follows shows that it was the set-up.
    let serve = run.frame(NodeId::NONE, "/work/cache.py", "serve", 9);
    for _ in 0..200 {
        let block = run.alloc(serve, MIB);
        run.release(block, serve);
    }
    let served = run.report();
    assert_eq!((leaking_lines(&served), growth(&served).len()), (Vec::new(), 0), "{:#?}", growth(&served));
}

#[test]
fn layers_that_a_loop_allocates_in_one_go_are_no_certain_leak() {
    let mut run = Synthetic::new();
    let [weight, bias] = [4, 5].map(|line| run.frame(NodeId::NONE, "/work/model.py", "<module>", line));
    for _ in 0..24 {
        run.alloc(weight, 4 * MIB);
        run.alloc(bias, 512);
    }
    let report = run.report();
    assert_eq!(report.steps.as_ref().unwrap().source, Some(StepSource::Period));
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    assert_eq!(growth(&report)[0].class, GrowthClass::PossibleLeak);
    assert_is_warned_about(&report);
}

/// A script that copies 24 weights, through a temporary each, and then ends with this exit code. It
/// calls a model in each round, or has `earlier` bytes before.
fn loads_weights(exit_code: u8, calls_model: bool, earlier: u64) -> Report {
    let mut run = Synthetic::new();
    let [before, copy, cast, model] =
        [2, 4, 5, 6].map(|line| run.frame(NodeId::NONE, "/work/load.py", "<module>", line));
    let call = run.frame(model, "/venv/torch/nn/modules/module.py", "Module._wrapped_call_impl", 50);
    let layer = run.frame(call, "/work/model.py", "Net.forward", 20);
    run.alloc(before, earlier);
    for _ in 0..24 {
        let temporary = run.alloc(copy, 4 * MIB);
        run.alloc(cast, 2 * MIB);
        run.release(temporary, cast);
        if calls_model {
            let output = run.alloc(layer, MIB);
            run.release(output, model);
        }
    }
    run.meta.set_text("wait_status", format!("exit {exit_code}"));
    run.report()
}

#[test]
fn weights_of_a_program_that_failed_before_it_ran_are_no_certain_leak() {
    let report = loads_weights(1, false, 512);
    assert_eq!(report.steps.as_ref().unwrap().source, Some(StepSource::Period));
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line), (GrowthClass::PossibleLeak, Some(5)));
    assert_is_warned_about(&report);
}

#[test]
fn growth_over_the_rounds_of_a_model_is_a_leak_whatever_the_exit_code() {
    for (exit_code, calls_model, earlier) in [(0, false, 512), (1, true, 512), (1, false, 64 * MIB)] {
        let report = loads_weights(exit_code, calls_model, earlier);
        assert_eq!(leaking_lines(&report), [5], "{exit_code} {calls_model} {earlier}");
    }
}

#[test]
fn without_stacks_layers_are_no_steps_and_no_leak() {
    let mut run = Synthetic::new();
    for _ in 0..64 {
        let temporary = run.alloc(NodeId::NONE, 3 * MIB);
        run.alloc(NodeId::NONE, MIB);
        run.release(temporary, NodeId::NONE);
    }
    let report = run.report();
    assert_eq!((leaking_lines(&report), report.leaks.as_ref().map(Vec::len)), (Vec::new(), Some(0)));
    assert_eq!(report.steps.as_ref().unwrap().source, None);
    let limits = &report.leak_assessment.as_ref().unwrap()[0].limits;
    assert!(limits.contains(&AssessmentLimit::NoStacks), "{limits:?}");
    assert_eq!(growth(&report)[0].class, GrowthClass::PossibleLeak);
}

#[test]
fn one_line_whose_stacks_follow_each_other_is_one_leak() {
    let run = Synthetic::train(80, |run, step, train| {
        let phase = run.frame(train, "/work/train.py", "phase", if step < 40 { 60 } else { 61 });
        let helper = run.frame(phase, "/work/helper.py", "remember", 7);
        run.alloc(helper, MIB);
    });
    let report = run.report();
    let [leak] = &report.leaks.as_ref().unwrap()[..] else { panic!("{:#?}", report.leaks) };
    assert_eq!((leak.site.line, leak.blocks, leak.first_step), (Some(7), 80, Some(0)));
}

#[test]
fn cell_that_runs_again_is_one_line() {
    let run = Synthetic::train(60, |run, step, _| {
        let cell = run.frame(NodeId::NONE, &format!("<ipython-input-{step}-5b1c0f2e9a7d>"), "<module>", 2);
        run.alloc(cell, MIB);
    });
    let report = run.report();
    let [leak] = &report.leaks.as_ref().unwrap()[..] else { panic!("{:#?}", report.leaks) };
    assert_eq!((leak.site.file.as_deref(), leak.blocks), (Some("<ipython-input-5b1c0f2e9a7d>"), 60));
}

#[test]
fn growth_at_no_single_line_is_reported_with_its_caller() {
    let run = Synthetic::train(60, |run, step, train| {
        let caller = run.frame(train, "/work/train.py", "log", 70);
        let line = run.frame(caller, "/work/log.py", "write", 100 + step as i32);
        run.alloc(line, MIB);
    });
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line), (GrowthClass::Unknown, Some(70)));
    assert!((55 * MIB..=60 * MIB).contains(&one.bytes), "{one:#?}");
    assert_is_warned_about(&report);
}

#[test]
fn small_sizes_that_grow_are_listed() {
    let mut last = None;
    let run = Synthetic::train(60, |run, step, train| {
        let line = run.frame(train, "/work/train.py", "extend", 70);
        let longer = run.alloc(line, 512 * (step + 1));
        if let Some(shorter) = last.replace(longer) {
            run.release(shorter, line);
        }
    });
    let report = run.report();
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line), (GrowthClass::GrowingSizes, Some(70)));
}

#[test]
fn slack_of_blocks_hides_no_growing_size() {
    let growing = |more: u64| {
        let mut last = None;
        let run = Synthetic::train(60, |run, step, train| {
            let line = run.frame(train, "/work/train.py", "extend", 70);
            let slack = (step * 7) % 16 * 65_536;
            let longer = run.alloc(line, 2 * MIB + more * step + slack);
            if let Some(shorter) = last.replace(longer) {
                run.release(shorter, line);
            }
        });
        growth(&run.report()).iter().map(|one| (one.class, one.site.line)).collect::<Vec<_>>()
    };
    assert_eq!(growing(65_536), [(GrowthClass::GrowingSizes, Some(70))]);
    assert_eq!(growing(0), []);
}

/// A training that keeps a block of each of these lines and sizes in four of its 31 steps.
fn keeps_four_times(blocks: &[(i32, u64)]) -> Synthetic {
    Synthetic::train(31, |run, step, train| {
        for (line, bytes) in blocks.iter().filter(|_| [10, 15, 20, 25].contains(&step)) {
            let keep = run.frame(train, "/work/train.py", "keep", *line);
            run.alloc(keep, *bytes);
        }
    })
}

#[test]
fn possible_leak_has_rate_forecast_and_stack() {
    let run = keeps_four_times(&[(70, 64 * MIB)]);
    let report = run.report();
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    let finding = one.finding.as_deref().unwrap();
    assert_eq!((one.class, finding.confidence), (GrowthClass::PossibleLeak, None));
    assert_eq!((finding.blocks, finding.bytes), (4, 256 * MIB));
    assert!(finding.bytes_per_step.is_some() && finding.oom_step.is_some() && !finding.site.stack.is_empty());
    assert_is_warned_about(&report);
}

/// A training that keeps a block in each step at line 70, and frees one of 60 others in exchange.
fn exchange() -> Synthetic {
    let mut others = Vec::new();
    Synthetic::train(60, |run, step, train| {
        let stock = run.frame(train, "/work/train.py", "stock", 60);
        if step == 0 {
            others.extend((0..60).map(|_| run.alloc(stock, MIB)));
        }
        let keep = run.frame(train, "/work/train.py", "keep", 70);
        run.alloc(keep, MIB);
        run.release(others.pop().unwrap(), stock);
    })
}

#[test]
fn snapshot_whose_live_bytes_did_not_grow_has_no_leak() {
    let mut run = exchange();
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line), (GrowthClass::PossibleLeak, Some(70)), "of the whole program");
    run.meta.set_list("mode", vec!["snapshot".to_owned()]);
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let benign = report.benign_growth.as_ref().unwrap();
    assert!(benign.iter().any(|one| (one.rule, one.site.line) == (BenignRule::Replaced, Some(70))));
}

#[test]
fn blocks_that_are_freed_at_the_end_of_a_snapshot_are_no_leak() {
    let mut kept = Vec::new();
    let mut run = Synthetic::train(60, |run, _, train| {
        let keep = run.frame(train, "/work/train.py", "keep", 70);
        kept.push(run.alloc(keep, MIB));
    });
    for block in kept {
        run.release(block, NodeId::NONE);
    }
    assert_eq!(leaking_lines(&run.report()), [70], "the teardown of a program frees everything");
    run.meta.set_list("mode", vec!["snapshot".to_owned()]);
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let benign = report.benign_growth.as_ref().unwrap();
    assert!(benign.iter().any(|one| (one.rule, one.site.line) == (BenignRule::Released, Some(70))));
}

#[test]
fn holders_of_a_possible_leak_are_searched_for() {
    let run = keeps_four_times(&[(70, 64 * MIB)]);
    let [searched] = &blocks_of_leaks(&run.analyse())[..] else { panic!("one possible leak") };
    let blocks: u64 = searched.stacks.iter().map(|stack| stack.blocks).sum();
    assert_eq!((searched.line, blocks), (Some(70), 4));
}

#[test]
fn small_growth_of_the_same_function_is_not_a_second_finding() {
    let evaluate = |small: u64| {
        let run = keeps_four_times(&[(41, 64 * MIB), (42, small)]);
        growth(&run.report()).iter().map(|one| (one.site.line, one.blocks)).collect::<Vec<_>>()
    };
    assert_eq!(evaluate(512), [(Some(41), 8)]);
    assert_eq!(evaluate(MIB), [(Some(41), 4), (Some(42), 4)]);
}

#[test]
fn blocks_in_place_of_others_are_no_certain_leak_of_a_run_without_steps() {
    let mut run = Synthetic::new();
    let old = run.frame(NodeId::NONE, "/work/grow.py", "<module>", 8);
    let new = run.frame(NodeId::NONE, "/work/grow.py", "<module>", 10);
    let weights: Vec<u64> = (0..40).map(|_| run.alloc(old, 20 * MIB)).collect();
    for weight in weights {
        run.alloc(new, 22 * MIB);
        run.release(weight, new);
    }
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line), (GrowthClass::PossibleLeak, Some(10)));
}

#[test]
fn size_that_grew_in_few_steps_has_its_mean_rate() {
    let mut last = None;
    let run = Synthetic::train(80, |run, step, train| {
        let line = run.frame(train, "/work/train.py", "extend", 70);
        if [0, 11, 31, 51, 71].contains(&step) {
            let longer = run.alloc(line, (step / 20 + 1 + u64::from(step > 0)) * MIB);
            if let Some(shorter) = last.replace(longer) {
                run.release(shorter, line);
            }
        }
    });
    let report = run.report();
    let [one] = growth(&report) else { panic!("{:#?}", growth(&report)) };
    assert_eq!((one.class, one.site.line, one.bytes), (GrowthClass::GrowingSizes, Some(70), 4 * MIB));
    let rate = one.bytes_per_step.unwrap().0;
    assert!((4e6 / 80.0..5e6 / 60.0).contains(&rate), "{one:#?}");
}

#[test]
fn model_whose_calls_each_keep_all_layers_leaks() {
    let mut run = Synthetic::new();
    let inputs = [41, 42].map(|line| run.frame(NodeId::NONE, "/work/main.py", "<module>", line));
    let main = run.frame(NodeId::NONE, "/work/main.py", "<module>", 43);
    let call = run.frame(main, "/venv/torch/nn/modules/module.py", "Module._wrapped_call_impl", 50);
    let layer = run.frame(call, "/venv/torch/nn/functional.py", "relu", 7);
    for round in 0..30 {
        // Two paths lead to the call, so no allocation begins each round.
        let input = inputs[usize::from(round % 3 == 0)];
        let images = run.alloc(input, MIB);
        for _ in 0..12 {
            let temporary = run.alloc(layer, MIB);
            run.alloc(layer, MIB);
            run.release(temporary, layer);
        }
        run.release(images, input);
    }
    let report = run.report();
    assert_eq!(
        (report.steps.as_ref().map(|steps| steps.source), leaking_lines(&report)),
        (Some(None), vec![43])
    );
}

#[test]
fn leak_of_every_step_is_no_part_of_a_graph_that_is_kept_now_and_then() {
    let run = Synthetic::train(100, |run, step, train| {
        let output = run.frame(train, "/work/train.py", "train", 70);
        run.alloc(output, MIB);
        if step % 10 == 9 {
            // The batch is a part of the graph, so the loop is the line that both have in common.
            let batch = run.frame(train, "/work/train.py", "train", 80);
            run.alloc(batch, MIB);
            let evaluate = run.frame(train, "/work/train.py", "train", 81);
            for line in 0..6 {
                let layer = run.frame(evaluate, "/work/model.py", "Net.forward", 20 + line);
                run.alloc(layer, MIB);
            }
        }
    });
    let mut lines = leaking_lines(&run.report());
    lines.sort_unstable();
    assert_eq!(lines, [70, 81]);
}
