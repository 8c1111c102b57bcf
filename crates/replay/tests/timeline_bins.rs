//! How the bins of the timeline divide a run: by events as well as by time.

use std::collections::BTreeMap;

use gpumemtrace_replay::AnalysisOptions;
use gpumemtrace_replay::report::{Report, TimelinePoint};
use gpumemtrace_synthetic::{Synthetic, analyse_part};

const SECOND_NS: u64 = 1_000_000_000;

fn points_of(report: &Report) -> &[TimelinePoint] {
    &report.timeline.as_ref().unwrap().points
}

/// Ten steps within 0.1% of the run.
fn short_training() -> Synthetic {
    let mut has_begun = false;
    let mut run = Synthetic::train(10, |run, _, train| {
        if !has_begun {
            run.alloc(train, 1 << 20);
            run.time_ns += 3 * SECOND_NS;
            has_begun = true;
        }
        let activations: Vec<u64> = (0..100).map(|_| run.alloc(train, 1 << 16)).collect();
        for addr in activations {
            run.release(addr, train);
        }
    });
    run.time_ns += 2 * SECOND_NS;
    run.release_all();
    run
}

#[test]
fn short_training_has_bins_in_each_step_whatever_the_startup() {
    let report = short_training().report();
    assert_eq!(report.steps.as_ref().map(|steps| steps.count), Some(Some(10)));
    let mut by_step: BTreeMap<u64, usize> = BTreeMap::new();
    for point in points_of(&report) {
        *by_step.entry(point.step.unwrap()).or_default() += 1;
    }
    // Step 0 has the set-up, and the last one the teardown.
    let of_steps: Vec<usize> = (1..10).map(|step| by_step.get(&step).copied().unwrap_or(0)).collect();
    let (least, most) = (of_steps.iter().min().unwrap(), of_steps.iter().max().unwrap());
    assert!(*least >= 20 && *most <= 2 * least, "{of_steps:?}");
}

#[test]
fn short_training_has_half_of_the_bins_of_a_page() {
    let options = AnalysisOptions { keeps_history: true, ..AnalysisOptions::default() };
    let history = analyse_part(&short_training().file(1000), options).take_history().expect("a history");
    let device = &history.devices[0];
    let steps = *history.step_starts_ns.first().unwrap()..=*history.step_starts_ns.last().unwrap();
    for edges_ns in [&device.series_edges_ns, &device.bins_edges_ns] {
        let inside = edges_ns.iter().filter(|edge| steps.contains(edge)).count();
        assert!(inside > edges_ns.len() / 2, "{inside} of {}", edges_ns.len());
    }
}

#[test]
fn pause_between_bursts_shows_the_state_in_it() {
    let mut run = Synthetic::train(4, |run, _, train| {
        for _ in 0..50 {
            let request = run.alloc(train, 64 << 20);
            run.release(request, train);
        }
        run.time_ns += 10 * SECOND_NS;
    });
    run.release_all();
    let report = run.report();
    let pauses: Vec<(u64, u64)> = run
        .events
        .windows(2)
        .filter(|pair| pair[1].time_ns - pair[0].time_ns >= 10 * SECOND_NS)
        .map(|pair| (pair[0].time_ns - SECOND_NS, pair[1].time_ns - SECOND_NS))
        .collect();
    assert_eq!(pauses.len(), 4);
    let high = 64 << 20;
    for (begin_ns, end_ns) in pauses {
        let inside: Vec<&TimelinePoint> = points_of(&report)
            .iter()
            .filter(|point| (begin_ns + 1..end_ns).contains(&point.time_ns))
            .collect();
        assert!(inside.len() > 20, "{} points in a pause", inside.len());
        assert!(inside.iter().all(|point| point.live_bytes.unwrap() < high));
        // The state of the pause is known from the end of the last burst's bin on.
        assert!(inside[0].time_ns - begin_ns < SECOND_NS / 4, "{} ns", inside[0].time_ns - begin_ns);
    }
}
