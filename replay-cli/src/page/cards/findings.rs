//! The findings of the overview: what is wrong, what to do, and the view that shows more.

use gpumemtrace_replay::report::{
    AssessmentStatus, GrowingSite, GrowthClass, Leak, LeakAssessment, Severity, Site, Verdict,
    VerdictEvidence,
};
use serde_json::json;

use super::element::{Element, Node, element, list};
use super::headline::NO_PROBLEMS;
use super::{CardTrace, nodes, paragraph, view_link};
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

/// A finding before it becomes a card.
struct FindingText<'a> {
    severity: &'static str,
    summary: String,
    site: Option<&'a Site>,
    /// Sentences that follow the summary.
    details: Vec<String>,
    advice: Vec<String>,
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

fn collect_findings<'a>(trace: &CardTrace<'a>) -> Vec<FindingText<'a>> {
    let verdicts = trace.report.verdicts.iter().flatten();
    let mut findings: Vec<FindingText<'a>> = verdicts
        .filter(|verdict| verdict.trace == trace.trace)
        .filter(|verdict| !is_shown_elsewhere(&verdict.evidence))
        .map(|verdict| verdict_finding(verdict, trace))
        .collect();
    if let Some(assessment) = find_assessment(trace.report, trace.trace) {
        match assessment.status {
            AssessmentStatus::Partly | AssessmentStatus::NotAssessed => {
                findings.push(unjudged_finding(assessment));
            }
            AssessmentStatus::Assessed if findings.is_empty() => findings.push(no_finding()),
            AssessmentStatus::Assessed => {}
        }
    }
    findings
}

/// True for what the lines below the headline name, and for growth that is part of an error.
fn is_shown_elsewhere(evidence: &VerdictEvidence) -> bool {
    match evidence {
        VerdictEvidence::Incomplete(_) => true,
        VerdictEvidence::Growth { class, .. } => *class == GrowthClass::TowardsOom,
        _ => false,
    }
}

fn verdict_finding<'a>(verdict: &'a Verdict, trace: &CardTrace<'a>) -> FindingText<'a> {
    let mut finding = FindingText {
        severity: verdict.severity.name(),
        summary: verdict.summary.clone(),
        site: None,
        details: Vec::new(),
        advice: Vec::new(),
        view: "run",
    };
    match &verdict.evidence {
        VerdictEvidence::Leak { site, .. } => {
            finding.view = "leaks";
            finding.site = Some(&**site);
            let is_same = |leak: &&Leak| leak.trace == trace.trace && leak.site.id == site.id;
            if let Some(leak) = trace.report.leaks.iter().flatten().find(is_same) {
                describe_leak(&mut finding, leak, trace);
            }
        }
        VerdictEvidence::Growth { site, class, .. } => {
            finding.view = "leaks";
            finding.site = Some(&**site);
            let growth = find_assessment(trace.report, trace.trace).map(|assessment| &assessment.growth);
            let is_same = |growth: &&GrowingSite| growth.site.id == site.id && growth.class == *class;
            finding.details.extend(growth.into_iter().flatten().find(is_same).map(explain_growth));
        }
        VerdictEvidence::Oom { site, .. } => {
            finding.view = "oom";
            finding.site = Some(&**site);
            if let Some(oom) = trace.report.oom.iter().flatten().find(|oom| oom.trace == trace.trace) {
                finding.details.push(sentence(&oom.why));
                let helps = oom.remedies.iter().filter(|remedy| remedy.works == Some(true));
                finding.advice.extend(helps.map(|remedy| format!("What helps: {}.", remedy.action)));
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
        details: Vec::new(),
        advice: assessment.remedy.clone().into_iter().collect(),
        view: "leaks",
    }
}

fn no_finding() -> FindingText<'static> {
    FindingText {
        severity: "good",
        summary: NO_PROBLEMS.to_owned(),
        site: None,
        details: vec!["No leaks, no out-of-memory errors, and no fragmentation that matters.".to_owned()],
        advice: Vec::new(),
        view: "timeline",
    }
}

fn finding_card(finding: FindingText<'_>, trace: &CardTrace<'_>) -> Element {
    let FindingText { severity, summary, site, details, mut advice, view } = finding;
    advice.truncate(MAX_ADVICE);
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
        .add(view_link(name_link(view), view, &change));
    let label = sentence(severity);
    element("article")
        .class("finding")
        .with("data-severity", severity)
        .add(element("span").class("severity").add(label.trim_end_matches('.')))
        .add(text)
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
