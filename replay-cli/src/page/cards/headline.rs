//! The first lines of the page: the most severe finding, the program, and what the trace lacks.

use gpumemtrace_replay::report::{AssessmentStatus, Ending, Severity};
use serde::Serialize;

use super::element::{Node, element, list};
use super::{CardTrace, findings, name_trace, nodes};
use crate::render::wording::assessment::find_assessment;
use crate::render::wording::recording::{describe_end, format_extent, name_torch};
use crate::terminal::escape::escape_text;
use crate::terminal::paths::shorten_command;

/// The verdict without any finding.
pub(super) const NO_PROBLEMS: &str = "No problems found";
/// The verdict if memory grew, but not as a leak does.
const ONLY_GROWTH: &str = "No leaks found, but memory grew";

/// The lines at the top of all views.
#[derive(Debug, Serialize)]
pub(super) struct Headline {
    severity: &'static str,
    verdict: String,
    /// The verdict above the findings of the overview; `None` if they say it.
    above_findings: Option<String>,
    program: String,
}

/// The most severe finding of the trace that is more than a remark, else that of another rank, and
/// the program.
pub(super) fn headline(trace: &CardTrace<'_>) -> Headline {
    let (severity, verdict, above_findings) = verdict(trace);
    Headline {
        severity,
        verdict: escape_text(&verdict),
        above_findings: above_findings.as_deref().map(escape_text),
        program: program(trace),
    }
}

/// Severity, verdict, and the verdict above the findings.
fn verdict(trace: &CardTrace<'_>) -> (&'static str, String, Option<String>) {
    let problems = || {
        let all = trace.report.verdicts.iter().flatten();
        all.filter(|verdict| verdict.severity != Severity::Info)
    };
    if let Some(verdict) = problems().find(|verdict| verdict.trace == trace.trace) {
        return (verdict.severity.name(), verdict.summary.clone(), None);
    }
    if let Some(verdict) = problems().next() {
        let name = name_trace(trace.report, verdict.trace);
        let text = format!("On {name}: {}", verdict.summary);
        return (verdict.severity.name(), text.clone(), Some(text));
    }
    let assessment = find_assessment(trace.report, trace.trace);
    let judged = match assessment.map(|assessment| assessment.status) {
        Some(AssessmentStatus::Partly) => "; leaks were judged in part",
        Some(AssessmentStatus::NotAssessed) => "; leaks were not judged",
        Some(AssessmentStatus::Assessed) | None => "",
    };
    let info = &trace.report.traces[trace.trace];
    let ended = match info.end {
        Ending::Killed | Ending::Crashed => {
            format!("; {}", describe_end(info))
        }
        Ending::Exit | Ending::Running => String::new(),
    };
    let has_grown = assessment.is_some_and(|assessment| !assessment.growth.is_empty());
    let found = if has_grown { ONLY_GROWTH } else { NO_PROBLEMS };
    let severity = if judged.is_empty() && ended.is_empty() && !has_grown { "good" } else { "info" };
    // A finding says that nothing was found, what grew, or why leaks were not judged.
    let is_said = has_grown || findings::has_none(trace);
    (severity, format!("{found}{judged}{ended}"), (!is_said).then(|| found.to_owned()))
}

/// `python train.py (PyTorch 2.15.0), 60 steps in 1.9 s, exited normally; trace complete`
pub(super) fn program(trace: &CardTrace<'_>) -> String {
    let info = &trace.report.traces[trace.trace];
    let rank = info.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    let command = info.command.as_deref().map_or_else(|| info.path.clone(), shorten_command);
    let torch = name_torch(info).map(|torch| format!(" ({torch})")).unwrap_or_default();
    let extent = format_extent(trace.report, trace.trace);
    let extent = extent.map(|extent| format!("{extent}, ")).unwrap_or_default();
    let ending = describe_end(info);
    let state = if info.complete { "complete" } else { "incomplete" };
    escape_text(&format!("{rank}{command}{torch}, {extent}{ending}; trace {state}"))
}

/// What is missing from the trace; empty if it is complete.
pub(super) fn losses(trace: &CardTrace<'_>) -> Vec<Node> {
    let info = &trace.report.traces[trace.trace];
    if info.complete {
        return Vec::new();
    }
    let messages = info.incomplete.iter().map(|loss| loss.message.as_str());
    let mut losses = nodes(element("strong").add("The trace is incomplete."));
    losses.extend(nodes(list("", messages)));
    losses
}
