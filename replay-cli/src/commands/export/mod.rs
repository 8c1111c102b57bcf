//! `gpumemtrace export`: writes traces in the formats of other tools.

pub(crate) mod folder;
mod limited_output;

use std::io::{BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use crate::symbolize::Resolver;
use gpumemtrace_replay::callsite::NameScope;
use gpumemtrace_replay::ingest::TraceHead;
use gpumemtrace_replay::{Analysis, report};

use self::limited_output::LimitedOutput;
use super::args::output_name::default_output;
use super::args::trace::TraceArgs;
use crate::exit::{CliExit, UsageError};
use crate::export::{
    ExportFormat, ExportJob, ExportRun, ExportWindow, FormatOptions, HIVE_NULL, WindowArgs,
    export_format_parser, is_file_name_part, read_for_export,
};
use crate::render::PresentedReport;
use crate::terminal::output_file::{OutputPath, print_output};
use crate::terminal::status_line;
use crate::terminal::stderr::print_message;
use crate::trace::find::{TRACES, find_files};
use crate::trace::many::read_each;
use crate::trace::open::TraceSource;

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    /// Format of the file to write
    #[arg(value_name = "FORMAT", value_parser = export_format_parser())]
    format: ExportFormat,
    #[command(flatten)]
    inputs: ExportInputs,
    /// File to write; - for stdout [default: the trace with the suffix of the format; required for
    /// a pattern]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace an existing file that gpumemtrace did not write
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    options: FormatOptions,
}

/// What every format reads.
#[derive(clap::Args)]
pub(crate) struct ExportInputs {
    /// Traces, folders of them, and patterns such as 'traces/**/*.trace'; several are ranks of one
    /// run
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// With parquet, name of the run in the folder, the same for all its ranks [default: start,
    /// host and process]
    #[arg(long, value_name = "NAME", value_parser = parse_run_name)]
    run: Option<String>,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

fn parse_run_name(name: &str) -> Result<String, String> {
    if name == HIVE_NULL {
        return Err("engines read this name as NULL".to_owned());
    }
    is_file_name_part(name).then(|| name.to_owned()).ok_or_else(|| {
        "a name has 1 to 100 ASCII letters, digits, '.', '-' and '_', and does not begin with '.'".to_owned()
    })
}

pub(crate) fn run(args: &ExportArgs) -> anyhow::Result<CliExit> {
    let exporter = match args.format {
        ExportFormat::Own(exporter) => exporter,
        ExportFormat::Program(program) => return Err(program.exec().into()),
    };
    if args.inputs.run.is_some() {
        let why = format!("--run names a run in a folder of several; {} has one file", exporter.name());
        return Err(UsageError(why).into());
    }
    status_line::exit_cleanly_on_interrupt()?;
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(UsageError("stdout is a terminal; write to a file, or into a pipe".to_owned()).into());
    }
    let paths = find_files(&args.inputs.traces, TRACES)?;
    if paths.len() > exporter.max_runs() {
        let why = format!("{} holds one run; export each trace to a file of its own", exporter.name());
        return Err(UsageError(why).into());
    }
    args.options.check(exporter)?;
    let path = match &args.output {
        Some(path) => path.clone(),
        None => default_output(&args.inputs.traces[0], exporter.suffix().trim_start_matches('.'))?,
    };
    let claim = || OutputPath::claim(&path, exporter.name(), args.force);
    let target = if to_stdout { None } else { Some(claim()?) };
    let (traces, unreadable) = read_traces(&args.inputs, &paths, true)?;
    let mut job = ExportJob { options: args.options.clone(), ..make_job(&args.inputs, traces)? };
    if exporter.shows_leaks(&job.options) {
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
    args: &ExportInputs,
    paths: &[PathBuf],
    are_all: bool,
) -> anyhow::Result<(Vec<ReadTrace>, usize)> {
    let user_code = args.trace.user_code()?;
    let read = |path: &PathBuf| read_for_export(path, user_code.clone(), args.trace.shows_progress());
    Ok(read_each(paths, are_all, read)?)
}

/// The job of traces: their joint report, and the window in each.
pub(crate) fn make_job(args: &ExportInputs, traces: Vec<ReadTrace>) -> anyhow::Result<ExportJob> {
    let (analyses, files): (Vec<_>, Vec<_>) = traces.into_iter().unzip();
    let mut resolver = Resolver::new(args.trace.uses_symbol_cache());
    let report = PresentedReport::new(report(&analyses, &[]), &analyses, NameScope::ALL, &mut resolver);
    let mut runs = Vec::new();
    for (mut analysis, file) in analyses.into_iter().zip(files) {
        let history = analysis.take_history().unwrap_or_default();
        let window = ExportWindow::new(&args.window, &history, (&report, runs.len()))?;
        runs.push(ExportRun::new(file, (analysis, history), window));
    }
    Ok(ExportJob { runs, report, resolver, options: FormatOptions::default(), notes: Vec::new() })
}
