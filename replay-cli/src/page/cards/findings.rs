//! The findings of the overview: what is wrong, what to do, and the view that shows more.

use std::cmp::Reverse;

use gpumemtrace_replay::report::{
    AssessmentStatus, GrowingSite, GrowthClass, Leak, LeakAssessment, LeakKind, Oom, Severity, Site, Verdict,
    VerdictEvidence,
};
use serde_json::json;

use super::element::{Element, Node, element, list};
use super::headline::NO_PROBLEMS;
use super::{CardTrace, SiteBlocks, nodes, paragraph, view_link};
use crate::render::wording::assessment::{describe_assessment, explain_growth, find_assessment};
use crate::render::wording::leaks::growth::{describe_forecast, describe_growth};
use crate::render::wording::leaks::holders::{format_holder, suggest_holders};
use crate::render::wording::leaks::name_graph;
use crate::render::wording::sentence;
use crate::render::wording::verdicts::describe_more_bytes;

/// Findings above the fold; the others are behind a click.
const SHOWN: usize = 4;
/// Most call sites that explain a peak, and most pieces of advice.
const MAX_SITES: usize = 3;
const MAX_ADVICE: usize = 4;

/// A finding before it becomes a card or Markdown.
pub(super) struct FindingText<'a> {
    pub(super) severity: &'static str,
    pub(super) summary: String,
    pub(super) site: Option<&'a Site>,
    /// The blocks that the flame graph shows of the site, and the ordinal of their GPU.
    blocks: (SiteBlocks, u32),
    /// Sentences that follow the summary.
    pub(super) details: Vec<String>,
    pub(super) advice: Vec<String>,
    view: &'static str,
}

/// The cards of all findings of a trace, most severe first.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<Node> {
    let mut cards: Vec<Element> =
        collect_findings(trace).into_iter().map(|finding| finding_card(finding, trace)).collect();
    let rest = cards.split_off(cards.len().min(SHOWN));
    let more = element("summary").add(format!("{} more", rest.len()));
    let more = (!rest.is_empty()).then(|| element("details").add(more).add(rest));
    let mut all = nodes(cards);
    all.extend(nodes(more));
    all
}

/// The findings of a trace, each once, most severe first.
pub(super) fn collect_findings<'a>(trace: &CardTrace<'a>) -> Vec<FindingText<'a>> {
    let all = verdicts_of(trace);
    let own = all.iter().filter(|verdict| !is_shown_elsewhere(verdict, &all));
    let mut own: Vec<(Severity, &Verdict)> =
        own.map(|verdict| (severity_with_parts(verdict, &all, trace), *verdict)).collect();
    own.sort_by_key(|(severity, _)| Reverse(*severity));
    let mut findings: Vec<FindingText<'a>> =
        own.into_iter().map(|(severity, verdict)| verdict_finding(severity, verdict, trace)).collect();
    if let Some(assessment) = find_assessment(trace.report, trace.trace) {
        match assessment.status {
            AssessmentStatus::Partly | AssessmentStatus::NotAssessed => {
                findings.push(unjudged_finding(assessment));
            }
            AssessmentStatus::Assessed if findings.is_empty() => findings.push(no_finding(trace)),
            AssessmentStatus::Assessed => {}
        }
    }
    for finding in &mut findings {
        finding.advice.truncate(MAX_ADVICE);
    }
    findings
}

/// True if the only finding is that there is none.
pub(super) fn has_none(trace: &CardTrace<'_>) -> bool {
    let all = verdicts_of(trace);
    let assessment = find_assessment(trace.report, trace.trace);
    assessment.is_some_and(|assessment| assessment.status == AssessmentStatus::Assessed)
        && all.iter().all(|verdict| is_shown_elsewhere(verdict, &all))
}

fn verdicts_of<'a>(trace: &CardTrace<'a>) -> Vec<&'a Verdict> {
    trace.report.verdicts.iter().flatten().filter(|verdict| verdict.trace == trace.trace).collect()
}

/// True for what the lines below the headline name, and for what is part of another finding: of
/// an error, or of the only leak of a GPU.
fn is_shown_elsewhere(verdict: &Verdict, all: &[&Verdict]) -> bool {
    match &verdict.evidence {
        VerdictEvidence::Incomplete(_) => true,
        VerdictEvidence::Growth { class, .. } => *class == GrowthClass::TowardsOom,
        VerdictEvidence::CreepConfirmed { findings, .. } => *findings == 1,
        VerdictEvidence::HighPressure(pressure) => {
            devices_with_errors(all).any(|device| device == pressure.device)
        }
        VerdictEvidence::TransientSpike { device, .. } => devices_with_errors(all).any(|one| one == *device),
        VerdictEvidence::FailedCalls { calls, of_torch, .. } => {
            calls == of_torch && devices_with_errors(all).next().is_some()
        }
        _ => false,
    }
}

