//! The command of a program that writes one export format (`crate::export::program`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::export::{ExportInputs, finish_job, print_output, read_job};
use crate::exit::{CliExit, UsageError, report_error};
use crate::export::FolderExporter;
use crate::terminal::status_line;
use crate::terminal::stderr::print_usage_error;

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
    let mut job = read_job(&args.inputs)?;
    let default = || args.inputs.traces[0].with_extension(exporter.name());
    let folder = args.output.clone().unwrap_or_else(default);
    let written_bytes = exporter.export(&mut job, &folder)?;
    print_output(&folder, written_bytes)?;
    Ok(finish_job(&job))
}
