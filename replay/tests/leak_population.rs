//! The judgement of leaks on a thousand healthy runs and on hundreds of leaky ones.

mod population;
mod synthetic;

use gpumemtrace_replay::report::Leak;
use population::{Planted, World, clean, leaky, parts::Way, until_full};

/// Healthy runs.
const CLEAN_RUNS: u64 = 1000;
/// Of them may be called leaky.
const MAX_FALSE_ALARMS: usize = 1;
/// Leaky runs, of which one in a hundred may be missed.
const LEAKY_RUNS: u64 = 500;
/// Runs until the device is full.
const FULL_RUNS: u64 = 100;

fn ours(world: &World) -> Option<Leak> {
    let leaks = world.run.report().leaks.unwrap();
    leaks.into_iter().find(|leak| leak.site.file.as_deref() == Some("/work/leak.py"))
}

#[test]
fn healthy_runs_are_silent() {
    let mut alarms = Vec::new();
    for seed in 0..CLEAN_RUNS {
        let world = clean(seed);
        let leaks = world.run.report().leaks.unwrap();
        if let Some(leak) = leaks.first() {
            alarms.push(format!(
                "seed {seed}, {} steps: {} {:?} {} {:?} p {:.2e} q {:.2e} {:?}",
                world.steps,
                leak.kind,
                leak.site.line,
                leak.grows_by,
                leak.shape,
                leak.p_value,
                leak.q_value,
                leak.evidence
            ));
        }
    }
    assert!(alarms.len() <= MAX_FALSE_ALARMS, "{} of {CLEAN_RUNS}: {alarms:#?}", alarms.len());
}

#[test]
fn planted_leaks_are_found_with_their_line_and_their_numbers() {
    let (mut missed, mut wrong) = (Vec::new(), Vec::new());
    for seed in 0..LEAKY_RUNS {
        let (world, planted) = leaky(seed);
        let Some(leak) = ours(&world) else {
            missed.push(format!("seed {seed}: {planted:?}"));
            continue;
        };
        if let Some(what) = difference(&leak, planted, &world.leaked) {
            wrong.push(format!(
                "seed {seed}: {what}: {planted:?}, {:?} {:?}",
                leak.period_steps, leak.evidence
            ));
        }
    }
    assert!(missed.len() * 100 <= LEAKY_RUNS as usize, "{} of {LEAKY_RUNS}: {missed:#?}", missed.len());
    assert!(wrong.len() * 100 <= LEAKY_RUNS as usize, "{} of {LEAKY_RUNS}: {wrong:#?}", wrong.len());
}

/// What a finding says otherwise than what was planted.
fn difference(leak: &Leak, planted: Planted, leaked: &[u64]) -> Option<&'static str> {
    let line = match planted.way {
        // The line that calls the function which others call, too; the function's own line is told as well.
        Way::CommonLeaf => 30,
        _ => planted.line,
    };
    let leaf = leak.leaf.as_ref().unwrap_or(&leak.site).line;
    let rate = leak.bytes_per_step.map_or(0.0, |rate| rate.0);
    let is_exact = leaked.iter().all(|bytes| *bytes == leaked[0]) && planted.way != Way::BesideHeld;
    let mean = leaked.iter().sum::<u64>() as f64 / leaked.len() as f64;
    let expected = mean * planted.blocks as f64 / planted.period as f64;
    if leak.site.line != Some(line) || leaf != Some(planted.line) {
        Some("line")
    } else if leak.period_steps != Some(planted.period) {
        Some("period")
    } else if (rate / expected - 1.0).abs() > if is_exact { 1e-9 } else { 0.1 } {
        Some("bytes per step")
    } else {
        None
    }
}

#[test]
fn half_way_to_the_full_device_its_step_is_known_within_a_tenth() {
    let (mut missed, mut wrong, mut outside) = (Vec::new(), Vec::new(), 0);
    for seed in 0..FULL_RUNS {
        let (half, planted, full_at) = until_full(seed);
        let Some(leak) = ours(&half) else {
            missed.push(format!("seed {seed}: {planted:?}"));
            continue;
        };
        let told = leak.oom_step.unwrap();
        if told.expected.abs_diff(full_at) * 10 > full_at {
            wrong.push(format!("seed {seed}: {told:?}, but {full_at}: {planted:?}"));
        }
        // One step more or less: the leak comes somewhere within a step.
        let latest = told.latest.unwrap_or(u64::MAX);
        outside += usize::from(full_at + 1 < told.earliest || full_at > latest.saturating_add(1));
    }
    assert!(missed.is_empty(), "{missed:#?}");
    // Where other blocks of changing sizes cut the cache to pieces, nobody knows better.
    assert!(wrong.len() * 50 <= FULL_RUNS as usize, "{} of {FULL_RUNS}: {wrong:#?}", wrong.len());
    assert!(outside * 20 <= FULL_RUNS as usize, "{outside} of {FULL_RUNS} are not within the interval");
}
