//! Predicts for reports what settings of PyTorch's allocator would have done.
//!
//! The crate replay has no model of the allocator, so its analysis has no such predictions. The
//! events are walked a second time for them. The time that this takes is limited: [`MAX_STEPS`] are
//! about two seconds of one core, for each out-of-memory error and for all gaps of a report. Longer
//! runs get no prediction, and their reports name `gpumemtrace whatif`.

mod gap;
mod oom;

use gpumemtrace_caching_allocator::TorchVersion;
use gpumemtrace_format::EventKind;
use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::report::{Device, TraceInfo, TraceNote};
use gpumemtrace_whatif::{Doubt, Scenario};

use crate::render::wording::notes::describe_accelerator;

pub(super) use gap::add_setting_effects;
pub(super) use oom::add_oom_predictions;

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

/// Most steps of predictions: an event that is read, or a request that is made to one allocator.
pub(super) const MAX_STEPS: u64 = 10_000_000;

/// The settings that the version has, that the model knows, and that differ from the recorded ones.
fn candidates(base: &Scenario) -> Vec<Scenario> {
    if !base.not_modelled().is_empty() {
        return Vec::new();
    }
    let all =
        SETTINGS.iter().filter_map(|setting| Scenario::new(setting, base.version, base.card_bytes).ok());
    all.filter(|scenario| !scenario.is_same(base)).collect()
}

/// The number of settings that can be predicted within this number of steps.
fn affordable_settings(steps: u64, (events, requests): (u64, u64)) -> usize {
    let allocators = steps.saturating_sub(events) / requests.max(1);
    // One is for the recorded run.
    allocators.saturating_sub(1) as usize
}

/// The steps that a prediction of this number of settings takes.
fn steps_of(settings: usize, (events, requests): (u64, u64)) -> u64 {
    events + requests * (1 + settings as u64)
}

/// Events of PyTorch's blocks.
fn count_blocks(analysis: &Analysis) -> u64 {
    let counts = analysis.counts.iter();
    let blocks = counts.filter(|(kind, _)| matches!(*kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE));
    blocks.map(|(_, count)| count).sum()
}

/// The recorded run as a scenario.
#[derive(Clone, Debug)]
pub(super) struct RecordedScenario {
    /// Its settings, version and card. Of several versions, it has the newest.
    pub(super) base: Scenario,
    /// The versions that may have run, the oldest first. The keys of a snapshot leave several.
    pub(super) versions: Vec<TorchVersion>,
    /// What is doubtful about every prediction from it.
    pub(super) doubts: Vec<Doubt>,
}

/// The recorded run, or why it is unknown what ran. `named` is the version that the user named.
pub(super) fn recorded_scenario(
    info: &TraceInfo,
    device: &Device,
    named: Option<TorchVersion>,
) -> Result<RecordedScenario, String> {
    let accelerator = info.notes.iter().find_map(|note| match note.fact {
        TraceNote::OtherAccelerator { accelerator, .. } => Some(accelerator),
        _ => None,
    });
    if let Some(accelerator) = accelerator {
        let device = describe_accelerator(accelerator);
        return Err(format!(
            "the snapshot is from {device}, and predictions cover only PyTorch's allocator for CUDA"
        ));
    }
    let versions = recorded_versions(info, named)?;
    let setting = info.allocator_conf.as_deref().unwrap_or("");
    let scenario = |version: &TorchVersion| Scenario::new(setting, *version, device.total_bytes);
    // A version that refuses the settings did not run.
    let (accepted, base) = versions
        .iter()
        .rev()
        .map(|version| scenario(version).map(|base| (version, base)))
        .find_map(Result::ok)
        .map_or_else(
            || match versions.last().map(scenario) {
                Some(Err(error)) => Err(format!("its allocator settings: {error}")),
                _ => Err("the version of PyTorch is unknown".to_owned()),
            },
            Ok,
        )?;
    let versions = versions.iter().filter(|version| *version <= accepted && scenario(version).is_ok());
    let doubts = (!info.complete).then_some(Doubt::Incomplete);
    Ok(RecordedScenario { versions: versions.copied().collect(), base, doubts: doubts.into_iter().collect() })
}

/// The versions that may have run, the oldest first.
fn recorded_versions(info: &TraceInfo, named: Option<TorchVersion>) -> Result<Vec<TorchVersion>, String> {
    if let Some(torch) = info.torch.as_deref() {
        return Ok(vec![TorchVersion::parse(torch).map_err(|error| error.to_string())?]);
    }
    let parse = |version: &str| TorchVersion::parse(version).ok();
    let releases = info.torch_releases.as_ref();
    let range = releases.and_then(|releases| Some((parse(&releases.oldest)?, parse(&releases.newest)?)));
    match (range, named) {
        (None, Some(named)) => Ok(vec![named]),
        (Some((oldest, newest)), Some(named)) if (oldest..=newest).contains(&named) => Ok(vec![named]),
        (Some((oldest, newest)), _) => {
            Ok(TorchVersion::all().filter(|version| (oldest..=newest).contains(version)).collect())
        }
        (None, None) => Err("the version of PyTorch is unknown; name it, as in --torch 2.9".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_try_fewer_settings() {
        assert!(affordable_settings(MAX_STEPS, (400_000, 300_000)) >= SETTINGS.len());
        assert_eq!(affordable_settings(MAX_STEPS, (1_000_000, 1_000_000)), 8);
        assert_eq!(affordable_settings(MAX_STEPS, (3_000_000, 3_000_000)), 1);
        assert_eq!(affordable_settings(MAX_STEPS, (3_400_000, 3_400_000)), 0);
        assert_eq!(affordable_settings(MAX_STEPS, (20_000_000, 1)), 0);
        assert!(steps_of(8, (1_000_000, 1_000_000)) <= MAX_STEPS);
        assert!(steps_of(9, (1_000_000, 1_000_000)) > MAX_STEPS);
    }
}
