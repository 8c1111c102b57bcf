//! Decides whether a trace allows a verdict on leaks.
//!
//! * *not assessed*: fewer than [`MIN_STEPS`] steps ended; without steps, fewer than
//!   [`MIN_INTERVALS`] intervals; a snapshot of PyTorch without history; or pools of other
//!   libraries hold most of the memory.
//! * *partly*: the run has no steps, or no Python stacks, a long part of it comes after the last
//!   step boundary, a pool of another library holds a part of the memory, events are missing, the
//!   trace is a snapshot of PyTorch, or only one stream was judged.
//! * *assessed*: none of these.
//!
//! Only an assessed run without findings may be called free of leaks. `tests/leaks/assessment.rs`
//! has a case for each limit.

use crate::leak::opaque_pools::find_opaque_pools;
use crate::pass::Analysis;
use crate::report::{
    AssessmentLimit, AssessmentStatus, GrowingSite, GrowthClass, Leak, LeakAssessment, LeakKind, Oom,
    OomGrowthPattern, Site, TraceNote,
};
use crate::timeline::step_coverage::StepCoverage;
use crate::timeline::steps::StepRule;

/// Steps that must end. With fewer, all growth is warm-up.
pub(crate) const MIN_STEPS: u64 = 5;
/// Intervals that a run without steps needs.
const MIN_INTERVALS: u64 = 16;
/// The allocations after the last step boundary are judged as a separate part of the run if they
/// are at least those of this many average steps, and at least this share of all allocations in
/// steps.
const MIN_TAIL_STEPS: f64 = 4.0;
const MIN_TAIL_SHARE: f64 = 0.1;
/// Least share of the bytes live at an out-of-memory error of a line that grew towards it.
const MIN_SHARE_OF_OOM: f64 = 0.1;
/// Sites listed, most bytes first.
const MAX_LISTED: usize = 10;
/// Growth by fewer bytes is listed from [`MIN_LISTED_EVENTS`] on: two small blocks that stay are
/// normal.
const MIN_LISTED_BYTES: u64 = 1 << 20;
const MIN_LISTED_EVENTS: u64 = 3;

/// Assesses the trace with this index in the report. `growth`: growth that is not known to be a
/// leak.
pub(crate) fn assess(trace: usize, analysis: &Analysis, growth: Vec<GrowingSite>) -> LeakAssessment {
    let limits = find_limits(analysis);
    let status = match limits.iter().map(status_of).max_by_key(|status| severity(*status)) {
        None => AssessmentStatus::Assessed,
        Some(status) => status,
    };
    let is_listed = |one: &GrowingSite| {
        one.bytes >= MIN_LISTED_BYTES || one.events.is_some_and(|events| events >= MIN_LISTED_EVENTS)
    };
    let listed = growth.into_iter().filter(is_listed).take(MAX_LISTED);
    LeakAssessment {
        trace,
        status,
        reason: None,
        remedy: None,
        limits,
        growth: listed.collect(),
        omitted: None,
    }
}

fn severity(status: AssessmentStatus) -> u8 {
    match status {
        AssessmentStatus::Assessed => 0,
        AssessmentStatus::Partly => 1,
        AssessmentStatus::NotAssessed => 2,
    }
}

fn status_of(limit: &AssessmentLimit) -> AssessmentStatus {
    match limit {
        AssessmentLimit::FewSteps { .. } | AssessmentLimit::FewAllocations { .. } => {
            AssessmentStatus::NotAssessed
        }
        AssessmentLimit::SnapshotHistory { events: 0 } => AssessmentStatus::NotAssessed,
        AssessmentLimit::OpaquePool { share, .. } if *share > 0.5 => AssessmentStatus::NotAssessed,
        AssessmentLimit::NoSteps { .. }
        | AssessmentLimit::NoStacks
        | AssessmentLimit::AfterLastStep { .. }
        | AssessmentLimit::OpaquePool { .. }
        | AssessmentLimit::SnapshotHistory { .. }
        | AssessmentLimit::MissingEvents
        | AssessmentLimit::OneStream => AssessmentStatus::Partly,
    }
}

