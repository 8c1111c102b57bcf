//! All ranks together: what was read, how evenly they use memory, what grows, what failed.

use std::collections::BTreeSet;

use gpumemtrace_multirun::{FirstGrowth, GrowingLine, JobReport, Outcome, Outlier, RankOom, TraceSummary};
use gpumemtrace_replay::Spread;

use crate::render::job_words::{
    attempt_number, describe_gaps, list_names, name_device, name_rank, short_text,
};
use crate::render::wording::ranks::UNEQUAL_STEPS;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, format_percent, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// Most rows of a list without `--top`.
const MAX_ROWS: usize = 10;
/// Why steps of ranks with several traces are not compared.
const UNKNOWN_ATTEMPTS: &str = "ranks have several traces, and their times do not separate restarts";

pub(crate) fn render_job(job: &JobReport, style: Style) -> String {
    let mut out = String::new();
    put_line(&mut out, format_args!("{}", style.bold(&describe_traces(job))));
    render_gaps(&mut out, job, style);
    render_spread(&mut out, job, style);
    render_outliers(&mut out, job, style);
    render_growth(&mut out, job, style);
    render_ooms(&mut out, job, style);
    layout::finish_text(&out, style)
}

/// `1,000 traces of 998 ranks on 125 hosts`.
fn describe_traces(job: &JobReport) -> String {
    let ranks: BTreeSet<u64> = job.traces.iter().filter_map(|trace| trace.rank).collect();
    let part = |word: &str, count: usize, noun: &str| {
        if count == 0 { String::new() } else { format!(" {word} {}", format_count(count as u64, noun)) }
    };
    let traces = format_count(job.traces.len() as u64, "trace");
    format!("{traces}{}{}", part("of", ranks.len(), "rank"), part("on", job.hosts.len(), "host"))
}

fn render_gaps(out: &mut String, job: &JobReport, style: Style) {
    for gap in describe_gaps(job, style.row_limit(MAX_ROWS)) {
        put_line(out, format_args!("  {HANG}{}", style.warn(&format!("! {gap}"))));
    }
    for (outcome, words) in [
        (Outcome::ErrorExit, "exited with an error"),
        (Outcome::Killed, "killed"),
        (Outcome::Crashed, "crashed"),
        (Outcome::Unknown, "with an unknown end"),
        (Outcome::Unfinished, "still recording"),
    ] {
        let ended: Vec<&TraceSummary> =
            job.traces.iter().filter(|trace| trace.outcome() == outcome).collect();
        if !ended.is_empty() {
            let names = list_names(ended.iter().map(|trace| name_rank(trace, job)), ended.len());
            let count = format_count(ended.len() as u64, "trace");
            put_line(out, format_args!("  {HANG}{count} {words}: {names}"));
        }
    }
}

fn render_spread(out: &mut String, job: &JobReport, style: Style) {
    let rows = [("allocated", &job.peak_live), ("reserved", &job.peak_reserved)];
    if rows.iter().all(|(_, spread)| spread.is_none()) {
        return;
    }
    let width = chosen_units().columns();
    out.push('\n');
    let title =
        format!("{:<18}{:>width$}  {:>width$}  {:>width$}", "Peak of a GPU", "median", "least", "most");
    put_line(out, format_args!("{}", style.bold(&title)));
    for (name, spread) in rows {
        let Some(Spread { median_bytes, least_bytes, most_bytes, .. }) = spread else { continue };
        let [median, least, most] = [*median_bytes, *least_bytes, *most_bytes].map(size_column);
        put_line(out, format_args!("  {name:<16}{median}  {least}  {most}"));
    }
}