fn devices_with_errors(all: &[&Verdict]) -> impl Iterator<Item = u32> {
    all.iter().filter_map(|verdict| match &verdict.evidence {
        VerdictEvidence::Oom { device, .. } => Some(*device),
        _ => None,
    })
}

/// The severity of a finding. The growth of a GPU with one leak is part of that leak.
fn severity_with_parts(verdict: &Verdict, all: &[&Verdict], trace: &CardTrace<'_>) -> Severity {
    let VerdictEvidence::Leak { site, kind: LeakKind::Tensors, .. } = &verdict.evidence else {
        return verdict.severity;
    };
    let Some(leak) = leak_at(site, trace) else { return verdict.severity };
    let growth = all.iter().filter(|other| match &other.evidence {
        VerdictEvidence::CreepConfirmed { device, findings, .. } => (*device, *findings) == (leak.device, 1),
        _ => false,
    });
    growth.map(|other| other.severity).fold(verdict.severity, Severity::max)
}

impl FindingText<'_> {
    /// A finding about the run as a whole.
    fn new(severity: Severity, summary: &str) -> Self {
        Self {
            severity: severity.name(),
            summary: summary.to_owned(),
            site: None,
            blocks: (SiteBlocks::AtPeak, 0),
            details: Vec::new(),
            advice: Vec::new(),
            view: "run",
        }
    }
}

fn leak_at<'a>(site: &Site, trace: &CardTrace<'a>) -> Option<&'a Leak> {
    let mut leaks = trace.report.leaks.iter().flatten();
    leaks.find(|leak| leak.trace == trace.trace && leak.site.id == site.id)
}

fn verdict_finding<'a>(severity: Severity, verdict: &'a Verdict, trace: &CardTrace<'a>) -> FindingText<'a> {
    let mut finding = FindingText::new(severity, &verdict.summary);
    match &verdict.evidence {
        VerdictEvidence::Leak { site, .. } => {
            finding.view = "leaks";
            finding.site = Some(&**site);
            if let Some(leak) = leak_at(site, trace) {
                finding.blocks = (SiteBlocks::Kept, leak.device);
                describe_leak(&mut finding, leak, trace);
            }
        }
        VerdictEvidence::Growth { site, class, device, .. } => {
            finding.view = "leaks";
            finding.site = Some(&**site);
            finding.blocks = (SiteBlocks::Kept, *device);
            let growth = find_assessment(trace.report, trace.trace).map(|assessment| &assessment.growth);
            let is_same = |growth: &&GrowingSite| growth.site.id == site.id && growth.class == *class;
            finding.details.extend(growth.into_iter().flatten().find(is_same).map(explain_growth));
        }
        VerdictEvidence::Oom { site, .. } => {
            finding.view = "oom";
            finding.site = Some(&**site);
            if let Some(oom) = trace.report.oom.iter().flatten().find(|oom| oom.trace == trace.trace) {
                describe_oom(&mut finding, oom, trace);
            }
        }
        VerdictEvidence::FailedCalls { site, .. } => {
            finding.view = "oom";
            finding.site = site.as_deref();
        }
        VerdictEvidence::CreepConfirmed { .. } => finding.view = "leaks",
        VerdictEvidence::FragmentationLike { .. }
        | VerdictEvidence::StrandedMemory { .. }
        | VerdictEvidence::ReservedOverhang { .. }
        | VerdictEvidence::CachePressure(_) => finding.view = "fragmentation",
        VerdictEvidence::TransientSpike { more_by_site, .. } => {
            finding.view = "timeline";
            // The summary has the first one.
            let more = more_by_site.iter().take(MAX_SITES).skip(1).map(describe_more_bytes);
            finding.details.extend(more.map(|text| sentence(&text)));
        }
        VerdictEvidence::HighPressure(_)
        | VerdictEvidence::HiddenMemory { .. }
        | VerdictEvidence::PersistentDrift { .. } => finding.view = "timeline",
        VerdictEvidence::Imbalance { .. } => finding.view = "ranks",
        VerdictEvidence::Incomplete(_)
        | VerdictEvidence::TotalMismatch { .. }
        | VerdictEvidence::SegmentMismatch { .. }
        | VerdictEvidence::UnmatchedBlocks { .. }
        | VerdictEvidence::UncoveredCalls { .. } => {}
    }
    finding
}

