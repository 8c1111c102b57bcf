//! Verdicts and the comparison of ranks: no problems on healthy runs, and the right ones, with
//! exact numbers, on problematic runs.

mod population;

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::report::{Confidence, RankAlignment, RemedyKind, Severity, Verdict, VerdictEvidence};
use gpumemtrace_replay::{Analysis, Report, report};
use gpumemtrace_synthetic::Synthetic;
use population::healthy_run;

/// Kinds of verdicts that report a problem with the memory of a run.
const OF_MEMORY: [&str; 9] = [
    "high_pressure",
    "cache_pressure",
    "fragmentation_like",
    "reserved_overhang",
    "hidden_memory",
    "transient_spike",
    "persistent_drift",
    "creep_confirmed",
    "imbalance",
];

fn kind(verdict: &Verdict) -> String {
    let verdict = serde_json::to_value(verdict).expect("JSON");
    verdict["kind"].as_str().expect("a word").to_owned()
}

fn of_memory(report: &Report) -> Vec<&Verdict> {
    report.verdicts.iter().flatten().filter(|verdict| OF_MEMORY.contains(&&*kind(verdict))).collect()
}

fn find<'a>(report: &'a Report, wanted: &str) -> &'a Verdict {
    let found = of_memory(report).into_iter().find(|verdict| kind(verdict) == wanted);
    found.unwrap_or_else(|| panic!("no {wanted}: {:#?}", report.verdicts))
}

/// One rank of a training with batches of `batch_mib`, that leaks 1 MiB per step from a step on.
fn rank(rank: u64, world: u64, batch_mib: u64, leaks_from: Option<u64>) -> Analysis {
    let mut run = Synthetic::train(40, |run, step, train| {
        let batch = run.frame(train, "/work/train.py", "load", 20);
        let held = run.alloc(batch, batch_mib << 20);
        run.release(held, batch);
        if leaks_from.is_some_and(|from| step >= from) {
            let kept = run.frame(train, "/work/train.py", "log", 31);
            run.alloc(kept, 1 << 20);
        }
    });
    run.meta.set_number("rank", rank);
    run.meta.set_number("world_size", world);
    run.meta.set_number("device.0.total_bytes", 1 << 30);
    run.analyse()
}

#[test]
fn healthy_runs_have_no_warnings() {
    let warned: Vec<_> = (0..200)
        .filter_map(|seed| {
            let report = healthy_run(seed).run.report();
            let worse = of_memory(&report).into_iter().find(|verdict| verdict.severity > Severity::Info);
            worse.map(|verdict| (seed, verdict.clone()))
        })
        .collect();
    assert!(warned.is_empty(), "{warned:#?}");
}

#[test]
fn full_device_is_high_pressure_and_a_single_peak_is_a_spike_with_its_line() {
    let filled = |once: bool| {
        let mut run = Synthetic::train(300, |run, step, train| {
            if step == 200 || !once {
                let evaluate = run.frame(train, "/work/train.py", "evaluate", 90);
                let held = run.alloc(evaluate, 960 << 20);
                run.release(held, evaluate);
            }
        });
        run.meta.set_number("device.0.total_bytes", 1 << 30);
        run.report()
    };
    let always = filled(false);
    assert_eq!(find(&always, "high_pressure").severity, Severity::Warning);
    assert!(of_memory(&always).iter().all(|verdict| kind(verdict) != "transient_spike"));
    let once = filled(true);
    let spike = find(&once, "transient_spike");
    let VerdictEvidence::TransientSpike { step, more_by_site, .. } = &spike.evidence else {
        panic!("a spike")
    };
    assert_eq!((spike.severity, *step), (Severity::Warning, Some(200)));
    assert_eq!((more_by_site[0].site.line, more_by_site[0].bytes), (Some(90), 960 << 20));
}

#[test]
fn creep_is_the_sum_of_all_leaks() {
    let run = Synthetic::train(60, |run, _, train| {
        for line in [31, 32] {
            let kept = run.frame(train, "/work/train.py", &format!("keep_{line}"), line);
            run.alloc(kept, 1 << 20);
        }
    });
    let report = run.report();
    let creep = find(&report, "creep_confirmed");
    let sum: f64 =
        report.leaks.iter().flatten().filter_map(|leak| leak.bytes_per_step).map(|rate| rate.0).sum();
    let VerdictEvidence::CreepConfirmed { bytes_per_step, findings, .. } = &creep.evidence else {
        panic!("growth")
    };
    assert_eq!((*bytes_per_step, *findings), (sum, 2));
    assert!((sum - f64::from(2 << 20)).abs() < 1.0, "{sum}");
}

/// Severity and expected step of `creep_confirmed` for a leak of so many bytes in each of 60 steps.
fn creep_of(bytes_per_step: u64) -> (Severity, Option<u64>) {
    let run = Synthetic::train(60, |run, _, train| {
        let kept = run.frame(train, "/work/train.py", "keep", 31);
        run.alloc(kept, bytes_per_step);
    });
    let report = run.report();
    let creep = find(&report, "creep_confirmed");
    let VerdictEvidence::CreepConfirmed { oom_step, .. } = &creep.evidence else { panic!("growth") };
    (creep.severity, oom_step.map(|forecast| forecast.expected))
}

