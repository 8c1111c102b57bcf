//! Predicts for reports which settings of PyTorch's allocator would have helped.
//!
//! The crate replay has no model of the allocator, so its analysis has no such verdicts. For a run
//! that ran out of memory, the events up to the error are walked a second time. The time that this
//! takes is limited: [`MAX_STEPS`] are about two seconds of one core. Longer runs get no
//! prediction, and their reports name `gpumemtrace whatif`. All other runs are not read again.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::EventKind;
use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::report::{FirstOom, OomPredictions};
use gpumemtrace_whatif::{OomPredictor, Scenario};

use crate::trace::open::TraceSource;

/// The settings that are tried: those that cost the program least first. Those that a version does
/// not know are left out.
const SETTINGS: &[&str] = &[
    "expandable_segments:True",
    "max_split_size_mb:512",
    "max_split_size_mb:256",
    "max_split_size_mb:128",
    "max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
    "",
];

/// Most steps of a prediction: an event that is read, or a request that is made to one allocator.
const MAX_STEPS: u64 = 10_000_000;
/// The recorded run, and two orders of addresses for each setting.
const ALLOCATORS_OF_RUN: u64 = 1;
const ALLOCATORS_OF_SETTING: u64 = 2;

/// Adds predictions to an analysis, if the run ran out of memory and its PyTorch is known. `head`
/// is that of the analysed trace. A trace that cannot be read again has no predictions.
pub(super) fn add_oom_predictions(analysis: &mut Analysis, file: &TraceSource, head: &TraceHead) {
    let Some(oom) = analysis.first_oom else { return };
    let version = analysis.meta.text("torch").and_then(|torch| TorchVersion::parse(torch).ok());
    let Some(version) = version else { return };
    let setting = analysis.meta.text("allocator_conf").unwrap_or("");
    let Ok(base) = Scenario::new(setting, version, Some(oom.card_bytes)) else { return };
    let candidates = candidates(&base);
    if candidates.is_empty() {
        return;
    }
    let affordable = affordable_settings(length_of_run(analysis, &oom));
    if affordable == 0 {
        analysis.oom_predictions = OomPredictions::OverLimit;
        return;
    }
    let candidates = candidates.into_iter().take(affordable).collect();
    let mut predictor = OomPredictor::new(oom, &base, candidates);
    let open = || file.open();
    let walked = analysis.walk(&open, head, (None, None), &mut |walked| predictor.on_event(walked));
    if walked.is_ok() {
        analysis.oom_predictions = OomPredictions::Made(predictor.finish());
    }
}

/// The settings that the version has, that the model knows, and that differ from the recorded ones.
fn candidates(base: &Scenario) -> Vec<Scenario> {
    if !base.not_modelled().is_empty() {
        return Vec::new();
    }
    let all =
        SETTINGS.iter().filter_map(|setting| Scenario::new(setting, base.version, base.card_bytes).ok());
    all.filter(|scenario| !scenario.is_same(base)).collect()
}

/// The events and the requests up to the error; both at most too many.
fn length_of_run(analysis: &Analysis, oom: &FirstOom) -> (u64, u64) {
    let events = oom.seq.saturating_add(1);
    let counts = analysis.counts.iter();
    let blocks = counts.filter(|(kind, _)| matches!(*kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE));
    let blocks: u64 = blocks.map(|(_, count)| count).sum();
    // With --since, the blocks before it are not counted.
    (events, if analysis.since.is_some() { events } else { events.min(blocks.max(1)) })
}

/// How many settings can be predicted within the limit.
fn affordable_settings((events, requests): (u64, u64)) -> usize {
    let allocators = MAX_STEPS.saturating_sub(events) / requests;
    (allocators.saturating_sub(ALLOCATORS_OF_RUN) / ALLOCATORS_OF_SETTING) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_try_fewer_settings() {
        assert!(affordable_settings((400_000, 300_000)) >= SETTINGS.len());
        assert_eq!(affordable_settings((1_000_000, 1_000_000)), 4);
        assert_eq!(affordable_settings((2_500_000, 2_500_000)), 1);
        assert_eq!(affordable_settings((2_600_000, 2_600_000)), 0);
        assert_eq!(affordable_settings((20_000_000, 1)), 0);
    }
}
