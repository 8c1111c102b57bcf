//! The findings of a trace, worst first: out of memory, leaks, warnings. If there are none, what
//! was judged and what was not.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Leak, LeakKind, Oom, StepSource, VerdictEvidence};

use super::{leaks, verdicts};
use crate::render::text::header::count_steps;
use crate::render::text::moment::format_step;
use crate::render::text::sections::leaks::{few_steps_note, filtered_leaks, suggest_holders};
use crate::render::text::sections::oom::describe_remedy;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::Vocabulary;
use crate::render::wording::sites::short_site;
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
    if let Some(first) = ooms.first() {
        out.push('\n');
        render_oom(out, first, count_ooms(report, trace, ooms.len()), style, sites);
    }
    if !found.is_empty() {
        out.push('\n');
        leaks::render_leaks(out, report, &found, style, sites);
        let has_tensors = found.iter().any(|leak| leak.kind == LeakKind::Tensors);
        let suggestion = suggest_holders(report, trace).filter(|_| has_tensors);
        for note in [suggestion, step_note(report, trace)].into_iter().flatten() {
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

/// The number of errors, including those beyond the described ones.
fn count_ooms(report: &Report, trace: usize, described: usize) -> u64 {
    let has_filters =
        report.filters.as_ref().is_some_and(gpumemtrace_replay::report::Filters::leave_events_out);
    let counted = report.traces[trace].events.get("oom").copied().unwrap_or(0);
    if has_filters { described as u64 } else { counted.max(described as u64) }
}

fn render_oom(out: &mut String, oom: &Oom, count: u64, style: Style, sites: &mut SiteFormatter) {
    let step = format_step(" in step ", oom.step);
    let headline = format!("Out of memory{step} on GPU {} at {}", oom.device, short_site(&oom.site));
    let first =
        if count > 1 { format!(" (first of {})", format_count(count, "error")) } else { String::new() };
    put_line(out, format_args!("{}{first}", style.warn(&headline)));
    if let Some(source) = sites.source_line(&oom.site) {
        put_line(out, format_args!("      {source}"));
    }
    put_line(out, format_args!("  {}.", oom.why));
    for remedy in oom.remedies.iter().filter(|remedy| remedy.works == Some(true)) {
        put_line(out, format_args!("  What helps: {}.", describe_remedy(remedy)));
    }
    if sites.full_stacks {
        sites.write_stack(out, &oom.site, "      ", style);
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
