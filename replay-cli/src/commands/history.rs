//! `gpumemtrace history`: the runs of a folder that `gpumemtrace export parquet` wrote.
//!
//! Each export leaves a summary of each rank in the folder, so no Parquet file is read here. Runs
//! that only the tables have are named: they are of a version that wrote no summaries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::ValueEnum;
use gpumemtrace_format::labels::{Label, parse_label};
use gpumemtrace_multirun::archive_layout::{
    SUMMARIES, TABLE_OF_RUNS, is_summary_name, rank_of_name, run_folder, run_of_folder,
};
use gpumemtrace_multirun::{ArchivedRun, HistoryReport, Outcome, RunArchive, growth_between_versions};

use super::ranks::read::summarize_files;
use super::ranks::write_page;
use crate::commands::args::display::DisplayArgs;
use crate::commands::args::force::ForceArgs;
use crate::commands::args::jobs::JobsArgs;
use crate::commands::args::trace::TraceArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::page::make_runs_page;
use crate::render::json::write_json;
use crate::render::text::render_archive;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_utc};
use crate::terminal::output_file::OutputPath;
use crate::terminal::status_line;
use crate::terminal::stdout::{print_text, stdout};
use crate::terminal::style::Style;
use crate::trace::many::name_left_out;

#[derive(clap::Args)]
pub(crate) struct HistoryArgs {
    /// Folder that `gpumemtrace export parquet` wrote runs to
    #[arg(value_name = "FOLDER")]
    archive: PathBuf,
    /// Only this run (repeatable)
    #[arg(long, value_name = "NAME")]
    run: Vec<String>,
    /// Only runs with TEXT in their command line
    #[arg(long, value_name = "TEXT")]
    program: Option<String>,
    /// Only runs with this label (repeatable: all of them)
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_label)]
    label: Vec<Label>,
    /// Only runs that started on or after DATE, such as 2026-11-28 (UTC)
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    since: Option<String>,
    /// Exit with code 3 if the newest version of a program is like this (repeatable, or
    /// comma-separated)
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    fail_on: Vec<HistoryFinding>,
    /// Print JSON (its schema: `gpumemtrace schema history`)
    #[arg(long)]
    json: bool,
    /// Write a page with the runs over time, a map of ranks, and what grew, to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
    #[command(flatten)]
    display: DisplayArgs,
}

pub(crate) fn run(args: &HistoryArgs) -> anyhow::Result<CliExit> {
    let style = args.display.style();
    status_line::exit_cleanly_on_interrupt()?;
    let page =
        args.html.as_ref().map(|path| OutputPath::claim_named(path, "html", args.force.force)).transpose()?;
    let archive = read_archive(args)?;
    let growth = growth_between_versions(&archive);
    let report = HistoryReport::new(&archive, &growth);
    if let Some((path, page)) = args.html.as_ref().zip(page) {
        let text = render_archive(&archive, &growth, Style::for_files());
        let html = make_runs_page(&args.archive.display().to_string(), &archive, &growth, &text)?;
        write_page(path, page, &html)?;
    }
    if args.json {
        write_json(&report, &mut stdout())?;
    } else {
        print_text(&render_archive(&archive, &growth, style))?;
    }
    Ok(match (args.fail_on.iter().any(|kind| kind.is_in(&report)), report.complete) {
        (true, _) => CliExit::Findings,
        (false, false) => CliExit::Incomplete,
        (false, true) => CliExit::Done,
    })
}

/// A finding about the newest version of a program.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HistoryFinding {
    /// A function has more memory than in the version before, or that is unknown
    Growth,
    /// Its newest run failed, or how it ended is unknown
    Failed,
}

impl HistoryFinding {
    fn is_in(self, report: &HistoryReport) -> bool {
        let programs: BTreeSet<&str> = report.runs.iter().filter_map(|run| run.program.as_deref()).collect();
        programs.into_iter().any(|program| match self {
            Self::Growth => {
                let newest =
                    report.versions.iter().find(|pair| pair.between.program.as_deref() == Some(program));
                // What could not be compared may have grown.
                newest.is_some_and(|pair| {
                    !pair.compared.is_compared()
                        || report.growth.iter().any(|one| one.between == pair.between)
                })
            }
            Self::Failed => {
                let newest = report.runs.iter().find(|run| run.program.as_deref() == Some(program));
                let is_fine = |outcome: Outcome| {
                    matches!(outcome, Outcome::Exited | Outcome::OutOfMemoryCaught | Outcome::Unfinished)
                };
                newest.is_some_and(|run| !run.outcome.is_some_and(is_fine))
            }
        })
    }
}

