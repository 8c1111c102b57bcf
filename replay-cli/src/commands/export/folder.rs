//! The command of a program that writes one export format (`crate::export::program`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::{ExportInputs, finish_job, make_job, read_traces};
use crate::exit::{CliExit, UnreadableInput, UsageError, report_error};
use crate::export::{ExportTarget, FolderExporter};
use crate::terminal::format::format_count;
use crate::terminal::output_file::print_output;
use crate::terminal::status_line;
use crate::terminal::stderr::print_usage_error;
use crate::trace::find::{TRACES, find_files};
use crate::trace::many::MAX_TOGETHER;

/// Write traces of gpumemtrace in one format
///
/// `gpumemtrace export` runs this program with the same arguments.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct FolderExportArgs {
    /// Format to write: the only one of this program
    #[arg(value_name = "FORMAT")]
    format: String,
    #[command(flatten)]
    inputs: ExportInputs,
    /// Folder to write to [default: the trace with the format as extension]
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Runs a program with the arguments of `gpumemtrace export`, from FORMAT on. Returns the exit
/// codes of `gpumemtrace`.
pub fn run_folder_exporter(exporter: &dyn FolderExporter) -> ExitCode {
    match FolderExportArgs::try_parse() {
        Ok(args) => export(exporter, &args).unwrap_or_else(|error| report_error(&error)).into(),
        Err(error) => {
            print_usage_error::<FolderExportArgs>(&error);
            if error.use_stderr() { CliExit::Usage } else { CliExit::Done }.into()
        }
    }
}

fn export(exporter: &dyn FolderExporter, args: &FolderExportArgs) -> anyhow::Result<CliExit> {
    if args.format != exporter.name() {
        let why = format!("this program writes {}; use gpumemtrace export {}", exporter.name(), args.format);
        return Err(UsageError(why).into());
    }
    status_line::exit_cleanly_on_interrupt()?;
    let paths = find_files(&args.inputs.traces, TRACES)?;
    let default = || args.inputs.traces[0].with_extension(exporter.name());
    let folder = args.output.clone().unwrap_or_else(default);
    let mut target = ExportTarget::new(folder, args.inputs.run.clone());
    if paths.len() > MAX_TOGETHER && args.inputs.run.is_none() {
        let traces = format_count(paths.len() as u64, "trace");
        return Err(UsageError(format!("name the run of the {traces} with --run NAME")).into());
    }
    // More are read one by one, without the findings that compare them.
    let together = if paths.len() > MAX_TOGETHER { 1 } else { paths.len() };
    let (mut written_bytes, mut exit, mut read) = (0, CliExit::Done, 0);
    for part in paths.chunks(together) {
        let (traces, unreadable) = read_traces(&args.inputs, part, together == paths.len())?;
        read += traces.len();
        if traces.is_empty() {
            exit = CliExit::Incomplete;
            continue;
        }
        let mut job = make_job(&args.inputs, traces)?;
        written_bytes += exporter.export(&mut job, &mut target)?;
        if matches!(finish_job(&job, unreadable), CliExit::Incomplete) {
            exit = CliExit::Incomplete;
        }
    }
    if read == 0 {
        return Err(UnreadableInput::of_all().into());
    }
    print_output(&target.folder, written_bytes)?;
    Ok(exit)
}