fn describe_oom(finding: &mut FindingText<'_>, oom: &Oom, trace: &CardTrace<'_>) {
    finding.blocks = (SiteBlocks::At(oom.time_ns), oom.device);
    finding.details.push(sentence(&oom.why));
    let all = verdicts_of(trace);
    let refused = all.iter().find(|verdict| {
        matches!(verdict.evidence, VerdictEvidence::FailedCalls { .. }) && is_shown_elsewhere(verdict, &all)
    });
    finding.details.extend(refused.map(|verdict| sentence(&verdict.summary)));
    let helps = oom.remedies.iter().filter(|remedy| remedy.works == Some(true));
    finding.advice.extend(helps.map(|remedy| format!("What helps: {}.", remedy.action)));
}

fn describe_leak(finding: &mut FindingText<'_>, leak: &Leak, trace: &CardTrace<'_>) {
    let same_device = |other: &&Leak| (other.trace, other.device) == (leak.trace, leak.device);
    let is_alone = trace.report.leaks.iter().flatten().filter(same_device).count() == 1;
    let graph = name_graph(leak).map(|graph| format!("{graph}: ")).unwrap_or_default();
    // After an error, it is no news.
    let has_failed = trace.report.oom.iter().flatten().any(|oom| oom.trace == leak.trace);
    let forecast = if has_failed { String::new() } else { describe_forecast(leak, is_alone) };
    finding.details.push(format!("{graph}{}.{forecast}", describe_growth(leak)));
    match leak.holders.as_ref().and_then(|holders| holders.first()) {
        Some(holder) => finding.details.push(format!("Held by {}.", format_holder(holder))),
        None => finding.advice.extend(suggest_holders(trace.report, trace.trace).map(str::to_owned)),
    }
}

fn unjudged_finding(assessment: &LeakAssessment) -> FindingText<'_> {
    FindingText {
        severity: Severity::Info.name(),
        summary: sentence(&describe_assessment(assessment, "")),
        site: None,
        blocks: (SiteBlocks::AtPeak, 0),
        details: Vec::new(),
        advice: assessment.remedy.clone().into_iter().collect(),
        view: "leaks",
    }
}

fn no_finding(trace: &CardTrace<'_>) -> FindingText<'static> {
    let place = trace.name_among_traces().map(|name| format!(" on {name}")).unwrap_or_default();
    FindingText {
        severity: "good",
        summary: format!("{NO_PROBLEMS}{place}"),
        site: None,
        blocks: (SiteBlocks::AtPeak, 0),
        details: vec!["No leaks, no out-of-memory errors, and no fragmentation that matters.".to_owned()],
        advice: Vec::new(),
        view: "timeline",
    }
}

fn finding_card(finding: FindingText<'_>, trace: &CardTrace<'_>) -> Element {
    let FindingText { severity, summary, site, blocks: (blocks, device), details, advice, view } = finding;
    let source = site.and_then(|site| trace.site(site)?.source.as_deref());
    let source = source.map(|source| element("code").class("source-line").add(source));
    let details = (!details.is_empty()).then(|| paragraph(details.join(" ")));
    let advice = (!advice.is_empty()).then(|| list("advice", advice));
    let change = site.map_or_else(|| json!({}), |site| json!({ "site": site.id }));
    let text = element("div")
        .class("finding-text")
        .add(element("h2").add(summary))
        .add(source)
        .add(details)
        .add(advice)
        .add(view_link(name_link(view), view, &change))
        .add(" ")
        .add(site.filter(|site| trace.site(site).is_some()).map(|site| {
            view_link("Show its call stacks", "flame", &trace.site_change(site, device, blocks))
        }));
    let label = label_severity(severity, trace);
    element("article")
        .class("finding")
        .with("data-severity", severity)
        .add(element("span").class("severity").add(label))
        .add(text)
}

/// `Warning`; with several traces, `Warning, rank 3`.
pub(super) fn label_severity(severity: &str, trace: &CardTrace<'_>) -> String {
    let label = sentence(severity);
    let place = trace.name_among_traces().map(|name| format!(", {name}")).unwrap_or_default();
    format!("{}{place}", label.trim_end_matches('.'))
}

fn name_link(view: &str) -> &'static str {
    match view {
        "leaks" => "Open the leaks",
        "oom" => "Open the error",
        "fragmentation" => "Open the fragmentation",
        "ranks" => "Compare the ranks",
        "run" => "Open the recording",
        _ => "Open the timeline",
    }
}
