//! The runs of an archive as text: one line each, and what grew between versions.

use gpumemtrace_multirun::{ArchiveGrowth, ArchivedRun, GpuChoice, JobReport, Regression, RunArchive};

use super::job::put_more;
use crate::render::history_words::{
    describe_archive_gaps, describe_growth_gaps, describe_no_growth, name_version, short_commit,
};
use crate::render::job_words::worst_finding;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, format_utc, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// Most rows of a list without `--top`.
const MAX_ROWS: usize = 20;

pub(crate) fn render_archive(archive: &RunArchive, growth: &ArchiveGrowth, style: Style) -> String {
    let runs = &archive.runs;
    let mut out = String::new();
    put_line(&mut out, format_args!("{}", style.bold(&format_count(runs.len() as u64, "run"))));
    let shown = style.row_limit(MAX_ROWS);
    put_gaps(&mut out, &describe_archive_gaps(archive, shown), style);
    out.push('\n');
    let width = chosen_units().columns().max("median peak".len());
    let (started, commit, ranks) = ("Started", "commit", "ranks");
    let title = format!(
        "{started:<22}{commit:<10}{ranks:>7}  {:>width$}  {:>width$}  run, and its worst finding",
        "median peak", "max peak"
    );
    put_line(&mut out, format_args!("{}", style.bold(&title)));
    for run in runs.iter().rev().take(shown) {
        put_line(&mut out, format_args!("{}", describe_run(run, width)));
    }
    put_more(&mut out, (runs.len(), shown), "older run", "--top shows them");
    out.push('\n');
    let grown = &growth.regressions;
    if grown.is_empty() {
        put_line(&mut out, format_args!("{}", style.bold(describe_no_growth(growth))));
    } else {
        put_line(&mut out, format_args!("{}", style.bold("Growth at the peak between versions")));
        for regression in grown.iter().take(shown) {
            put_line(&mut out, format_args!("{}", describe_regression(regression, runs)));
        }
        put_more(&mut out, (grown.len(), shown), "function", "--top shows them");
    }
    put_gaps(&mut out, &describe_growth_gaps(growth, archive), style);
    layout::finish_text(&out, style)
}

fn put_gaps(out: &mut String, gaps: &[String], style: Style) {
    for gap in gaps {
        put_line(out, format_args!("  {HANG}{}", style.warn(&format!("! {gap}"))));
    }
}

fn describe_run(run: &ArchivedRun, width: usize) -> String {
    let job = JobReport::of(&run.summary);
    let started = run.started_unix_ns().map_or_else(|| "unknown".to_owned(), format_utc);
    let commit = run.git_commit().map_or_else(|| "unknown".to_owned(), short_commit);
    let ranks = format_number(job.traces.len() as u64);
    let peaks = job.peak_live.as_ref().map(|peak| (peak.median_bytes, peak.most_bytes));
    let peak = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size_column);
    let (median, most) = (peak(peaks.map(|(median, _)| median)), peak(peaks.map(|(_, most)| most)));
    let finding = worst_finding(&job);
    let finding = finding.map_or_else(String::new, |one| format!(", {}: {}", one.severity, one.summary));
    let name = escape_text(&run.name);
    format!(
        "{started:<22}{commit:<10}{ranks:>7}  {median:>width$}  {most:>width$}  {HANG}{name}{}",
        escape_text(&finding)
    )
}

fn describe_regression(regression: &Regression, runs: &[ArchivedRun]) -> String {
    let at = |is_bound: bool, word: &str, bytes: u64, run: usize| {
        let bound = if is_bound { format!("{word} ") } else { String::new() };
        format!("{bound}{} in {}", format_bytes(bytes), name_version(&runs[run]))
    };
    let Regression { before, after, .. } = *regression;
    let gpu = if regression.chosen == GpuChoice::Most { " on the GPU with the most" } else { "" };
    let partly = if regression.after_is_whole { "" } else { " (incomplete, or did not end normally)" };
    format!(
        "  {}  {HANG}{}{gpu}, {} and {}{partly}: {}",
        size_column(regression.growth_bytes()),
        shorten_paths_in(&regression.line),
        at(regression.before_is_bound, "at most", regression.before_bytes, before),
        at(regression.after_is_bound, "at least", regression.after_bytes, after),
        shorten_paths_in(&regression.program)
    )
}
