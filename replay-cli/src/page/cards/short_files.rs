//! A copy of the report in which files are as short as in the labels of the page.
//!
//! Sentences are made from this copy, so they name a call site as charts and tables do.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::report::{Cause, Leak, Oom, RemedyKind, Site, VerdictEvidence};

use crate::page::labels::Labels;
use crate::render::PresentedReport;

/// Copies a report and words it anew. `labels` has one entry for each trace.
pub(in crate::page) fn shorten_files(report: &PresentedReport, labels: &[Labels]) -> PresentedReport {
    report.reworded(|copy| {
        for (trace, site) in sites_of_cards(copy) {
            if let Some(labels) = labels.get(trace) {
                shorten_site(site, labels);
            }
        }
    })
}

/// Copies a comparison. `labels` are those of the first and of the second run.
pub(in crate::page) fn shorten_comparison(comparison: &Comparison, labels: [&Labels; 2]) -> Comparison {
    let mut copy = comparison.clone();
    for (run, labels) in labels.into_iter().enumerate() {
        copy.sites_of(run).for_each(|site| shorten_site(site, labels));
    }
    copy
}

fn shorten_site(site: &mut Site, labels: &Labels) {
    site.file = site.file.as_deref().map(|file| labels.short_file(file));
    for frame in &mut site.stack {
        frame.file = frame.file.as_deref().map(|file| labels.short_file_of_frame(file));
    }
}

/// The sites that cards name, with the index of their trace.
fn sites_of_cards(report: &mut Report) -> Vec<(usize, &mut Site)> {
    let mut all: Vec<(usize, &mut Site)> = Vec::new();
    all.extend(report.steps.iter_mut().filter_map(|steps| steps.site.as_mut()).map(|site| (0, site)));
    for leak in report.leaks.iter_mut().flatten() {
        let trace = leak.trace;
        all.extend(sites_of_leak(leak).map(|site| (trace, site)));
    }
    for assessment in report.leak_assessment.iter_mut().flatten() {
        for growth in &mut assessment.growth {
            all.push((assessment.trace, &mut growth.site));
            let finding = growth.finding.iter_mut().flat_map(|finding| sites_of_leak(finding));
            all.extend(finding.map(|site| (assessment.trace, site)));
        }
    }
    for oom in report.oom.iter_mut().flatten() {
        let trace = oom.trace;
        all.extend(sites_of_oom(oom).into_iter().map(|site| (trace, site)));
    }
    for gap in report.fragmentation.iter_mut().flatten() {
        all.extend(sites_of_causes(&mut gap.causes).map(|site| (gap.trace, site)));
    }
    for peak in report.peak.iter_mut().flatten() {
        all.extend(peak.sites.iter_mut().map(|share| (peak.trace, &mut share.site)));
    }
    for verdict in report.verdicts.iter_mut().flatten() {
        let trace = verdict.trace;
        all.extend(sites_of_evidence(&mut verdict.evidence).into_iter().map(|site| (trace, site)));
    }
    if let Some(ranks) = &mut report.ranks {
        let trace_of = |row: u64| ranks.rows.get(row as usize).map_or(0, |row| row.trace);
        let worst = trace_of(ranks.worst);
        all.extend(ranks.more_by_site.iter_mut().map(|more| (worst, &mut more.site)));
        all.extend(ranks.first_cause.iter_mut().map(|cause| (trace_of(cause.row), &mut cause.site)));
    }
    all
}

fn sites_of_leak(leak: &mut Leak) -> impl Iterator<Item = &mut Site> {
    let sites = [Some(&mut leak.site), leak.leaf.as_mut(), leak.freed_siblings.site.as_mut()];
    sites.into_iter().flatten().chain(&mut leak.backward_calls).chain(&mut leak.members)
}

fn sites_of_oom(oom: &mut Oom) -> Vec<&mut Site> {
    let mut all = vec![&mut oom.site];
    for remedy in &mut oom.remedies {
        match &mut remedy.kind {
            RemedyKind::FixLeak { site, .. } => all.push(site),
            RemedyKind::UseTorchAllocator
            | RemedyKind::RaiseMpsLimit
            | RemedyKind::AllocatorSetting { .. }
            | RemedyKind::AllocatorSettings { .. }
            | RemedyKind::UseOneStream { .. }
            | RemedyKind::ReleasePools { .. }
            | RemedyKind::EmptyCache
            | RemedyKind::RequestLess
            | RemedyKind::HoldLess { .. }
            | RemedyKind::FreeSegments { .. }
            | RemedyKind::LargerGpu { .. } => {}
        }
    }
    all.extend(oom.sites.iter_mut().map(|share| &mut share.site));
    all.extend(oom.growth.iter_mut().map(|line| &mut line.site));
    all.extend(oom.unchanged.iter_mut().map(|line| &mut line.site));
    all.extend(sites_of_causes(&mut oom.unused_causes));
    all
}

fn sites_of_causes(causes: &mut [Cause]) -> impl Iterator<Item = &mut Site> {
    causes.iter_mut().flat_map(|cause| &mut cause.culprits).map(|culprit| &mut culprit.site)
}

fn sites_of_evidence(evidence: &mut VerdictEvidence) -> Vec<&mut Site> {
    match evidence {
        VerdictEvidence::Leak { site, .. }
        | VerdictEvidence::Growth { site, .. }
        | VerdictEvidence::Oom { site, .. }
        | VerdictEvidence::FailedCalls { site: Some(site), .. } => vec![site],
        VerdictEvidence::TransientSpike { more_by_site, .. } => {
            more_by_site.iter_mut().map(|more| &mut more.site).collect()
        }
        VerdictEvidence::FailedCalls { site: None, .. }
        | VerdictEvidence::Incomplete(_)
        | VerdictEvidence::TotalMismatch { .. }
        | VerdictEvidence::SegmentMismatch { .. }
        | VerdictEvidence::UnmatchedBlocks { .. }
        | VerdictEvidence::UncoveredCalls { .. }
        | VerdictEvidence::HighPressure(_)
        | VerdictEvidence::CachePressure(_)
        | VerdictEvidence::FragmentationLike { .. }
        | VerdictEvidence::StrandedMemory { .. }
        | VerdictEvidence::ReservedOverhang { .. }
        | VerdictEvidence::HiddenMemory { .. }
        | VerdictEvidence::PersistentDrift { .. }
        | VerdictEvidence::CreepConfirmed { .. }
        | VerdictEvidence::Imbalance { .. } => Vec::new(),
    }
}