fn render_outliers(out: &mut String, job: &JobReport, style: Style) {
    if job.outliers.is_empty() {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Outliers")));
    for Outlier { trace, device, bytes, excess } in job.outliers.iter().take(style.row_limit(MAX_ROWS)) {
        let name = name_device(&job.traces[*trace], *device, job);
        let share = format_percent(excess.abs());
        let word = if *excess > 0.0 { "more" } else { "less" };
        put_line(
            out,
            format_args!("  {}  {HANG}{name}, {share} {word} than the median", size_column(*bytes)),
        );
    }
    put_more(out, (job.outliers.len(), style.row_limit(MAX_ROWS)), "GPU", "--json has all");
}

fn render_growth(out: &mut String, job: &JobReport, style: Style) {
    out.push('\n');
    let unjudged = job.traces.iter().filter(|trace| trace.leak_assessment != "assessed").count();
    if job.lines.is_empty() {
        let text = match job.traces.len() - unjudged {
            0 => "No trace has enough steps to judge leaks; run replay on one for the reason.",
            judged if judged < job.traces.len() => {
                "No certain leaks where they were judged (replay lists possible ones)."
            }
            _ => "No certain leaks (replay of a trace lists possible ones).",
        };
        put_line(out, format_args!("{}", style.bold(text)));
    } else {
        put_line(out, format_args!("{}", style.bold("Lines that leak")));
        for line in job.lines.iter().take(style.row_limit(MAX_ROWS)) {
            put_line(out, format_args!("  {}  {HANG}{}", size_column(line.bytes), describe_line(line, job)));
        }
        put_more(out, (job.lines.len(), style.row_limit(MAX_ROWS)), "line", "--json has all");
        match &job.first_growth {
            Some(first) => put_line(out, format_args!("  {HANG}{}", describe_first(first, job))),
            None if job.attempts.is_none() => {
                put_line(out, format_args!("  {HANG}Which rank grew first is unknown: {UNKNOWN_ATTEMPTS}."));
            }
            None if !job.have_equal_steps && job.traces.len() > 1 => {
                put_line(out, format_args!("  {HANG}Which rank grew first is unknown: {UNEQUAL_STEPS}."));
            }
            None => {}
        }
    }
    if unjudged > 0 && (unjudged < job.traces.len() || !job.lines.is_empty()) {
        let count = format_count(unjudged as u64, "trace");
        put_line(
            out,
            format_args!("  {HANG}Leaks were not judged, or only in part, in {count} (see replay)."),
        );
    }
}

fn describe_line(line: &GrowingLine, job: &JobReport) -> String {
    let rate = line.most_bytes_per_step.map_or_else(String::new, |rate| {
        let at_most = if line.traces.len() > 1 { "up to " } else { "" };
        format!("{at_most}{}/step, ", format_bytes(rate as u64))
    });
    let kind = match line.kind.as_str() {
        "tensors" => String::new(),
        kind => format!(" ({})", escape_text(&kind.replace('_', " "))),
    };
    let names = line.traces.iter().map(|trace| name_rank(&job.traces[*trace], job));
    let names = list_names(names, line.traces.len());
    format!("{rate}{}{kind}: {names}", short_text(&line.site))
}

fn describe_first(first: &FirstGrowth, job: &JobReport) -> String {
    let name = name_device(&job.traces[first.trace], first.device, job);
    let attempt = name_attempt(Some(first.attempt), job);
    let lead = match first.lead_steps {
        None => "no other grows".to_owned(),
        Some(0) => format!("{} in the same step", format_count(first.others_in_step, "other")),
        Some(steps) => format!("{} before any other", format_count(steps, "step")),
    };
    let step = format_number(first.step);
    let among = if first.compared == job.traces.len() as u64 {
        String::new()
    } else {
        let of_attempt = if attempt.is_empty() { "" } else { " in this attempt" };
        format!(", among {} with steps{of_attempt}", format_count(first.compared, "trace"))
    };
    format!("Growth began in {name} in step {step}{attempt} at {} ({lead}{among}).", short_text(&first.site))
}

/// ` of attempt 2`, if there are several.
fn name_attempt(attempt: Option<u64>, job: &JobReport) -> String {
    attempt_number(attempt, job).map_or_else(String::new, |number| format!(" of attempt {number}"))
}

fn render_ooms(out: &mut String, job: &JobReport, style: Style) {
    if job.ooms.is_empty() {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Out of memory")));
    if job.attempts.is_none() && job.ooms.len() > 1 {
        put_line(out, format_args!("  {HANG}Which error was first is unknown: {UNKNOWN_ATTEMPTS}."));
    }
    for RankOom { trace, attempt, error } in job.ooms.iter().take(style.row_limit(MAX_ROWS)) {
        let name = name_device(&job.traces[*trace], error.device, job);
        let step = error.step.map(|step| format!(" in step {}", format_number(step))).unwrap_or_default();
        let (site, attempt) = (short_text(&error.site), name_attempt(*attempt, job));
        let requested = size_column(error.requested_bytes);
        put_line(out, format_args!("  {requested}  {HANG}requested{step}{attempt} at {site}: {name}"));
    }
    put_more(out, (job.ooms.len(), style.row_limit(MAX_ROWS)), "error", "--json has all");
}

/// Counts the rows that are not shown. `hint` says how to see them.
pub(super) fn put_more(out: &mut String, (all, shown): (usize, usize), noun: &str, hint: &str) {
    if let Some(more) = all.checked_sub(shown).filter(|more| *more > 0) {
        let more = format_count(more as u64, &format!("more {noun}"));
        put_line(out, format_args!("  {more} ({hint})"));
    }
}
