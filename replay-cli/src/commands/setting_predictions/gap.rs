//! What other settings would have reserved.

use std::ops::ControlFlow;

use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::report::{Device, ReservedCurve, SettingEffect, SettingEffects};
use gpumemtrace_replay::{Analysis, Section, report};
use gpumemtrace_whatif::{PredictedRow, PredictionStatus, WhatIf, WhatIfRows};

use super::{RecordedScenario, affordable_settings, candidates, count_blocks, recorded_scenario, steps_of};
use crate::render::wording::whatif::describe_doubts;
use crate::trace::open::TraceSource;

/// Most equal steps after which the allocators are compared with their earlier states.
const MAX_COMPARED_STEPS: u32 = 256;

/// Adds the effects of settings on each GPU to an analysis of a whole run, within `steps_left`,
/// which is for all traces of a report. A trace that cannot be read again has none.
pub(in crate::commands) fn add_setting_effects(
    analysis: &mut Analysis,
    file: &TraceSource,
    head: &TraceHead,
    steps_left: &mut u64,
) {
    let facts = report(std::slice::from_ref(analysis), &[Section::Oom]);
    let info = &facts.traces[0];
    // What other allocators reserve does not follow PyTorch's settings.
    // The release that wrote a snapshot is not known exactly; `whatif` says what follows from that.
    if info.pluggable.is_some() || info.since.is_some() || info.stream.is_some() || info.is_torch_snapshot() {
        return;
    }
    let with_torch = facts.devices.iter().filter(|device| device.peak.reserved_bytes > Some(0));
    let runs: Vec<_> = with_torch
        .filter_map(|device| {
            let RecordedScenario { base, doubts, .. } = recorded_scenario(info, device, None).ok()?;
            let candidates = candidates(&base);
            (!candidates.is_empty()).then_some((device, base, candidates, doubts))
        })
        .collect();
    if runs.is_empty() {
        return;
    }
    let length = (analysis.counts.iter().map(|(_, count)| count).sum(), count_blocks(analysis));
    let affordable = affordable_settings(*steps_left, length);
    if affordable == 0 {
        analysis.setting_effects = runs.iter().map(|(device, ..)| no_effects(device)).collect();
        return;
    }
    let tried = runs.iter().map(|(_, _, candidates, _)| candidates.len()).max().unwrap_or(0).min(affordable);
    *steps_left = steps_left.saturating_sub(steps_of(tried, length));
    let mut predictions: Vec<(&Device, WhatIf)> = runs
        .into_iter()
        .map(|(device, base, mut candidates, doubts)| {
            candidates.truncate(affordable);
            (device, WhatIf::new(device.device as u8, base, candidates, doubts))
        })
        .collect();
    if let Some(is_settled) = walk_settings(analysis, file, head, &mut predictions) {
        let length_ns = analysis.end_ns.saturating_sub(analysis.start_ns);
        let unchanged = predictions.iter_mut().filter(|_| is_settled);
        unchanged.for_each(|(_, whatif)| whatif.go_on_to(length_ns));
        analysis.setting_effects =
            predictions.into_iter().filter_map(|(device, whatif)| effects_of(device, whatif)).collect();
    }
}

/// Passes the events to the predictions. Returns true if it stopped where all further steps change
/// nothing; `None` if the trace cannot be read again.
fn walk_settings(
    analysis: &mut Analysis,
    file: &TraceSource,
    head: &TraceHead,
    predictions: &mut Vec<(&Device, WhatIf)>,
) -> Option<bool> {
    let first_equal = analysis.first_equal_step.unwrap_or(u32::MAX);
    let (mut step, mut tries_left, mut is_settled) = (0, MAX_COMPARED_STEPS, false);
    let walked = analysis.walk(&|| file.open(), head, (None, None), &mut |walked| {
        if walked.step != step {
            step = walked.step;
            // `effects_of` says nothing where the model does not reproduce the run.
            predictions.retain(|(device, whatif)| !whatif.is_base_beyond(recorded_peak(device)));
            if predictions.is_empty() {
                return ControlFlow::Break(());
            }
            // All further steps are equal, so allocators repeat what they did after the same state.
            if step > first_equal && tries_left > 0 {
                tries_left -= 1;
                is_settled = predictions
                    .iter_mut()
                    .map(|(_, whatif)| u32::from(!whatif.end_equal_step()))
                    .sum::<u32>()
                    == 0;
            }
            if is_settled {
                return ControlFlow::Break(());
            }
        }
        for (_, whatif) in predictions.iter_mut() {
            whatif.on_event(walked);
        }
        ControlFlow::Continue(())
    });
    walked.is_ok().then_some(is_settled)
}

fn recorded_peak(device: &Device) -> u64 {
    device.peak.reserved_bytes.unwrap_or(0)
}

/// Those of a run that is too long.
fn no_effects(device: &Device) -> SettingEffects {
    SettingEffects {
        trace: 0,
        device: device.device,
        recorded_peak_bytes: recorded_peak(device),
        recorded_curve: ReservedCurve::default(),
        is_over_limit: true,
        settings: Vec::new(),
    }
}

/// `None` if the model does not reserve what the run reserved, and for a run that ran out of
/// memory: with another setting it goes on and needs more.
fn effects_of(device: &Device, whatif: WhatIf) -> Option<SettingEffects> {
    let WhatIfRows { base, rows, .. } = whatif.finish();
    if base.row.ooms > 0 || base.row.peak_reserved_bytes != device.peak.reserved_bytes {
        return None;
    }
    let effects = SettingEffects {
        recorded_curve: base.row.reserved_curve.unwrap_or_default(),
        is_over_limit: false,
        settings: rows.into_iter().filter_map(effect_of).collect(),
        ..no_effects(device)
    };
    (!effects.settings.is_empty()).then_some(effects)
}

/// `None` without a prediction for the whole run.
fn effect_of(predicted: PredictedRow) -> Option<SettingEffect> {
    let PredictedRow { row, doubts, .. } = predicted;
    let is_whole = row.status != PredictionStatus::Refused && row.ooms == 0;
    Some(SettingEffect {
        setting: row.setting,
        peak_reserved_bytes: row.peak_reserved_bytes.filter(|_| is_whole)?,
        reserved_curve: row.reserved_curve.unwrap_or_default(),
        reason: describe_doubts(&doubts),
    })
}
