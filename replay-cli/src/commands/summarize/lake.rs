//! `gpumemtrace fleet`: the runs of a folder that `gpumemtrace export parquet` wrote.
//!
//! Each export leaves a summary of each rank in the folder, so no Parquet file is read here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpumemtrace_fleet::{LakeRun, regressions, sort_runs};

use super::read::summarize_files;
use crate::commands::args::display::DisplayArgs;
use crate::commands::args::jobs::JobsArgs;
use crate::commands::args::output_name::default_output;
use crate::commands::args::trace::TraceArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::page::make_fleet_page;
use crate::render::text::render_lake;
use crate::terminal::output_file::{fill_file, print_output};
use crate::terminal::status_line;
use crate::terminal::stdout::print_text;
use crate::terminal::style::Style;
use crate::trace::find::find_files;
use crate::trace::many::name_left_out;

/// The folder of summaries in a lake, as the export names it.
const SUMMARIES: &str = "_summaries";

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
    #[command(flatten)]
    display: DisplayArgs,
}

pub(crate) fn run(args: &FleetArgs) -> anyhow::Result<CliExit> {
    let style = args.display.style();
    status_line::exit_cleanly_on_interrupt()?;
    let (mut runs, is_whole) = read_lake(&args.lake, &args.run)?;
    sort_runs(&mut runs);
    let grown = regressions(&runs);
    if args.html {
        let text = render_lake(&runs, &grown, Style::for_files());
        let page = make_fleet_page(&args.lake.display().to_string(), &runs, &grown, &text)?;
        let output = match &args.output {
            Some(output) => output.clone(),
            None => default_output(&args.lake, "html")?,
        };
        print_output(&output, fill_file(&output, &page)?)?;
    } else {
        print_text(&render_lake(&runs, &grown, style))?;
    }
    Ok(if is_whole { CliExit::Done } else { CliExit::Incomplete })
}

/// The runs of a lake, and whether all summaries could be read.
fn read_lake(lake: &Path, wanted: &[String]) -> anyhow::Result<(Vec<LakeRun>, bool)> {
    let folder = lake.join(SUMMARIES);
    if !folder.is_dir() {
        let why = format!(
            "{} has no folder {SUMMARIES}; add a run with gpumemtrace export parquet TRACE -o {}",
            lake.display(),
            lake.display()
        );
        return Err(UnreadableInput(why).into());
    }
    let mut files: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in find_files(&[folder], &["summary"])? {
        let name = file.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        if let Some(name) = name.and_then(|name| name.strip_prefix("run=").map(str::to_owned)) {
            files.entry(name).or_default().push(file);
        }
    }
    if let Some(name) = wanted.iter().find(|name| !files.contains_key(*name)) {
        return Err(UsageError(format!("{} has no run named {name}", lake.display())).into());
    }
    if !wanted.is_empty() {
        files.retain(|name, _| wanted.contains(name));
    }
    let reading = TraceArgs::default();
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    for (name, files) in files {
        let summary = summarize_files(&files, &reading, JobsArgs::default(), &|_, _| ())?;
        unreadable.extend_from_slice(summary.unreadable());
        if !summary.traces().is_empty() {
            runs.push(LakeRun { name, summary });
        }
    }
    name_left_out(unreadable.iter().map(|file| &*file.why));
    if runs.is_empty() {
        return Err(UnreadableInput::of_all().into());
    }
    Ok((runs, unreadable.is_empty()))
}
