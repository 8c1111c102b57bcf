//! The command of a program that writes one export format (`crate::export::program`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser};

use super::{ExportInputs, finish_job, make_job, read_traces};
use crate::commands::args::output_name::default_output;
use crate::commands::args::trace::UserCodeArgs;
use crate::exit::{CliExit, UnreadableInput, UsageError, report_error};
use crate::export::{ExportTarget, FolderExporter, HIVE_NULL, TraceIdentity, is_file_name_part};
use crate::terminal::format::format_count;
use crate::terminal::output_file::print_output;
use crate::terminal::status_line;
use crate::terminal::stderr::{print_message, print_usage_error};
use crate::trace::find::{TRACES, find_files};
use crate::trace::many::{MAX_TOGETHER, read_each};
use crate::trace::open::TraceSource;

/// Write traces of gpumemtrace in one format
///
/// `gpumemtrace export` runs this program with the same arguments.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct FolderProgramArgs {
    /// Format to write: the only one of this program
    #[arg(value_name = "FORMAT")]
    format: String,
    #[command(flatten)]
    args: FolderArgs,
}

/// The options of a format of several files.
#[derive(clap::Args)]
pub(super) struct FolderArgs {
    #[command(flatten)]
    inputs: ExportInputs,
    #[command(flatten)]
    user_code: UserCodeArgs,
    /// Name of the run in the folder, the same for all its ranks [default: start, host and process]
    #[arg(long, value_name = "NAME", value_parser = parse_run_name)]
    run_name: Option<String>,
    /// Folder to write to [default: the trace with the format as extension; required for a pattern]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Replace the tables of a more complete trace of the same process, too
    #[arg(long)]
    force: bool,
}

fn parse_run_name(name: &str) -> Result<String, String> {
    if name == HIVE_NULL {
        return Err("engines read this name as NULL".to_owned());
    }
    is_file_name_part(name).then(|| name.to_owned()).ok_or_else(|| {
        "a name has 1 to 100 ASCII letters, digits, '.', '-' and '_', and does not begin with '.'".to_owned()
    })
}

/// Runs a program with the arguments of `gpumemtrace export`, from FORMAT on. Returns the exit
/// codes of `gpumemtrace`.
pub fn run_folder_exporter(exporter: &dyn FolderExporter) -> ExitCode {
    match FolderProgramArgs::try_parse() {
        Ok(program) => export(exporter, &program.format, &program.args)
            .unwrap_or_else(|error| report_error(&error))
            .into(),
        Err(error) => {
            print_usage_error(FolderProgramArgs::command(), &error);
            if error.use_stderr() { CliExit::Usage } else { CliExit::Done }.into()
        }
    }
}

fn export(exporter: &dyn FolderExporter, format: &str, args: &FolderArgs) -> anyhow::Result<CliExit> {
    if format != exporter.name() {
        let why = format!("this program writes {}; use gpumemtrace export {format}", exporter.name());
        return Err(UsageError(why).into());
    }
    status_line::exit_cleanly_on_interrupt()?;
    let paths = find_files(&args.inputs.traces, TRACES)?;
    let folder = match &args.output {
        Some(folder) => folder.clone(),
        None => default_output(&args.inputs.traces[0], exporter.name())?,
    };
    let mut notes = Vec::new();
    let (written_bytes, exit) = if paths.len() <= MAX_TOGETHER {
        export_together(exporter, args, folder.clone(), &paths, &mut notes)?
    } else {
        export_each(exporter, args, folder.clone(), &paths, &mut notes)?
    };
    for note in &notes {
        print_message(format_args!("gpumemtrace: {note}"));
    }
    print_output(&folder, written_bytes)?;
    Ok(exit)
}

/// Exports traces whose analyses are in memory together. Returns the bytes written.
fn export_together(
    exporter: &dyn FolderExporter,
    args: &FolderArgs,
    folder: PathBuf,
    paths: &[PathBuf],
    notes: &mut Vec<String>,
) -> anyhow::Result<(u64, CliExit)> {
    let (traces, unreadable) = read_traces((&args.inputs, &args.user_code), paths, true)?;
    let mut job = make_job(&args.inputs, traces)?;
    let analyses = job.runs.iter().map(|run| &run.analysis);
    let traces = analyses.map(|analysis| TraceIdentity::new(&analysis.path, &analysis.meta)).collect();
    let target = ExportTarget::new(folder, args.run_name.clone(), traces, args.force);
    let written_bytes = exporter.begin(target, notes)?.export(&mut job, 0)?;
    Ok((written_bytes, finish_job(&job, unreadable)))
}

/// Exports traces one by one, without the findings that compare them. The metadata of all is read
/// before. Returns the bytes written.
fn export_each(
    exporter: &dyn FolderExporter,
    args: &FolderArgs,
    folder: PathBuf,
    paths: &[PathBuf],
    notes: &mut Vec<String>,
) -> anyhow::Result<(u64, CliExit)> {
    if args.run_name.is_none() {
        let traces = format_count(paths.len() as u64, "trace");
        return Err(UsageError(format!("name the run of the {traces} with --run-name NAME")).into());
    }
    let (known, unreadable) = read_each(paths, true, |path| {
        let meta = TraceSource::find(path)?.0.read_first_meta()?;
        Ok((path.clone(), TraceIdentity::new(&path.display().to_string(), &meta)))
    })?;
    let (paths, traces): (Vec<PathBuf>, Vec<TraceIdentity>) = known.into_iter().unzip();
    let target = ExportTarget::new(folder, args.run_name.clone(), traces, args.force);
    let mut export = exporter.begin(target, notes)?;
    let (mut written_bytes, mut exit, mut has_read_one) = (0, CliExit::Done, false);
    if unreadable > 0 {
        exit = CliExit::Incomplete;
    }
    for (index, path) in paths.iter().enumerate() {
        let (traces, unreadable) =
            read_traces((&args.inputs, &args.user_code), std::slice::from_ref(path), false)?;
        if traces.is_empty() {
            exit = CliExit::Incomplete;
            continue;
        }
        has_read_one = true;
        let mut job = make_job(&args.inputs, traces)?;
        written_bytes += export.export(&mut job, index)?;
        if matches!(finish_job(&job, unreadable), CliExit::Incomplete) {
            exit = CliExit::Incomplete;
        }
    }
    if has_read_one { Ok((written_bytes, exit)) } else { Err(UnreadableInput::of_all().into()) }
}
