//! `gpumemtrace summarize`: what the traces of many ranks say together.

mod read;

use std::io::Write as _;
use std::path::PathBuf;

use gpumemtrace_fleet::{Fleet, Summary};

use super::args::display::DisplayArgs;
use super::args::jobs::JobsArgs;
use super::args::trace::TraceArgs;
use crate::exit::{CliExit, UnreadableInput};
use crate::render::{FLEET_RENDERERS, RenderContext, Renderer, format_parser, print_document, select_format};
use crate::terminal::format::format_count;
use crate::terminal::output_file::OutputFile;
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::trace::find::{TRACES_AND_SUMMARIES, find_files};

/// Most unreadable traces that stderr names; the report has all.
const MAX_NAMED: usize = 10;

#[derive(clap::Args)]
pub(crate) struct SummarizeArgs {
    /// Traces, snapshots of PyTorch, summaries, folders of them, and patterns such as
    /// 'traces/**/*.trace'
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the summary to FILE: about a kilobyte for each trace, to be merged with others
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    display: DisplayArgs,
    /// Print JSON (schema: docs/fleet.schema.json)
    #[arg(long)]
    json: bool,
    /// Output format on stdout
    #[arg(long, value_name = "FORMAT", conflicts_with = "json", value_parser = format_parser(FLEET_RENDERERS))]
    format: Option<&'static dyn Renderer<Fleet>>,
}

pub(crate) fn run(args: &SummarizeArgs) -> anyhow::Result<CliExit> {
    let style = args.display.style();
    status_line::exit_cleanly_on_interrupt()?;
    let files = find_files(&args.paths, TRACES_AND_SUMMARIES)?;
    let summary = read::summarize_files(&files, &args.reading, args.jobs)?;
    name_unreadable(&summary);
    if summary.traces().is_empty() {
        return Err(UnreadableInput("no trace could be read".to_owned()).into());
    }
    if let Some(path) = &args.output {
        let mut file = OutputFile::create(path)?;
        serde_json::to_writer(&mut file, &summary)?;
        writeln!(file)?;
        file.finish()?;
    }
    let fleet = Fleet::of(&summary);
    let is_whole = fleet.unreadable.is_empty() && fleet.incomplete.is_empty();
    print_document(
        select_format(FLEET_RENDERERS, args.format, args.json),
        &fleet,
        &RenderContext::new(style),
    )?;
    Ok(if is_whole { CliExit::Done } else { CliExit::Incomplete })
}

fn name_unreadable(summary: &Summary) {
    for trace in summary.unreadable().iter().take(MAX_NAMED) {
        print_message(format_args!("gpumemtrace: {}; it is left out", trace.why));
    }
    if let Some(more) = summary.unreadable().len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        let more = format_count(more as u64, "more trace");
        print_message(format_args!("gpumemtrace: {more} cannot be read; they are left out"));
    }
}
