//! The first lines of a summary: is something wrong, and what to do about it.
//!
//! Constraint: who opens a report for the first time knows none of its words. Consequence: before any table, one sentence for each
//! thing that is wrong, with where to look next; and where nothing is, that, with how sure it is.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Leak;
use gpumemtrace_replay::report::Severity;
use gpumemtrace_replay::report::display::format_bytes;

use crate::render::text::sections::leaks;
use crate::render::text::sites::short_site;
use crate::terminal::format::{format_count, format_number, format_percent, put_line};
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

pub(in crate::render::text) fn render_overview(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
) {
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("In short")));
    let problems = problems(report, trace);
    for sentence in &problems {
        put_line(out, format_args!("  ! {sentence}"));
    }
    if problems.is_empty() {
        for sentence in all_clear(report, trace) {
            put_line(out, format_args!("  - {sentence}"));
        }
    }
    let words = report.traces[trace].vocabulary();
    let whose = if report.traces[trace].stream.is_some() { " of this stream" } else { "" };
    for device in report.devices.iter().filter(|device| device.trace == trace) {
        let Some(live) = device.peak.live_bytes else { continue };
        let of = match device.total_bytes.filter(|total| *total > 0) {
            Some(total) => {
                let share = format_percent(live as f64 / total as f64);
                let what = if words.is_metal { " that Metal recommends" } else { "" };
                format!(" of {}{what} ({share})", format_bytes(total))
            }
            None => String::new(),
        };
        put_line(
            out,
            format_args!(
                "  - Tensors{whose} needed at most {}{of} of device {}.",
                format_bytes(live),
                device.device
            ),
        );
    }
}

/// A sentence for each thing that is wrong, worst first.
fn problems(report: &Report, trace: usize) -> Vec<String> {
    let mut problems = Vec::new();
    let oom = report.oom.iter().flatten().find(|oom| oom.trace == trace);
    if let Some(oom) = oom {
        let step = oom.step.map(|step| format!(" in step {}", format_number(step))).unwrap_or_default();
        problems.push(format!(
            "It ran out of memory{step}, at {}. Next: --oom says why, and what would have helped.",
            short_site(&oom.site)
        ));
    }
    let found: Vec<&Leak> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    if let Some(worst) = found.first() {
        let lines = match found.len() as u64 {
            1 => "one line keeps".to_owned(),
            many => format!("{} keep", format_count(many, "line")),
        };
        let rate: f64 = found.iter().filter_map(|leak| leak.bytes_per_step).map(|rate| rate.0).sum();
        let rate =
            if rate >= 1.0 { format!(" ({} per step)", format_bytes(rate as u64)) } else { String::new() };
        let full = found.iter().filter_map(|leak| leak.oom_step.as_ref()).map(|oom| oom.expected).min();
        // Where it was full already, that is said above.
        let full = full.filter(|step| *step < leaks::FAR_STEPS && oom.is_none());
        let full = full
            .map(|step| format!(", and the device is full at about step {}", format_number(step)))
            .unwrap_or_default();
        problems.push(format!(
            "Memory leaks: {lines} more and more{rate}, mostly at {}{full}. Next: --leaks shows where it is allocated; look for what still holds it.",
            short_site(&worst.site)
        ));
    }
    // What is of the whole run and not said above.
    let said = ["leak", "oom", "creep_confirmed"];
    let verdicts = report.verdicts.iter().flatten().filter(|verdict| verdict.trace == trace);
    let critical =
        verdicts.filter(|verdict| verdict.severity == Severity::Critical && !said.contains(&verdict.kind));
    problems.extend(critical.map(|verdict| format!("{}.", capitalize(&shorten_paths_in(&verdict.summary)))));
    problems
}

/// What it means that nothing is, and how sure that is.
fn all_clear(report: &Report, trace: usize) -> Vec<String> {
    let info = &report.traces[trace];
    if !report.devices.iter().any(|device| device.trace == trace) {
        return vec!["No GPU memory was allocated.".to_owned()];
    }
    let filters = report.filters.clone().unwrap_or_default();
    let line = if filters.site.is_some() { "no such line" } else { "no line" };
    let part = if info.since.is_some() { " in this part of the run" } else { "" };
    // Of a stream, or of some lines, nothing is said of the whole device; of Metal nobody tells when PyTorch gives up.
    let may_know = !info.vocabulary().is_metal;
    let is_of_all = may_know && report.oom.is_some() && filters.site.is_none();
    // A library that the driver refused, say: PyTorch was not asked, and did not give back what it caches.
    let was_refused = report.verdicts.iter().flatten().any(|verdict| {
        verdict.trace == trace && verdict.evidence["out_of_memory"].as_u64().is_some_and(|calls| calls > 0)
    });
    let never = if is_of_all && !was_refused { ", and memory never ran out" } else { "" };
    let doubt = leaks::few_steps_note(report, trace);
    let so_far = if doubt.is_some() { " so far" } else { "" };
    let mut sentences =
        vec![format!("Nothing looks wrong{so_far}: {line} keeps more and more memory{never}{part}.")];
    sentences.extend(doubt);
    if !info.complete {
        sentences.push("But the trace is incomplete, and what is missing is not judged.".to_owned());
    }
    sentences
}

fn capitalize(sentence: &str) -> String {
    let mut rest = sentence.chars();
    // A path stays as it is.
    match rest.next() {
        Some(first)
            if first.is_alphabetic() && !sentence.split(' ').next().unwrap_or("").contains(['/', '.']) =>
        {
            first.to_uppercase().chain(rest).collect()
        }
        _ => sentence.to_owned(),
    }
}
