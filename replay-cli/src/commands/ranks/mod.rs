//! `gpumemtrace ranks`: what the traces of many ranks say together.

pub(crate) mod read;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use gpumemtrace_multirun::{ArchiveGrowth, ArchivedRun, JobReport, RunArchive, Summary};

use super::args::display::DisplayArgs;
use super::args::fail_on::FailOnArgs;
use super::args::force::ForceArgs;
use super::args::jobs::JobsArgs;
use super::args::trace::TraceArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError};
use crate::page::make_runs_page;
use crate::render::text::render_job;
use crate::render::{OutputChoice, RenderContext, print_document};
use crate::terminal::escape::escape_text;
use crate::terminal::format::format_count;
use crate::terminal::output_file::OutputPath;
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;
use crate::trace::find::{TRACES, TRACES_AND_SUMMARIES, find_files};
use crate::trace::many::name_left_out;

#[derive(clap::Args)]
pub(crate) struct RanksArgs {
    /// Traces, snapshots of PyTorch, summaries, folders of them, and patterns such as
    /// 'traces/**/*.trace'
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the summary to FILE: about a kilobyte for each trace, to be merged with others
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
    /// Write a page with a map of the ranks to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    fail_on: FailOnArgs,
    #[command(flatten)]
    jobs: JobsArgs,
    #[command(flatten)]
    reading: TraceArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    output_choice: OutputChoice<JobReport>,
}

pub(crate) fn run(args: &RanksArgs) -> anyhow::Result<CliExit> {
    let style = args.display.style();
    status_line::exit_cleanly_on_interrupt()?;
    if args.html.is_some() && args.html == args.output {
        return Err(UsageError("--html and --output name the same file".to_owned()).into());
    }
    // A summary does not have what --fail-on judges.
    let extensions = if args.fail_on.is_given() { TRACES } else { TRACES_AND_SUMMARIES };
    let files = find_files(&args.paths, extensions)?;
    if let Some(path) = files.iter().find(|path| args.fail_on.is_given() && read::is_summary(path)) {
        let why = format!("{} is a summary, and --fail-on needs the traces", path.display());
        return Err(UsageError(why).into());
    }
    let (files, replaced) = without_output(files, args.output.as_deref())?;
    // A summary among the inputs has a rule of its own, see `check_replaced`.
    let replaces = args.force.force || replaced.is_some();
    let target = args.output.as_ref().map(|path| OutputPath::claim(path, "summary", replaces)).transpose()?;
    let page =
        args.html.as_ref().map(|path| OutputPath::claim_named(path, "html", args.force.force)).transpose()?;
    let fails = AtomicBool::new(false);
    let summary = read::summarize_files(&files, &args.reading, args.jobs, &|report, analyses| {
        fails.fetch_or(args.fail_on.has_finding(report, Some(analyses)), Ordering::Relaxed);
    })?;
    name_unreadable(&summary)?;
    if let Some(replaced) = replaced.filter(|replaced| args.paths.contains(replaced)) {
        check_replaced(&replaced, &summary, args)?;
    }
    if let Some(target) = target {
        let mut file = target.begin()?;
        serde_json::to_writer(&mut file, &summary)?;
        writeln!(file)?;
        file.finish()?;
    }
    let job = JobReport::of(&summary);
    if let Some((path, page)) = args.html.as_ref().zip(page) {
        let name = args.paths[0].display().to_string();
        write_page(path, page, &page_of_ranks(&name, summary, &job)?)?;
    }
    print_document(args.output_choice.renderer, &job, &RenderContext::new(style))?;
    // A summary that is written is one part of a job: other hosts have its other ranks.
    let is_whole = job.is_complete() || (args.output.is_some() && job.lacks_only_ranks());
    Ok(match (fails.into_inner(), is_whole) {
        (true, _) => CliExit::Findings,
        (false, false) => CliExit::Incomplete,
        (false, true) => CliExit::Done,
    })
}

/// Writes a page beside the report, and names it on stderr: stdout has the report.
pub(in crate::commands) fn write_page(path: &Path, page: OutputPath, html: &str) -> anyhow::Result<()> {
    let is_stream = page.is_stream();
    let written_bytes = page.fill(html.as_bytes())?;
    if !is_stream {
        let (path, size) = (escape_text(&path.display().to_string()), format_bytes(written_bytes));
        print_message(format_args!("gpumemtrace: wrote {path} ({size})"));
    }
    Ok(())
}

/// The page of many ranks.
pub(crate) fn page_of_ranks(name: &str, summary: Summary, job: &JobReport) -> anyhow::Result<String> {
    let text = render_job(job, Style::for_files());
    let run = ArchivedRun { name: name.to_owned(), summary, ranks_without_summary: Vec::new() };
    let archive = RunArchive { runs: vec![run], ..RunArchive::default() };
    make_runs_page(name, &archive, &ArchiveGrowth::default(), &text)
}

/// The files without the one that is written, and that one. It has what an earlier run of this
/// command could and could not read, which is stale.
fn without_output(
    mut files: Vec<PathBuf>,
    output: Option<&Path>,
) -> anyhow::Result<(Vec<PathBuf>, Option<PathBuf>)> {
    let Some(output) = output.and_then(|path| path.canonicalize().ok()) else { return Ok((files, None)) };
    let is_output = |file: &PathBuf| file.canonicalize().is_ok_and(|file| file == output);
    let Some(replaced) = files.iter().find(|file| is_output(file)).cloned() else { return Ok((files, None)) };
    let name = replaced.display();
    if !read::is_summary(&replaced) {
        let why = format!("{name} is an input, and no summary; choose another file with --output");
        return Err(UsageError(why).into());
    }
    files.retain(|file| !is_output(file));
    if files.is_empty() {
        return Err(UsageError(format!("{name} is the only input, and the output")).into());
    }
    print_message(format_args!("gpumemtrace: {name} is the output, so it is not read"));
    Ok((files, Some(replaced)))
}

/// Refuses to replace a summary that was named as an input, and has traces that the new one lacks.
fn check_replaced(replaced: &Path, summary: &Summary, args: &RanksArgs) -> anyhow::Result<()> {
    let before = read::summarize_files(&[replaced.to_owned()], &args.reading, args.jobs, &|_, _| ())?;
    let absent = summary.count_absent(&before);
    if absent == 0 {
        return Ok(());
    }
    Err(UsageError(format!(
        "{} has {} that no other input has; choose another file with --output",
        replaced.display(),
        format_count(absent as u64, "trace")
    ))
    .into())
}

/// Names the traces that cannot be read on stderr. Fails if none can.
pub(crate) fn name_unreadable(summary: &Summary) -> Result<(), UnreadableInput> {
    name_left_out(summary.unreadable().iter().map(|trace| &*trace.why));
    if summary.traces().is_empty() { Err(UnreadableInput::of_all()) } else { Ok(()) }
}