#[test]
fn creep_is_critical_only_if_the_device_is_full_soon() {
    // The device has 24 GiB: about 3,000, 200,000 and 48,000,000 steps.
    let (severity, step) = creep_of(8 << 20);
    assert!(severity == Severity::Critical && step.is_some_and(|step| step < 10_000), "{step:?}");
    let (severity, step) = creep_of(128 << 10);
    assert!(severity == Severity::Warning && step.is_some_and(|step| step > 100_000), "{step:?}");
    assert_eq!(creep_of(512), (Severity::Warning, None), "too far to be told");
}

#[test]
fn ranks_are_aligned_by_step_and_an_uneven_batch_is_an_imbalance() {
    let even: Vec<Analysis> = (0..4).map(|number| rank(number, 4, 64, None)).collect();
    let even = report(&even, &[]);
    let ranks = even.ranks.as_ref().unwrap();
    assert_eq!(
        (ranks.rows.len(), ranks.missing_ranks, ranks.aligned_by),
        (4, Some(0), Some(RankAlignment::Step))
    );
    assert!(ranks.first_cause.is_none() && ranks.more_by_site.is_empty());
    assert!(of_memory(&even).is_empty(), "{:#?}", even.verdicts);

    let uneven: Vec<Analysis> =
        (0..4).map(|number| rank(number, 4, if number == 2 { 600 } else { 64 }, None)).collect();
    let uneven = report(&uneven, &[]);
    let verdict = find(&uneven, "imbalance");
    assert_eq!((verdict.trace, verdict.severity), (2, Severity::Critical));
    assert!(matches!(verdict.evidence, VerdictEvidence::Imbalance { rank: Some(2), .. }));
    let more = &uneven.ranks.as_ref().unwrap().more_by_site[0];
    assert_eq!(
        (more.site.line, more.bytes),
        (Some(20), 536 << 20),
        "the others hold a batch at their peak too"
    );
}

#[test]
fn first_cause_is_the_rank_that_grew_first_with_its_confidence() {
    let begins = [None, Some(20), Some(5), None];
    let all: Vec<Analysis> =
        begins.into_iter().zip(0..).map(|(from, number)| rank(number, 4, 64, from)).collect();
    let first = |report: Report| report.ranks.unwrap().first_cause.unwrap();
    let cause = first(report(&all, &[]));
    assert_eq!(
        (cause.row, cause.step, cause.lead_steps, cause.confidence),
        (2, 5, Some(15), Confidence::High)
    );
    assert_eq!(cause.site.line, Some(31));
    // The order of the traces does not matter.
    let mut turned = all;
    turned.reverse();
    let cause = first(report(&turned, &[]));
    assert_eq!((cause.row, cause.step), (2, 5));
    turned.truncate(3);
    assert_eq!(first(report(&turned, &[])).confidence, Confidence::Low, "a rank is missing");
    let together: Vec<Analysis> = (0..2).map(|number| rank(number, 2, 64, Some(5))).collect();
    assert_eq!(first(report(&together, &[])).confidence, Confidence::Medium);
    let restarted = [(0, None), (1, Some(20)), (0, None), (1, Some(5))];
    let restarted = restarted.map(|(number, from)| rank(number, 2, 64, from));
    let ranks = report(&restarted, &[]).ranks.unwrap();
    assert!(ranks.first_cause.is_none() && ranks.aligned_by.is_none(), "steps begin again in each run");
}

#[test]
fn oom_reports_growth_of_leaks_and_which_remedies_work() {
    let mut run = Synthetic::train(60, |run, _, train| {
        let kept = run.frame(train, "/work/train.py", "log", 31);
        run.alloc(kept, 19 << 20);
        let little = run.frame(train, "/work/train.py", "count", 32);
        run.alloc(little, 512);
    });
    run.meta.set_number("device.0.total_bytes", run.reserved + (1 << 20));
    let line = run.frame(NodeId::NONE, "/work/train.py", "big", 77);
    run.oom(line, 300 << 20);
    let report = run.report();
    let oom = &report.oom.as_ref().unwrap()[0];
    let grown: Vec<_> = oom.growth.iter().map(|grown| (grown.site.line, grown.bytes)).collect();
    assert_eq!(grown, [(Some(31), 1121 << 20), (Some(32), 59 * 512)]);
    let works: Vec<_> = oom.remedies.iter().map(|remedy| (&remedy.kind, remedy.works)).collect();
    assert!(
        matches!(
            works.as_slice(),
            [
                // Blocks of the other line pin its segments.
                (RemedyKind::FixLeak { .. }, None),
                (RemedyKind::FixLeak { .. }, Some(false)),
                (RemedyKind::AllocatorSetting { .. }, Some(false)),
                (RemedyKind::EmptyCache, Some(false)),
                (RemedyKind::HoldLess { .. }, None),
                (RemedyKind::LargerGpu { .. }, None),
            ]
        ),
        "{works:?}"
    );
    assert_eq!((oom.segment_bytes, oom.shortfall_bytes), (Some(300 << 20), Some(299 << 20)));
    let earlier = oom.earlier_peak.unwrap();
    assert_eq!((oom.step, earlier.step), (Some(60), 59));
    assert!(earlier.live_bytes > 58 * (19 << 20) && earlier.live_bytes < oom.live_bytes + (19 << 20));
    let unused: u64 = oom.unused_causes.iter().map(|cause| cause.bytes).sum();
    assert_eq!(unused, oom.reserved_bytes - oom.live_bytes);
}
