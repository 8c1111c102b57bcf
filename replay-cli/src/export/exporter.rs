//! What a format implements, and what it gets.

use std::io::Write;

use crate::render::PresentedReport;

use super::ExportRun;
use super::target::ExportTarget;
use crate::symbolize::Resolver;

/// Writes runs in the format of another tool, with the options of its command.
pub(crate) trait Exporter {
    /// Number of runs that a file can hold; more are refused.
    fn max_runs(&self) -> usize {
        usize::MAX
    }

    /// True if the file names leaks. They are those of the whole run, because only it shows what
    /// survives, so a note says so where the file has only a part.
    fn shows_leaks(&self) -> bool {
        false
    }

    /// Writes the runs. Returns errors of `out` and of reading the traces.
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()>;
}

/// A format as a command `export NAME`. The fields of the type are the options that only this
/// command has.
pub(crate) trait ExportFormat: Exporter + clap::Args {
    /// The name of the command.
    const NAME: &'static str;
    /// One line of help.
    const HELP: &'static str;
    /// A command line that the help shows, without `gpumemtrace export`.
    const EXAMPLE: &'static str;
    /// What the default name of the output adds to that of the trace, such as `.folded`.
    const SUFFIX: &'static str;
    /// False for files without call sites and stacks, which `--user-code` cannot change.
    const SHOWS_CODE: bool = true;
}

/// Writes runs as files in a folder, in a program of its own.
pub trait FolderExporter {
    /// The name of the format, such as `parquet`.
    fn name(&self) -> &'static str;

    /// Begins an export to a folder, which may not exist. Fails with [`UsageError`] if the folder
    /// has files of another process in the place of these traces. Notes say what a user may not
    /// expect.
    ///
    /// [`UsageError`]: crate::exit::UsageError
    fn begin(&self, target: ExportTarget, notes: &mut Vec<String>) -> anyhow::Result<Box<dyn FolderExport>>;
}

/// An export to a folder that has begun.
pub trait FolderExport {
    /// Writes runs. `first` is the index of the first of them in the traces of the target; the
    /// others follow it. Returns the bytes written. Files of other runs in the folder stay. On
    /// error, no partial file is left.
    fn export(&mut self, job: &mut ExportJob, first: usize) -> anyhow::Result<u64>;
}

/// The runs to export.
pub struct ExportJob {
    /// The runs in the order of the command line; at least one.
    pub runs: Vec<ExportRun>,
    /// The report of all runs, with names of native functions. Its `traces` are in the order of
    /// `runs`.
    pub report: PresentedReport,
    /// Finds the names of native functions.
    pub resolver: Resolver,
    /// What the export leaves out or sums up, one sentence each. Printed after the export.
    pub notes: Vec<String>,
}

impl ExportJob {
    /// Notes that the leaks in a file are of the whole runs, if the file has only a part of them.
    pub(crate) fn note_leaks_of_whole_run(&mut self) {
        let has_leaks = self.report.leaks.iter().any(|leaks| !leaks.is_empty());
        if has_leaks && self.runs.iter().any(|run| !run.window.is_whole()) {
            self.notes.push("leaks are those of the whole run, not only of the exported part".to_owned());
        }
    }
}
