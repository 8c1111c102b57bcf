//! The runs of a lake as text: one line each, and what grew between versions.

use gpumemtrace_fleet::{Fleet, LakeRun, Regression};

use super::fleet::put_more;
use crate::render::fleet_words::worst_finding;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, format_utc, put_line, size_column};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;
use crate::terminal::units::{chosen_units, format_bytes};

/// Most rows of a list without `--top`.
const MAX_ROWS: usize = 20;
/// Letters of a commit, as git shortens it.
const COMMIT_CHARS: usize = 8;

pub(crate) fn render_lake(runs: &[LakeRun], grown: &[Regression], style: Style) -> String {
    let mut out = String::new();
    put_line(&mut out, format_args!("{}", style.bold(&format_count(runs.len() as u64, "run"))));
    out.push('\n');
    let width = chosen_units().columns();
    let title =
        format!("{:<22}{:<10}{:>7}  {:>width$}  {:>width$}", "Started", "commit", "ranks", "median", "most");
    put_line(&mut out, format_args!("{}", style.bold(&format!("{title}  peak of a GPU, and worst finding"))));
    let shown = style.row_limit(MAX_ROWS);
    for run in runs.iter().rev().take(shown) {
        put_line(&mut out, format_args!("{}", describe_run(run)));
    }
    put_more(&mut out, (runs.len(), shown), "older run", "--top shows them");
    out.push('\n');
    if grown.is_empty() {
        let text = "No function grew by 5% and 1 MiB between versions.";
        put_line(&mut out, format_args!("{}", style.bold(text)));
    } else {
        put_line(&mut out, format_args!("{}", style.bold("Growth at the peak between versions")));
        for regression in grown.iter().take(shown) {
            put_line(&mut out, format_args!("{}", describe_regression(regression, runs)));
        }
        put_more(&mut out, (grown.len(), shown), "function", "--top shows them");
    }
    layout::finish_text(&out, style)
}

fn describe_run(run: &LakeRun) -> String {
    let fleet = Fleet::of(&run.summary);
    let started = run.started_unix_ns().map_or_else(|| "unknown".to_owned(), format_utc);
    let commit = run.git_commit().map_or_else(|| "unknown".to_owned(), short_commit);
    let ranks = format_number(fleet.traces.len() as u64);
    let width = chosen_units().columns();
    let unknown = || format!("{:>width$}", "unknown");
    let peaks = fleet.peak_live.as_ref().map(|peak| (peak.median_bytes, peak.most_bytes));
    let median = peaks.map_or_else(unknown, |(median, _)| size_column(median));
    let most = peaks.map_or_else(unknown, |(_, most)| size_column(most));
    let finding = worst_finding(&fleet);
    let finding = finding.map_or_else(String::new, |one| format!(", {}: {}", one.severity, one.summary));
    let name = escape_text(&run.name);
    format!("{started:<22}{commit:<10}{ranks:>7}  {median}  {most}  {HANG}{name}{}", escape_text(&finding))
}

fn describe_regression(regression: &Regression, runs: &[LakeRun]) -> String {
    let version = |index: usize| {
        let run = &runs[index];
        run.git_commit().map_or_else(|| escape_text(&run.name), short_commit)
    };
    format!(
        "  {}  {HANG}{}, {} in {} and {} in {}: {}",
        size_column(regression.growth_bytes()),
        shorten_paths_in(&regression.line),
        format_bytes(regression.before_bytes),
        version(regression.before),
        format_bytes(regression.after_bytes),
        version(regression.after),
        shorten_paths_in(&regression.program)
    )
}

fn short_commit(commit: &str) -> String {
    escape_text(&commit.chars().take(COMMIT_CHARS).collect::<String>())
}
