//! Exports to the formats of other tools: one file or folder for each, and a row in [`EXPORTERS`].
//!
//! An [`Exporter`] gets the analysed runs. It takes bounded values from the report and the history,
//! and walks the events for everything else, so memory does not grow with the events. Equal traces
//! give equal bytes: an export holds no clock time and no order of a hash map.

mod run;
mod window;

use std::io::Write;

use gpumemtrace_cli::symbolize::Resolver;
use gpumemtrace_replay::Report;

use crate::render::OutputFormat;
pub(crate) use run::{ExportRun, read_for_export};
pub(crate) use window::{ExportWindow, WindowArgs};

/// The formats of `export`, in the order of its help.
pub(crate) static EXPORTERS: &[&dyn Exporter] = &[];

/// Writes runs in the format of another tool.
pub(crate) trait Exporter: OutputFormat {
    /// What the default name of the output adds to that of the trace, such as `.folded`.
    fn suffix(&self) -> &'static str;

    /// Number of runs that a file can hold; more are refused.
    fn max_runs(&self) -> usize {
        usize::MAX
    }

    /// Writes the runs. Returns errors of `out` and of reading the traces.
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()>;
}

/// The runs to export.
pub(crate) struct ExportJob {
    /// At least one.
    pub(crate) runs: Vec<ExportRun>,
    /// The report of all runs, with names of native functions. Its `traces` are in the order of
    /// `runs`.
    pub(crate) report: Report,
    /// Finds the names of native functions.
    pub(crate) resolver: Resolver,
    /// What the export leaves out or sums up, one sentence each. Printed after the export.
    pub(crate) notes: Vec<String>,
}
