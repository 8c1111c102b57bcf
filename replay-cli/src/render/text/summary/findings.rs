//! The findings of a trace, worst first: out of memory, leaks, warnings, other growth. Without
//! leaks, what was judged and what was not.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{AssessmentStatus, Leak, LeakKind, Oom, StepSource};

use super::{MAX_ROWS, leaks, oom, verdicts};
use crate::render::text::sections::leaks::{filtered_leaks, render_growth};
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::Vocabulary;
use crate::render::wording::assessment::{describe_assessment, find_assessment};
use crate::render::wording::leaks::holders::suggest_holders;
use crate::render::wording::oom::find_refused_calls;
use crate::render::wording::steps::{count_steps, describe_steps};
use crate::terminal::format::{format_count, put_line};
use crate::terminal::style::Style;

pub(super) fn render_findings(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let ooms: Vec<&Oom> = report.oom.iter().flatten().filter(|oom| oom.trace == trace).collect();
    let found: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    if !ooms.is_empty() {
        out.push('\n');
        oom::render_ooms(out, report, &ooms, style, sites);
    }
    if !found.is_empty() {
        out.push('\n');
        leaks::render_leaks(out, report, &found, style, sites);
        let has_tensors = found.iter().any(|leak| leak.kind == LeakKind::Tensors);
        let suggestion = suggest_holders(report, trace).filter(|_| has_tensors);
        for note in suggestion.map(str::to_owned).into_iter().chain(list_notes(report, trace)) {
            put_line(out, format_args!("  {note}"));
        }
    }
    verdicts::render_warnings(out, report, trace, style);
    if found.is_empty() {
        out.push('\n');
        render_all_clear(out, report, trace, style);
    }
    if find_assessment(report, trace).is_some_and(|assessment| !assessment.growth.is_empty()) {
        out.push('\n');
        render_growth(out, report, trace, (style.row_limit(MAX_ROWS), sites));
    }
}

/// Without leaks: what was judged, then what was not.
fn render_all_clear(out: &mut String, report: &Report, trace: usize, style: Style) {
    let info = &report.traces[trace];
    if !report.devices.iter().any(|device| device.trace == trace) {
        let text = if info.complete {
            "No GPU memory was allocated."
        } else {
            "No GPU memory is in the trace, but it is incomplete."
        };
        put_line(out, format_args!("{}", style.bold(text)));
        return;
    }
    let Some(assessment) = find_assessment(report, trace) else { return };
    let steps = count_steps(report, trace);
    let steps = steps.map(|steps| format!(" in {}", format_count(steps, "step"))).unwrap_or_default();
    let filters = report.filters.clone().unwrap_or_default();
    let scope = match (&filters.site, info.since.is_some()) {
        (Some(_), _) => " at these call sites",
        (None, true) => " in this part of the run",
        (None, false) => "",
    };
    let text = describe_assessment(assessment, &format!("{scope}{steps}"));
    let no_errors = are_errors_known(report, trace);
    let is_whole =
        no_errors && assessment.status == AssessmentStatus::Assessed && assessment.growth.is_empty();
    let errors = if is_whole { ", no out-of-memory errors" } else { "" };
    put_line(out, format_args!("{}", style.bold(&format!("{text}{errors}."))));
    if let Some(remedy) = &assessment.remedy {
        put_line(out, format_args!("  {remedy}"));
    }
    let elsewhere = filtered_leaks(report, trace).map_or(0, |omitted| omitted.count);
    if elsewhere > 0 {
        put_line(out, format_args!("  {} at other call sites.", format_count(elsewhere, "leak")));
    }
    if no_errors && !is_whole {
        put_line(out, format_args!("No out-of-memory errors."));
    } else if Vocabulary::of_trace(info).is_metal {
        put_line(out, format_args!("Out-of-memory errors are not known on Metal (see --oom)."));
    }
}

/// True if the absence of out-of-memory errors is known. It is not for one stream or some call
/// sites, on Metal, or if the driver refused a library other than PyTorch.
fn are_errors_known(report: &Report, trace: usize) -> bool {
    let has_site_filter = report.filters.as_ref().is_some_and(|filters| filters.site.is_some());
    let was_refused = find_refused_calls(report, trace).is_some();
    let is_metal = Vocabulary::of_trace(&report.traces[trace]).is_metal;
    let has_errors = report.oom.iter().flatten().any(|oom| oom.trace == trace);
    !is_metal && report.oom.is_some() && !has_site_filter && !was_refused && !has_errors
}

/// What limits the verdict on leaks where some were found, and how their steps were found.
fn list_notes(report: &Report, trace: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(assessment) = find_assessment(report, trace)
        && let Some(reason) = &assessment.reason
    {
        notes.push(format!("Leaks were judged in part: {reason}."));
        notes.extend(assessment.remedy.clone());
    }
    let steps = report.steps.as_ref().filter(|_| trace == 0);
    if let Some(steps) = steps.filter(|steps| steps.source == Some(StepSource::Period)) {
        notes.push(format!("Steps were {}; gpumemtrace.step() marks them.", describe_steps(steps)));
    }
    notes
}
