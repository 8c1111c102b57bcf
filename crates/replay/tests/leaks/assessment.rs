//! Verdicts on leaks that must not mislead: churn, episodes, growing sizes, few events, runs
//! without steps, and runs whose last part has none.

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{
    AssessmentLimit, AssessmentStatus, BenignRule, GrowthClass, LeakAssessment, LeakShape, Quantity,
};
use gpumemtrace_synthetic::Synthetic;

fn assessment(report: &Report) -> &LeakAssessment {
    &report.leak_assessment.as_ref().unwrap()[0]
}

/// The lines of all leaks of a report.
fn leaking_lines(report: &Report) -> Vec<u32> {
    report.leaks.iter().flatten().filter_map(|leak| leak.site.line).collect()
}

#[test]
fn growth_of_five_events_is_a_possible_leak_and_says_how_many_are_missing() {
    let run = Synthetic::train(31, |run, step, train| {
        if [10, 14, 18, 22, 26].contains(&step) {
            let keep = run.frame(train, "/work/train.py", "keep", 70);
            run.alloc(keep, 5 << 20);
        }
    });
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let assessment = assessment(&report);
    assert_eq!(assessment.status, AssessmentStatus::Assessed);
    let [growth] = &assessment.growth[..] else { panic!("{assessment:#?}") };
    assert_eq!((growth.class, growth.site.line), (GrowthClass::PossibleLeak, Some(70)));
    assert_eq!((growth.bytes, growth.events, growth.needs), (5 * (5 << 20), Some(5), Some(1)));
}

#[test]
fn member_of_a_graph_that_is_kept_now_and_then_counts_in_its_rate() {
    let run = Synthetic::train(40, |run, step, _| {
        let at = run.frame(NodeId::NONE, "/work/train.py", "<module>", 95);
        let validate = run.frame(at, "/work/train.py", "validate", 61);
        for layer in 0..5 {
            let line = run.frame(validate, "/work/model.py", "Net.forward", 20 + layer);
            let inner = run.frame(line, "/work/model.py", "Block.forward", 100 + layer);
            run.alloc(inner, 1 << 20);
        }
        // A large tensor that only some steps need, at distances without a period.
        if [9, 16, 31].contains(&step) {
            let line = run.frame(validate, "/work/model.py", "Net.forward", 30);
            run.alloc(line, 400 << 20);
        }
    });
    let report = run.report();
    let leaks = report.leaks.as_ref().unwrap();
    assert_eq!((leaks.len(), leaks[0].shape), (1, LeakShape::RetainedGraph), "{leaks:#?}");
    let bytes = 40 * 5 * (1 << 20) + 3 * (400 << 20);
    assert_eq!(leaks[0].bytes, bytes);
    let rate = leaks[0].bytes_per_step.unwrap().0;
    assert!((rate / (bytes as f64 / 40.0) - 1.0).abs() < 0.3, "{rate}");
}

#[test]
fn longer_episodes_are_no_leak() {
    // Each episode frees its blocks at its end, and lasts longer than the one before.
    let (mut held, mut left, mut length) = (Vec::new(), 4u64, 4u64);
    let run = Synthetic::train(200, |run, _, train| {
        let line = run.frame(train, "/work/agent.py", "act", 31);
        held.push(run.alloc(line, 2 << 20));
        left -= 1;
        if left == 0 {
            held.drain(..).for_each(|addr| run.release(addr, line));
            length += 3;
            left = length;
        }
    });
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
}

#[test]
fn layers_that_are_unfrozen_add_gradients_and_no_leak() {
    let mut gradients: Vec<u64> = Vec::new();
    let run = Synthetic::train(120, |run, step, train| {
        let line = run.frame(train, "/work/train.py", "backward", 52);
        gradients.drain(..).for_each(|addr| run.release(addr, line));
        for _ in 0..=step / 10 {
            gradients.push(run.alloc(line, 4 << 20));
        }
    });
    let report = run.report();
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
}

#[test]
fn small_leak_beside_churn_has_its_own_rate_and_caller() {
    let mut held = Vec::new();
    let run = Synthetic::train(300, |run, step, train| {
        // One helper serves a buffer that churns and a log that leaks 4 KiB per step.
        let healthy = run.frame(train, "/work/train.py", "buffer", 20);
        let churn = run.frame(healthy, "/work/util.py", "to_gpu", 8);
        for at in 0..step % 7 {
            held.push(run.alloc(churn, (at + 1) << 20));
        }
        if held.len() > 12 {
            held.drain(..9).for_each(|addr| run.release(addr, churn));
        }
        let leaky = run.frame(train, "/work/train.py", "log", 33);
        let leak = run.frame(leaky, "/work/util.py", "to_gpu", 8);
        run.alloc(leak, 4096);
    });
    let report = run.report();
    let leaks = report.leaks.as_ref().unwrap();
    assert_eq!(leaking_lines(&report), [33], "{leaks:#?}");
    assert_eq!(leaks[0].bytes_per_step, Some(Quantity(4096.0)));
    assert_eq!((leaks[0].blocks, leaks[0].leaf.as_ref().unwrap().line), (300, Some(8)));
}

