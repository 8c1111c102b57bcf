//! The goals of the leak analysis (`docs/accuracy.md`), on a fixed sample of generated
//! streams.
//!
//! `scripts/accuracy/run` measures 10,000 streams. In this smaller sample a goal may be missed by
//! [`SLACK`]: a few streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use gpumemtrace_format::{EventKind, NodeId};
use gpumemtrace_synthetic::Synthetic;
use gpumemtrace_synthetic::scoring::counts::{Counts, Share};
use gpumemtrace_synthetic::scoring::failures;
use gpumemtrace_synthetic::scoring::goals::goals;
use gpumemtrace_synthetic::scoring::{LeakReport, StreamScore};
use gpumemtrace_synthetic::streams::leaks::LEAK_FILE;
use gpumemtrace_synthetic::streams::plan::{Ending, LeakPlace, StreamClass};

/// The sample: the streams of these seeds.
const STREAMS: u64 = 600;
const SLACK: f64 = 0.01;

static SCORES: LazyLock<Vec<StreamScore>> = LazyLock::new(|| {
    let next = AtomicU64::new(0);
    let scores = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= STREAMS {
                        return;
                    }
                    let score = StreamScore::of_stream(&gpumemtrace_synthetic::streams::generate(seed));
                    scores.lock().unwrap().push(score);
                }
            });
        }
    });
    let mut scores = scores.into_inner().unwrap();
    scores.sort_by_key(|score| score.seed);
    scores
});

fn count_all() -> Counts {
    let mut counts = Counts::default();
    SCORES.iter().for_each(|score| counts.add(score));
    counts
}

/// The failures of the sample that contain this text.
fn list(text: &str) -> String {
    let has_text = |score: &&StreamScore| failures::reasons(score).iter().any(|reason| reason.contains(text));
    SCORES.iter().filter(has_text).map(failures::describe).collect::<Vec<_>>().join("\n")
}

#[test]
fn leak_analysis_meets_its_goals_on_the_sample() {
    let missed: Vec<_> = goals(&count_all()).into_iter().filter(|goal| !goal.is_met_within(SLACK)).collect();
    assert!(missed.is_empty(), "{missed:#?}\n{}", list(""));
}

#[test]
fn healthy_streams_have_hardly_any_finding() {
    let mut silent = Share::default();
    count_all().healthy.into_values().for_each(|share| silent += share);
    assert!(silent.of > 200 && silent.of - silent.good <= 2, "{silent:?}\n{}", list("false finding"));
}

#[test]
fn found_leaks_have_the_right_period_and_innermost_line() {
    let details = count_all().leaks_from_bucket(1).details;
    assert!(details.of > 100 && details.value().unwrap() >= 0.98, "{details:?}");
}

/// Irregular leaks have no step that could be expected so exactly, and a line that also allocates
/// much else may fragment the cache in any way.
#[test]
fn expected_out_of_memory_step_of_regular_leaks_is_mostly_within_a_tenth() {
    let near = count_all().forecasts_by_property[&("timing", "Regular".to_owned())].near;
    assert!(near.of > 50 && near.value().unwrap() >= 0.75, "{near:?}\n{}", list("forecast at"));
}

#[test]
fn leaks_are_hardly_ever_called_healthy() {
    let counts = count_all().leaks_from_bucket(1);
    let (denied, leaks) = (counts.denied, counts.found.of);
    assert!(leaks > 200 && denied * 100 <= leaks, "{denied} of {leaks}\n{}", list("health claimed"));
}

/// Bytes of live blocks by the line of [`LEAK_FILE`] on their stack, counted from the events.
fn live_bytes_by_leak_line(run: &Synthetic) -> BTreeMap<i32, u64> {
    let line_of = |stack: NodeId| {
        let parent = |id: &NodeId| Some(run.nodes[id.0 as usize - 1].parent).filter(|id| *id != NodeId::NONE);
        let start = Some(stack).filter(|id| *id != NodeId::NONE);
        std::iter::successors(start, parent).find_map(|id| {
            let node = &run.nodes[id.0 as usize - 1];
            let is_leak = run.codes[node.code.0 as usize - 1].file == LEAK_FILE;
            is_leak.then_some(node.offset_bytes / 2 + 1)
        })
    };
    let mut live = BTreeMap::new();
    for event in &run.events {
        match event.kind {
            EventKind::BLOCK_ALLOC => drop(live.insert(event.addr, (event.size, event.python_stack))),
            EventKind::BLOCK_FREE => drop(live.remove(&event.addr)),
            _ => {}
        }
    }
    let mut bytes = BTreeMap::new();
    for (size, stack) in live.into_values() {
        if let Some(line) = line_of(stack) {
            *bytes.entry(line).or_default() += size;
        }
    }
    bytes
}

#[test]
fn planted_bytes_are_live_at_their_lines() {
    let mut compared = 0;
    for seed in 0..60 {
        let (mut program, truth, _) = gpumemtrace_synthetic::streams::draw_program(StreamClass::Leaky, seed);
        program.plan.ending = Ending::Exit;
        program.run_to_end(|_| {});
        let live = live_bytes_by_leak_line(&program.run);
        for leak in truth.leaks() {
            // At the other places, the same line also has healthy blocks.
            let is_alone = [LeakPlace::OwnLine, LeakPlace::SharedHelper, LeakPlace::RetainedGraph];
            if is_alone.contains(&leak.plan.place) {
                assert_eq!(live.get(&leak.plan.line), Some(&leak.bytes), "seed {seed}: {leak:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn growth_of_an_unassessed_report_is_neither_found_nor_denied() {
    let stream = gpumemtrace_synthetic::streams::generate_class(StreamClass::Leaky, 0);
    let planted = &stream.leaks[0];
    let site = serde_json::json!({"file": LEAK_FILE, "line": planted.plan.line});
    let growth = serde_json::json!({"site": site, "class": "possible_leak", "bytes": planted.bytes});
    let score = |status: &str, growth: Vec<serde_json::Value>| {
        let assessment = serde_json::json!([{"trace": 0, "status": status, "growth": growth}]);
        let report = LeakReport::parse(&serde_json::json!({"leaks": [], "leak_assessment": assessment}));
        let leak = StreamScore::of_report(&stream, report).leaks.swap_remove(0);
        (leak.is_found, leak.growth_class.as_deref() == Some("possible_leak"), leak.is_denied)
    };
    assert_eq!(score("assessed", vec![growth]), (false, true, false));
    assert_eq!(score("assessed", Vec::new()), (false, false, true));
    assert_eq!(score("partly", Vec::new()), (false, false, false));
}

#[test]
fn seed_determines_the_trace() {
    for seed in [0, 9, 18, 19] {
        let [first, second] = [(); 2].map(|()| gpumemtrace_synthetic::streams::generate(seed));
        assert!(first.trace == second.trace, "seed {seed}");
    }
}
