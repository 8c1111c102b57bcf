//! The findings of a trace, worst first: out of memory, leaks, warnings. If there are none, what
//! was judged and what was not.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, Oom, StepSource, VerdictEvidence};

use super::{leaks, oom, verdicts};
use crate::render::text::header::count_steps;
use crate::render::text::sections::leaks::{few_steps_note, filtered_leaks};
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::Vocabulary;
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
        if let Some(note) = step_note(report, trace) {
            put_line(out, format_args!("  {note}"));
        }
    }
    let has_warnings = verdicts::render_warnings(out, report, trace, style);
    if found.is_empty() {
        let has_problems = has_warnings || !ooms.is_empty();
        out.push('\n');
        render_all_clear(out, report, trace, has_problems, style);
    }
}

/// Without leaks: what was judged, then what was not. `No problems found` only if there are no
/// other findings.
fn render_all_clear(out: &mut String, report: &Report, trace: usize, has_problems: bool, style: Style) {
    let info = &report.traces[trace];
    if !report.devices.iter().any(|device| device.trace == trace) {
        put_line(out, format_args!("{}", style.bold("No GPU memory was allocated.")));
        return;
    }
    let few_steps = few_steps_note(report, trace);
    let steps = count_steps(report, trace);
    let steps = steps.map(|steps| format!(" in {}", format_count(steps, "step"))).unwrap_or_default();
    let mut judged = Vec::new();
    if few_steps.is_none() {
        judged.push(format!("no leaks{steps}"));
    }
    if are_errors_known(report, trace) {
        judged.push("no out-of-memory errors".to_owned());
    }
    let filters = report.filters.clone().unwrap_or_default();
    let scope = match (&filters.site, info.since.is_some()) {
        (Some(_), _) => " at these call sites",
        (None, true) => " in this part of the run",
        (None, false) => "",
    };
    let text = if has_problems {
        format!("No leaks found{scope}{steps}")
    } else {
        format!("No problems found{scope}: {}", judged.join(", "))
    };
    let is_claimed = !judged.is_empty() && (!has_problems || few_steps.is_none());
    if is_claimed {
        put_line(out, format_args!("{}", style.bold(&format!("{text}."))));
    }
    let indent = if is_claimed { "  " } else { "" };
    for note in list_unjudged(report, trace, few_steps) {
        put_line(out, format_args!("{indent}{note}"));
    }
}

/// What the trace does not allow to judge, and why.
fn list_unjudged(report: &Report, trace: usize, few_steps: Option<String>) -> Vec<String> {
    let info = &report.traces[trace];
    let mut notes = Vec::new();
    let elsewhere = filtered_leaks(report, trace).map_or(0, |omitted| omitted.count);
    if elsewhere > 0 {
        notes.push(format!("{} at other call sites.", format_count(elsewhere, "leak")));
    }
    notes.extend(few_steps);
    notes.extend(step_note(report, trace).map(str::to_owned));
    if Vocabulary::of_trace(info).is_metal {
        notes.push("Out-of-memory errors are not known on Metal (see --oom).".to_owned());
    }
    if !info.complete {
        notes.push("The trace is incomplete; what is missing was not judged.".to_owned());
    }
    notes
}

/// True if the absence of out-of-memory errors is known. It is not for one stream or some call
/// sites, on Metal, or if the driver refused a library other than PyTorch.
fn are_errors_known(report: &Report, trace: usize) -> bool {
    let has_site_filter = report.filters.as_ref().is_some_and(|filters| filters.site.is_some());
    let was_refused = report.verdicts.iter().flatten().any(|verdict| {
        verdict.trace == trace
            && matches!(verdict.evidence, VerdictEvidence::FailedCalls { out_of_memory: Some(1..), .. })
    });
    let is_metal = Vocabulary::of_trace(&report.traces[trace]).is_metal;
    let has_errors = report.oom.iter().flatten().any(|oom| oom.trace == trace);
    !is_metal && report.oom.is_some() && !has_site_filter && !was_refused && !has_errors
}

/// A sentence if steps were not marked by the program: detected ones, or none.
fn step_note(report: &Report, trace: usize) -> Option<&'static str> {
    match report.steps.as_ref().filter(|_| trace == 0)?.source {
        Some(StepSource::Period) => {
            Some("Steps were detected from repeating allocations; gpumemtrace.step() marks them.")
        }
        None => Some(
            "No step boundaries were found, so growth was judged over equal time spans. \
             gpumemtrace.step() marks steps.",
        ),
        Some(StepSource::Marks | StepSource::Nvtx | StepSource::Optimizer) => None,
    }
}