#[test]
fn periodic_leak_begins_at_its_first_event() {
    let run = Synthetic::train(100, |run, step, train| {
        if step >= 20 && step % 10 == 0 {
            let keep = run.frame(train, "/work/train.py", "validate", 61);
            run.alloc(keep, 8 << 20);
        }
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!((leaks[0].period_steps, leaks[0].first_step), (Some(10), Some(20)));
    assert_eq!(leaks[0].bytes_per_step, Some(Quantity(f64::from(8 << 20) / 10.0)));
}

#[test]
fn blocks_that_get_larger_and_stay_accelerate() {
    let run = Synthetic::train(60, |run, step, train| {
        let keep = run.frame(train, "/work/train.py", "keep", 70);
        run.alloc(keep, (step + 1) << 18);
    });
    let leaks = run.report().leaks.unwrap();
    assert_eq!((leaks.len(), leaks[0].shape), (1, LeakShape::Accelerating));
}

/// A server that keeps a block of each request and handles it with a varying number of temporaries.
fn server(requests: u64, keeps: bool) -> Synthetic {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/serve.py", "<module>", 50);
    let handle = run.frame(main, "/work/serve.py", "handle", 12);
    let cache = run.frame(handle, "/work/serve.py", "remember", 30);
    for request in 0..requests {
        for part in 0..3 + request.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 5 {
            let block = run.alloc(handle, (part + 1) << 20);
            run.release(block, handle);
        }
        if keeps {
            run.alloc(cache, (1 + request % 3) << 20);
        }
        // Some requests wait long: time plays no role.
        run.time_ns += request % 11 * 1_000_000;
    }
    run.release_all();
    run
}

#[test]
fn server_that_keeps_every_request_is_found() {
    for requests in [300, 1000] {
        assert_eq!(leaking_lines(&server(requests, true).report()), [30], "{requests}");
        assert_eq!(leaking_lines(&server(requests, false).report()), Vec::<u32>::new());
    }
}

#[test]
fn run_without_steps_is_assessed_in_part() {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/explore.py", "<module>", 50);
    let lines: Vec<NodeId> =
        (0..7).map(|line| run.frame(main, "/work/explore.py", "cell", 10 + line)).collect();
    for at in 0..500u64 {
        let line = lines[(at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % 7];
        let block = run.alloc(line, (at % 13 + 1) << 18);
        run.release(block, line);
    }
    let report = run.report();
    let assessment = assessment(&report);
    assert_eq!(assessment.status, AssessmentStatus::Partly);
    assert!(
        matches!(assessment.limits[..], [AssessmentLimit::NoSteps { intervals: 64.., .. }]),
        "{assessment:#?}"
    );
}

#[test]
fn timing_does_not_change_the_verdict_of_a_run_without_steps() {
    let (first, mut second) = (server(300, true), server(300, true));
    for (event, delay) in second.events.iter_mut().zip(1u64..) {
        event.time_ns += delay * delay * 1000;
    }
    let [first, second] = [first, second].map(|run| run.report().leaks.unwrap());
    assert_eq!(first.len(), second.len());
    for (a, b) in first.iter().zip(&second) {
        assert_eq!(
            (&a.site.id, a.bytes, a.blocks, a.confidence),
            (&b.site.id, b.bytes, b.blocks, b.confidence)
        );
    }
}

#[test]
fn few_steps_are_not_assessed() {
    let report = Synthetic::train(3, |_, _, _| {}).report();
    let assessment = assessment(&report);
    assert_eq!(assessment.status, AssessmentStatus::NotAssessed);
    assert!(matches!(assessment.limits[..], [AssessmentLimit::FewSteps { steps: 3, needed: 5 }]));
}

#[test]
fn long_part_after_the_last_step_is_not_assessed() {
    let mut run = Synthetic::train(20, |_, _, _| {});
    let main = run.frame(NodeId::NONE, "/work/train.py", "<module>", 99);
    let evaluate = run.frame(main, "/work/train.py", "evaluate", 80);
    for _ in 0..2000 {
        let block = run.alloc(evaluate, 1 << 20);
        run.release(block, evaluate);
    }
    let report = run.report();
    let assessment = assessment(&report);
    assert_eq!(assessment.status, AssessmentStatus::Partly);
    assert!(matches!(assessment.limits[..], [AssessmentLimit::AfterLastStep { share: 0.5.., .. }]));
}

/// A script that calls a model of 60 equal layers and a head `calls` times and keeps what they
/// allocate.
fn forward_passes(calls: u64) -> Report {
    let mut run = Synthetic::new();
    let main = run.frame(NodeId::NONE, "/work/main.py", "<module>", 9);
    let call = run.frame(main, "/venv/torch/nn/modules/module.py", "Module._wrapped_call_impl", 50);
    let net = run.frame(call, "/work/model.py", "Net.forward", 20);
    let input = run.frame(NodeId::NONE, "/work/main.py", "<module>", 8);
    for _ in 0..calls {
        run.alloc(input, 1 << 20);
        for _ in 0..60 {
            let layer = run.frame(net, "/work/model.py", "Block.forward", 34);
            let temporary = run.alloc(layer, 1 << 20);
            run.alloc(layer, 1 << 20);
            run.release(temporary, layer);
        }
        let head = run.frame(call, "/work/model.py", "Net.forward", 21);
        run.alloc(head, 1 << 20);
    }
    run.report()
}

#[test]
fn activations_of_one_forward_pass_are_no_leak() {
    let report = forward_passes(1);
    assert_eq!(leaking_lines(&report), Vec::<u32>::new());
    let kept = &report.benign_growth.as_ref().unwrap()[0];
    assert_eq!((kept.rule, kept.site.line), (BenignRule::OneModelCall, Some(34)));
    assert_eq!(assessment(&report).status, AssessmentStatus::Partly);
    assert!(!leaking_lines(&forward_passes(100)).is_empty(), "activations of many passes are one");
}
