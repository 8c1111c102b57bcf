//! The runs of an archive as text: one line each, and what grew between versions.

use std::collections::BTreeSet;

use gpumemtrace_multirun::{
    ArchiveGrowth, ArchivedRun, GpuChoice, JobReport, Regression, RunArchive, VersionPair,
};

use super::job::put_more;
use crate::render::history_words::{
    describe_archive_gaps, describe_growth_gaps, describe_lines, describe_no_growth, name_outcome,
    name_version, short_commit,
};
use crate::render::job_words::worst_finding;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, format_utc, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// Columns of how a run ended.
const ENDED: usize = 13;
/// Most rows of a list without `--top`.
const MAX_ROWS: usize = 20;

pub(crate) fn render_archive(archive: &RunArchive, growth: &ArchiveGrowth, style: Style) -> String {
    let runs = &archive.runs;
    let mut out = String::new();
    let count = archive.shown().count();
    put_line(&mut out, format_args!("{}", style.bold(&headline(count, growth))));
    let shown = style.row_limit(MAX_ROWS);
    put_gaps(&mut out, &describe_archive_gaps(archive, shown), style);
    out.push('\n');
    let width = chosen_units().columns().max("median peak".len());
    let (started, commit, ranks, ended) = ("Started", "commit", "ranks", "ended");
    let title = format!(
        "{started:<22}{commit:<10}{ranks:>7}  {:>width$}  {:>width$}  {ended:<ENDED$}  run, and its worst finding",
        "median peak", "max peak"
    );
    put_line(&mut out, format_args!("{}", style.bold(&title)));
    for run in archive.shown().rev().take(shown) {
        put_line(&mut out, format_args!("{}", describe_run(run, width)));
    }
    put_more(&mut out, (count, shown), "older run", "--top N shows them");
    out.push('\n');
    let grown = &growth.regressions;
    if grown.is_empty() {
        put_line(&mut out, format_args!("{}", style.bold(describe_no_growth(growth))));
    } else {
        put_line(&mut out, format_args!("{}", style.bold("Growth at the peak between versions")));
        for regression in grown.iter().take(shown) {
            put_line(&mut out, format_args!("{}", describe_regression(regression, runs)));
        }
        put_more(&mut out, (grown.len(), shown), "function", "--top N shows them");
    }
    put_gaps(&mut out, &describe_growth_gaps(growth, archive), style);
    layout::finish_text(&out, style)
}

/// The number of runs, and what is new in the newest version of each program.
fn headline(runs: usize, growth: &ArchiveGrowth) -> String {
    let runs = format_count(runs as u64, "run");
    let mut programs = BTreeSet::new();
    // The latest pair of a program comes first.
    let newest = growth.pairs.iter().filter(|pair| programs.insert(pair.program.as_str()));
    let is_of = |pair: &VersionPair, one: &Regression| (one.before, one.after) == (pair.before, pair.after);
    let grown = newest.flat_map(|pair| growth.regressions.iter().filter(move |one| is_of(pair, one)));
    match grown.count() as u64 {
        0 => runs,
        grown => format!("{runs}; {} grew in the newest version", format_count(grown, "function")),
    }
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
    let ended = run.outcome().map_or("unknown", name_outcome);
    let finding = worst_finding(&job);
    let finding = finding.map_or_else(String::new, |one| format!(", {}: {}", one.severity, one.summary));
    let name = escape_text(&run.name);
    format!(
        "{started:<22}{commit:<10}{ranks:>7}  {median:>width$}  {most:>width$}  {ended:<ENDED$}  {HANG}{name}{}",
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
        shorten_paths_in(&describe_lines(regression)),
        at(regression.before_is_bound, "at most", regression.before_bytes, before),
        at(regression.after_is_bound, "at least", regression.after_bytes, after),
        shorten_paths_in(&regression.program)
    )
}
