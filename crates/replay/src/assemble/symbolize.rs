//! Symbolizes a finished report: only the sites and stacks that will be shown.

use crate::callsite::symbolizer::{NameScope, Symbolizer, TraceNamer};
use crate::pass::Analysis;
use crate::report::{Leak, Naming, Oom, Peak, RemedyKind, Report, Section, Site, VerdictEvidence};

/// Symbolizes the sites of `report` within `scope`, and sets the summary of each trace. `analyses`
/// are those that the report was built from, in the same order.
pub fn symbolize_report(
    report: &mut Report,
    analyses: &[Analysis],
    scope: NameScope<'_>,
    resolver: &mut dyn Symbolizer,
) {
    let mut namers: Vec<TraceNamer<'_>> = analyses.iter().map(namer_of).collect();
    for (trace, site) in sites_in_scope(report, scope) {
        let Some(namer) = namers.get_mut(trace) else { continue };
        namer.name_site(site, scope, resolver);
    }
    for (info, namer) in report.traces.iter_mut().zip(namers) {
        info.symbols = namer.finish();
    }
}

/// Symbolizes sites of one trace. Returns the summary; `None` if they have no native addresses.
pub fn symbolize_sites<'a>(
    sites: impl Iterator<Item = &'a mut Site>,
    analysis: &Analysis,
    scope: NameScope<'_>,
    resolver: &mut dyn Symbolizer,
) -> Option<Naming> {
    let mut namer = namer_of(analysis);
    sites.for_each(|site| namer.name_site(site, scope, resolver));
    namer.finish()
}

fn namer_of(analysis: &Analysis) -> TraceNamer<'_> {
    TraceNamer::new(analysis.symbols.definitions())
}

/// The sites of the report within `scope`, with the index of their trace.
fn sites_in_scope<'a>(report: &'a mut Report, scope: NameScope<'_>) -> Vec<(usize, &'a mut Site)> {
    let max = scope.max_sites;
    let mut all: Vec<(usize, &mut Site)> = Vec::new();
    all.extend(report.steps.iter_mut().filter_map(|steps| steps.site.as_mut()).map(|site| (0, site)));
    for device in &mut report.devices {
        let trace = device.trace;
        all.extend(device.opaque_pools.iter_mut().take(max).map(|pool| (trace, &mut pool.site)));
    }
    if scope.includes(Section::Timeline) {
        for timeline in report.timeline.iter_mut().chain(report.timelines.iter_mut().flatten()) {
            let trace = timeline.trace;
            all.extend(timeline.bands.iter_mut().take(max).map(|band| (trace, &mut band.site)));
        }
    }
    if scope.includes(Section::Leaks) {
        for leak in report.leaks.iter_mut().flatten() {
            let trace = leak.trace;
            all.extend(sites_of_leak(leak, max).map(|site| (trace, site)));
        }
    }
    for assessment in report.leak_assessment.iter_mut().flatten() {
        let trace = assessment.trace;
        for growth in assessment.growth.iter_mut().take(max) {
            all.push((trace, &mut growth.site));
            let finding = growth.finding.iter_mut().flat_map(|finding| sites_of_leak(finding, max));
            all.extend(finding.map(|site| (trace, site)));
        }
    }
    for snapshot in report.snapshots.iter_mut().flatten() {
        all.extend(snapshot.sites.iter_mut().take(max).map(|share| (snapshot.trace, &mut share.site)));
    }
    if scope.includes(Section::Fragmentation) {
        for history in report.fragmentation_over_time.iter_mut().flatten() {
            all.extend(history.pinned_by.iter_mut().take(max).map(|one| (history.trace, &mut one.site)));
        }
        for moment in report.fragmentation.iter_mut().flatten() {
            let call = moment.at.call.iter_mut().map(|call| &mut call.site);
            let culprits = moment.causes.iter_mut().flat_map(|cause| cause.culprits.iter_mut().take(max));
            all.extend(call.chain(culprits.map(|share| &mut share.site)).map(|site| (moment.trace, site)));
        }
    }
    if scope.includes(Section::Peak) {
        for peak in report.peak.iter_mut().flatten() {
            let trace = peak.trace;
            all.extend(sites_of_peak(peak, max).map(|site| (trace, site)));
        }
    }
    if scope.includes(Section::Oom) {
        for oom in report.oom.iter_mut().flatten() {
            let trace = oom.trace;
            all.extend(sites_of_oom(oom, max).map(|site| (trace, site)));
        }
    }
    for verdict in report.verdicts.iter_mut().flatten() {
        let trace = verdict.trace;
        all.extend(verdict_sites(&mut verdict.evidence).into_iter().map(|site| (trace, site)));
    }
    all
}

/// The sites of a peak, with at most `max` of each list.
fn sites_of_peak(peak: &mut Peak, max: usize) -> impl Iterator<Item = &mut Site> {
    let held = peak.sites.iter_mut().take(max).map(|share| &mut share.site);
    let differences = peak.labels.iter_mut().flat_map(|labels| &mut labels.differences);
    let changes = peak.since_previous_step.iter_mut().flat_map(|since| &mut since.changes);
    held.chain(differences.take(max).map(|row| &mut row.site))
        .chain(changes.take(max).map(|change| &mut change.site))
}

/// The sites of an out-of-memory error, with at most `max` of each list.
fn sites_of_oom(oom: &mut Oom, max: usize) -> impl Iterator<Item = &mut Site> {
    let leaked = oom.remedies.iter_mut().filter_map(|remedy| match &mut remedy.kind {
        RemedyKind::FixLeak { site, .. } => Some(&mut **site),
        _ => None,
    });
    let held = oom.sites.iter_mut().take(max).map(|share| &mut share.site);
    let grown = oom.growth.iter_mut().take(max).map(|line| &mut line.site);
    let unchanged = oom.unchanged.iter_mut().take(max).map(|line| &mut line.site);
    [&mut oom.site].into_iter().chain(held).chain(grown).chain(unchanged).chain(leaked)
}

/// The sites of a leak, with at most `max` members.
fn sites_of_leak(leak: &mut Leak, max: usize) -> impl Iterator<Item = &mut Site> {
    let members = leak.members.iter_mut().take(max);
    [&mut leak.site].into_iter().chain(&mut leak.freed_siblings.site).chain(members)
}

/// The sites that the sentence of a verdict names.
fn verdict_sites(evidence: &mut VerdictEvidence) -> Vec<&mut Site> {
    match evidence {
        VerdictEvidence::Leak { site, .. }
        | VerdictEvidence::Growth { site, .. }
        | VerdictEvidence::Oom { site, .. } => vec![site],
        VerdictEvidence::FailedCalls { site, .. } => site.iter_mut().map(|site| &mut **site).collect(),
        VerdictEvidence::TransientSpike { more_by_site, .. } => {
            more_by_site.iter_mut().map(|more| &mut more.site).collect()
        }
        _ => Vec::new(),
    }
}