/// Adds the lines that grew until memory ran out, first. `ooms` are those of the same trace. A line
/// is known from the leaks or the other growth already, or from an earlier error.
pub(crate) fn add_growth_towards_ooms(assessment: &mut LeakAssessment, ooms: &[Oom], leaks: &[Leak]) {
    let mut rows: Vec<GrowingSite> = Vec::new();
    for oom in ooms.iter().filter(|oom| oom.trace == assessment.trace) {
        let is_large = |bytes: u64| bytes as f64 >= MIN_SHARE_OF_OOM * oom.live_bytes as f64;
        let grew = oom.growth.iter().filter(|one| one.pattern == OomGrowthPattern::Repeated);
        for one in grew.filter(|one| is_large(one.bytes)) {
            let is_same = |site: &Site, device: u32| device == oom.device && site.id == one.site.id;
            let is_leak =
                leaks.iter().any(|leak| leak.trace == oom.trace && is_same(&leak.site, leak.device));
            if is_leak || rows.iter().any(|row| is_same(&row.site, row.device)) {
                continue;
            }
            assessment.growth.retain(|row| !is_same(&row.site, row.device));
            rows.push(GrowingSite {
                site: one.site.clone(),
                device: oom.device,
                memory: LeakKind::Tensors,
                bytes: one.bytes,
                blocks: one.blocks,
                class: GrowthClass::TowardsOom,
                grows_by: None,
                events: Some(one.moments),
                needs: None,
                bytes_per_step: None,
                holders: one.holders.clone(),
                finding: None,
            });
        }
    }
    assessment.growth.splice(0..0, rows);
}

/// What was not judged, most important first.
fn find_limits(analysis: &Analysis) -> Vec<AssessmentLimit> {
    let before = analysis.since.as_ref().and_then(|since| since.reached).map_or(0, |moment| moment.step);
    let steps = u64::from(analysis.steps.saturating_sub(before));
    let mut limits = Vec::new();
    let history = analysis.notes.iter().find_map(|note| match note {
        TraceNote::TorchSnapshot { events, .. } => Some(*events),
        _ => None,
    });
    limits.extend(history.map(|events| AssessmentLimit::SnapshotHistory { events }));
    if history == Some(0) {
        return limits;
    }
    match analysis.step_rule {
        StepRule::Allocations { .. } if steps < MIN_INTERVALS => {
            limits.push(AssessmentLimit::FewAllocations { intervals: steps, needed: MIN_INTERVALS });
        }
        StepRule::Allocations { every, .. } => {
            limits.push(AssessmentLimit::NoSteps { intervals: steps, allocations: every });
        }
        _ if steps < MIN_STEPS => limits.push(AssessmentLimit::FewSteps { steps, needed: MIN_STEPS }),
        _ => {}
    }
    if analysis.lacks_stacks() {
        limits.push(AssessmentLimit::NoStacks);
    }
    if analysis.step_source().is_some() {
        limits.extend(analysis.step_coverage.and_then(|coverage| find_tail(&coverage, steps)));
    }
    limits.extend(find_opaque_pools(analysis).into_iter().map(|pool| {
        let held = analysis.devices.iter().find(|(ordinal, _)| u32::from(*ordinal) == pool.device);
        let held = held.map_or(0, |(_, device)| device.driver_peak.bytes()).max(pool.bytes);
        AssessmentLimit::OpaquePool {
            device: pool.device,
            share: pool.bytes as f64 / held.max(1) as f64,
            owner: pool.owner,
            framework: pool.framework,
            bytes: pool.bytes,
        }
    }));
    if !analysis.incomplete.is_empty() {
        limits.push(AssessmentLimit::MissingEvents);
    }
    if analysis.stream.is_some() {
        limits.push(AssessmentLimit::OneStream);
    }
    limits
}

/// The part of the run after the last step boundary, if it is much longer than a step.
fn find_tail(coverage: &StepCoverage, steps: u64) -> Option<AssessmentLimit> {
    let allocations = coverage.allocations_after_last_step;
    let all = coverage.allocations_in_steps + allocations;
    let share = allocations as f64 / all.max(1) as f64;
    let is_long = coverage.steps_after_last().is_none_or(|steps| steps >= MIN_TAIL_STEPS);
    (is_long && share >= MIN_TAIL_SHARE).then_some(AssessmentLimit::AfterLastStep {
        steps,
        allocations,
        share,
    })
}
