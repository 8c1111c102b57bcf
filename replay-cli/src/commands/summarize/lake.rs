//! `gpumemtrace fleet`: the runs of a folder that `gpumemtrace export parquet` wrote.
//!
//! Each export leaves a summary of each rank in the folder, so no Parquet file is read here. Runs
//! that only the tables have are named: they are of a version that wrote no summaries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gpumemtrace_fleet::{Lake, LakeRun, regressions};

use super::read::summarize_files;
use crate::commands::args::display::DisplayArgs;
use crate::commands::args::jobs::JobsArgs;
use crate::commands::args::output_name::default_output;
use crate::commands::args::trace::TraceArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::page::make_fleet_page;
use crate::render::text::render_lake;
use crate::terminal::escape::escape_text;
use crate::terminal::format::format_count;
use crate::terminal::output_file::{OutputPath, print_output};
use crate::terminal::status_line;
use crate::terminal::stdout::print_text;
use crate::terminal::style::Style;
use crate::trace::many::name_left_out;

/// The folders of summaries and of the table of runs in a lake, as the export names them.
const SUMMARIES: &str = "_summaries";
const TABLE_OF_RUNS: &str = "runs";

#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    /// Folder that `gpumemtrace export parquet` wrote runs to
    #[arg(value_name = "FOLDER")]
    lake: PathBuf,
    /// Only this run (repeatable)
    #[arg(long, value_name = "NAME")]
    run: Vec<String>,
    /// Write a page with the runs over time, a map of ranks, and what grew between versions
    #[arg(long)]
    html: bool,
    /// With --html, the page to write [default: the folder with .html]
    #[arg(short, long, value_name = "FILE", requires = "html")]
    output: Option<PathBuf>,
    /// With --html, replace an existing file that gpumemtrace did not write
    #[arg(long, requires = "html")]
    force: bool,
    #[command(flatten)]
    display: DisplayArgs,
}

pub(crate) fn run(args: &FleetArgs) -> anyhow::Result<CliExit> {
    let style = args.display.style();
    status_line::exit_cleanly_on_interrupt()?;
    let output = match &args.output {
        Some(output) => Some(output.clone()),
        None => args.html.then(|| default_output(&args.lake, "html")).transpose()?,
    };
    let target = output.as_ref().map(|path| OutputPath::claim(path, "html", args.force)).transpose()?;
    let lake = read_lake(&args.lake, &args.run)?;
    let growth = regressions(&lake.runs);
    if let Some((output, target)) = output.zip(target) {
        let text = render_lake(&lake, &growth, Style::for_files());
        let page = make_fleet_page(&args.lake.display().to_string(), &lake, &growth, &text)?;
        print_output(&output, target.fill(page.as_bytes())?)?;
    } else {
        print_text(&render_lake(&lake, &growth, style))?;
    }
    Ok(if lake.is_complete() { CliExit::Done } else { CliExit::Incomplete })
}

/// The names of what each run has in a folder of the lake, such as `rank=3` or `rank=3.summary`.
type Partitions = BTreeMap<String, Vec<String>>;

/// The wanted runs of a lake, or all. Those that only the tables have are named.
fn read_lake(folder: &Path, wanted: &[String]) -> anyhow::Result<Lake> {
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
        let of_run = folder.join(SUMMARIES).join(format!("run={name}"));
        let found = found.iter().filter(|file| file.ends_with(".summary"));
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
            runs.push(LakeRun { name, summary, ranks_without_summary });
        }
    }
    name_left_out(reasons.iter().map(String::as_str));
    let without_summary: Vec<String> = tables.into_keys().filter(is_wanted).collect();
    if runs.is_empty() {
        return Err(explain_empty(folder, &without_summary, !unreadable.is_empty()).into());
    }
    Ok(Lake::new(runs, without_summary, unreadable))
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
        if let Some(name) = run.strip_prefix("run=") {
            found.insert(name.to_owned(), list_names(&folder.join(&run))?);
        }
    }
    Ok(found)
}

fn ranks_of<'a>(names: impl IntoIterator<Item = &'a String>) -> BTreeSet<u64> {
    let rank_of = |name: &'a String| {
        let rank = name.strip_prefix("rank=")?;
        rank.strip_suffix(".summary").unwrap_or(rank).parse().ok()
    };
    names.into_iter().filter_map(rank_of).collect()
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
