//! `gpumemtrace export FORMAT`: writes traces in the formats of other tools.

pub(crate) mod folder;
mod format_command;
mod limited_output;

use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::{Analysis, report};

use self::format_command::{ChosenFormat, FileFormat};
use self::limited_output::LimitedOutput;
use super::args::force::ForceArgs;
use super::args::output_name::default_output;
use super::args::trace::{ProgressArgs, UserCodeArgs};
use crate::exit::{CliExit, UsageError};
use crate::export::{ExportJob, ExportRun, ExportWindow, WindowArgs, read_for_export};
use crate::render::PresentedReport;
use crate::terminal::output_file::{OutputPath, print_output};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::trace::find::{TRACES, find_files};
use crate::trace::many::read_each;
use crate::trace::open::TraceSource;

#[derive(clap::Args)]
#[command(after_help = "`gpumemtrace export FORMAT --help` has an example and the options of a format.")]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    format: ChosenFormat,
}

/// What every format of one file has in common.
#[derive(clap::Args)]
struct FileArgs {
    #[command(flatten)]
    inputs: ExportInputs,
    /// File to write; - for stdout [default: the trace with the suffix of the format; required for
    /// a pattern]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArgs,
}

/// What every format reads.
#[derive(clap::Args)]
pub(crate) struct ExportInputs {
    /// Traces, folders of them, and patterns such as 'traces/**/*.trace'; several are ranks of one
    /// run
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    progress: ProgressArgs,
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<CliExit> {
    match &args.format {
        ChosenFormat::File(file) => export_file(file),
        ChosenFormat::Program(program) => Err(program.exec().into()),
    }
}

fn export_file(file: &FileFormat) -> anyhow::Result<CliExit> {
    let FileFormat { row, exporter, args, user_code } = file;
    status_line::exit_cleanly_on_interrupt()?;
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(UsageError("stdout is a terminal; write to a file, or into a pipe".to_owned()).into());
    }
    let paths = find_files(&args.inputs.traces, TRACES)?;
    if paths.len() > exporter.max_runs() {
        let why = format!("{} holds one run; export each trace to a file of its own", row.name);
        return Err(UsageError(why).into());
    }
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_output(&args.inputs.traces[0], row.suffix.trim_start_matches('.'))?,
    };
    let claim = || OutputPath::claim(&path, row.name, args.force.force);
    let target = if to_stdout { None } else { Some(claim()?) };
    let (traces, unreadable) = read_traces((&args.inputs, user_code), &paths, true)?;
    let mut job = make_job(&args.inputs, traces)?;
    if exporter.shows_leaks() {
        job.note_leaks_of_whole_run();
    }
    let bytes_of = |path: &PathBuf| TraceSource::find(path).map_or(0, |(file, _)| file.len_bytes());
    let input_bytes = paths.iter().map(bytes_of).sum();
    if let Some(target) = target {
        let is_stream = target.is_stream();
        let mut file = target.begin()?;
        exporter.export(&mut job, &mut LimitedOutput::new(&mut file, input_bytes))?;
        let written_bytes = file.finish()?;
        if !is_stream {
            print_output(&path, written_bytes)?;
        }
    } else {
        let mut out = BufWriter::new(std::io::stdout().lock());
        exporter.export(&mut job, &mut LimitedOutput::new(&mut out, input_bytes))?;
        out.flush()?;
    }
    Ok(finish_job(&job, unreadable))
}

/// Prints the notes of an export, and says whether its traces are complete.
pub(crate) fn finish_job(job: &ExportJob, unreadable: usize) -> CliExit {
    job.resolver.save_cache();
    for note in &job.notes {
        print_message(format_args!("gpumemtrace: {note}"));
    }
    let is_complete = unreadable == 0 && job.report.traces.iter().all(|trace| trace.complete);
    if is_complete { CliExit::Done } else { CliExit::Incomplete }
}

/// A trace that was read for an export.
pub(crate) type ReadTrace = (Analysis, (TraceSource, TraceHead));

/// Reads and analyses traces, with [`read_each`].
pub(crate) fn read_traces(
    (args, user_code): (&ExportInputs, &UserCodeArgs),
    paths: &[PathBuf],
    are_all: bool,
) -> anyhow::Result<(Vec<ReadTrace>, usize)> {
    let user_code = user_code.paths()?;
    let read = |path: &PathBuf| read_for_export(path, user_code.clone(), args.progress.shows_progress());
    Ok(read_each(paths, are_all, read)?)
}

/// The job of traces: their joint report, and the window in each.
pub(crate) fn make_job(args: &ExportInputs, traces: Vec<ReadTrace>) -> anyhow::Result<ExportJob> {
    let (analyses, files): (Vec<_>, Vec<_>) = traces.into_iter().unzip();
    let mut resolver = Resolver::for_user();
    let report = PresentedReport::new(report(&analyses, &[]), &analyses, NameScope::ALL, &mut resolver);
    let mut runs = Vec::new();
    for (mut analysis, file) in analyses.into_iter().zip(files) {
        let history = analysis.take_history().unwrap_or_default();
        let window = ExportWindow::new(&args.window, &history, (&report, runs.len()))?;
        runs.push(ExportRun::new(file, (analysis, history), window));
    }
    Ok(ExportJob { runs, report, resolver, notes: Vec::new() })
}
