//! Which settings would have served the request that got no memory.

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::report::{FirstOom, OomPredictions};
use gpumemtrace_whatif::{OomPredictor, Scenario};

use super::{MAX_STEPS, affordable_settings, candidates, count_blocks};
use crate::trace::open::TraceSource;

/// Adds predictions to an analysis, if the run ran out of memory and its PyTorch is known. `head`
/// is that of the analysed trace. A trace that cannot be read again has no predictions.
pub(in crate::commands) fn add_oom_predictions(
    analysis: &mut Analysis,
    file: &TraceSource,
    head: &TraceHead,
) {
    let Some(oom) = analysis.first_oom else { return };
    let version = analysis.meta.text("torch").and_then(|torch| TorchVersion::parse(torch).ok());
    let Some(version) = version else { return };
    let setting = analysis.meta.allocator_conf().unwrap_or("");
    let Ok(base) = Scenario::new(setting, version, Some(oom.card_bytes)) else { return };
    let candidates = candidates(&base);
    if candidates.is_empty() {
        return;
    }
    let affordable = affordable_settings(MAX_STEPS, length_of_run(analysis, &oom));
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

/// The events and the requests up to the error; both at most too many.
fn length_of_run(analysis: &Analysis, oom: &FirstOom) -> (u64, u64) {
    let events = oom.seq.saturating_add(1);
    let blocks = count_blocks(analysis);
    // With --since, the blocks before it are not counted.
    (events, if analysis.since.is_some() { events } else { events.min(blocks.max(1)) })
}