/// A date, or the beginning of a time in the form of reports: `2026-11-28T14:31:09Z`.
fn parse_date(text: &str) -> Result<String, String> {
    let form = "0000-00-00T00:00:00Z";
    let fits = |(given, form): (char, char)| if form == '0' { given.is_ascii_digit() } else { given == form };
    let is_date = text.len() >= 10 && text.len() <= form.len() && text.chars().zip(form.chars()).all(fits);
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    let is_day = number(5..7).is_some_and(|month| (1..=12).contains(&month))
        && number(8..10).is_some_and(|day| (1..=31).contains(&day));
    if is_date && is_day { Ok(text.to_owned()) } else { Err("write a date as 2026-11-28".to_owned()) }
}

/// The names of what each run has in a folder of the archive, such as `rank=3` or `rank=3.summary`.
type Partitions = BTreeMap<String, Vec<String>>;

/// The wanted runs of an archive, or all. Those that only the tables have are named.
fn read_archive(args: &HistoryArgs) -> anyhow::Result<RunArchive> {
    let (folder, wanted) = (&*args.archive, &*args.run);
    let summaries = list_partitions(&folder.join(SUMMARIES))?;
    let mut tables = list_partitions(&folder.join(TABLE_OF_RUNS))?;
    let is_known = |name: &String| summaries.contains_key(name) || tables.contains_key(name);
    if let Some(name) = wanted.iter().find(|name| !is_known(name)) {
        return Err(UsageError(format!("{} has no run named {name}", folder.display())).into());
    }
    let is_wanted = |name: &String| wanted.is_empty() || wanted.contains(name);
    let reading = TraceArgs::default();
    let (mut runs, mut unreadable, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for (name, found) in summaries.into_iter().filter(|(name, _)| is_wanted(name)) {
        let of_run = folder.join(SUMMARIES).join(run_folder(&name));
        let found = found.iter().filter(|file| is_summary_name(file));
        let files: Vec<PathBuf> = found.clone().map(|file| of_run.join(file)).collect();
        if files.is_empty() {
            continue;
        }
        let summary = summarize_files(&files, &reading, JobsArgs::default(), &|_, _| ())?;
        reasons.extend(summary.unreadable().iter().map(|file| file.why.clone()));
        let listed = tables.remove(&name).unwrap_or_default();
        if summary.traces().is_empty() {
            unreadable.push(name);
        } else {
            let ranks_without_summary = ranks_of(&listed).difference(&ranks_of(found)).copied().collect();
            runs.push(ArchivedRun { name, summary, ranks_without_summary });
        }
    }
    name_left_out(reasons.iter().map(String::as_str));
    let without_summary: Vec<String> = tables.into_keys().filter(is_wanted).collect();
    if runs.is_empty() {
        return Err(explain_empty(folder, &without_summary, !unreadable.is_empty()).into());
    }
    let is_chosen = |run: &ArchivedRun| {
        let has = |text: &String| run.program().is_some_and(|program| program.contains(text));
        let began = |date: &String| run.started_unix_ns().is_some_and(|start| format_utc(start) >= *date);
        let is_labelled = args.label.iter().all(|(key, value)| run.has_label(key, value));
        is_labelled && args.program.as_ref().is_none_or(has) && args.since.as_ref().is_none_or(began)
    };
    let mut archive = RunArchive::new(runs, without_summary, unreadable);
    archive.show_only(is_chosen);
    if archive.shown().next().is_none() {
        let why = format!("{} has no run that --program, --label and --since choose", folder.display());
        return Err(UsageError(why).into());
    }
    Ok(archive)
}

/// Why no run can be shown.
fn explain_empty(folder: &Path, without_summary: &[String], are_unreadable: bool) -> UnreadableInput {
    let folder = folder.display();
    match without_summary {
        [] if are_unreadable => UnreadableInput::of_all(),
        [] => UnreadableInput(format!(
            "{folder} has no run in {SUMMARIES}; add one with gpumemtrace export parquet TRACE -o {folder}"
        )),
        [name, ..] => UnreadableInput(format!(
            "{} in {folder} without a summary, such as {}; export the traces again with gpumemtrace export \
             parquet TRACE --run-name NAME -o {folder}",
            format_count(without_summary.len() as u64, "run"),
            escape_text(name)
        )),
    }
}

/// The folders `run=NAME` in a folder, and what is in each.
fn list_partitions(folder: &Path) -> anyhow::Result<Partitions> {
    let mut found = Partitions::new();
    for run in list_names(folder)? {
        if let Some(name) = run_of_folder(&run) {
            found.insert(name.to_owned(), list_names(&folder.join(&run))?);
        }
    }
    Ok(found)
}

fn ranks_of<'a>(names: impl IntoIterator<Item = &'a String>) -> BTreeSet<u64> {
    names.into_iter().filter_map(|name| rank_of_name(name)).collect()
}

/// The names in a folder; none if it does not exist, or is a file.
fn list_names(folder: &Path) -> anyhow::Result<Vec<String>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let error = || format!("{} cannot be listed", folder.display());
    let entries = std::fs::read_dir(folder).with_context(error)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.collect::<Result<_, _>>().with_context(error)
}
