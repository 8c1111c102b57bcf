//! Exports to the formats of other tools: one file or folder for each, and a row in `EXPORTERS`.
//!
//! An `Exporter` gets the analysed runs. It takes bounded values from the report and the history,
//! and walks the events for everything else, so memory does not grow with the events. Equal traces
//! give equal bytes: an export holds no clock time and no order of a hash map.
//!
//! A format with many dependencies has a program of its own (`ExportProgram`), which implements
//! [`FolderExporter`] with what this module makes public.

mod csv;
mod distinct;
mod firefox;
mod folded;
mod options;
mod perfetto;
mod pprof;
mod program;
mod protobuf;
mod run;
mod series;
mod speedscope;
mod stacks;
mod svg;
mod target;
mod torch_snapshot;
mod window;

use std::io::Write;

use crate::symbolize::Resolver;

pub use crate::exit::UsageError;
use crate::render::{OutputFormat, PresentedReport};
pub use run::ExportRun;
pub use target::{ExportTarget, TraceIdentity};
pub(crate) use target::{HIVE_NULL, is_file_name_part};
pub use window::ExportWindow;

pub(crate) use options::FormatOptions;
pub(crate) use program::{ExportFormat, ExportProgram, export_format_parser};
pub(crate) use run::read_for_export;
pub(crate) use stacks::StackValue;
pub(crate) use window::WindowArgs;

/// The formats of `export`, in the order of its help.
pub(crate) static EXPORTERS: &[&dyn Exporter] = &[
    &torch_snapshot::TorchSnapshotExporter::Pickle,
    &torch_snapshot::TorchSnapshotExporter::Json,
    &perfetto::PerfettoExporter,
    &folded::FoldedExporter,
    &speedscope::SpeedscopeExporter,
    &pprof::PprofExporter,
    &firefox::FirefoxExporter,
    &csv::CsvSitesExporter,
    &csv::CsvTimelineExporter,
    &svg::SvgExporter,
];

/// The formats that other programs write, after those of [`EXPORTERS`].
pub(crate) static PROGRAMS: &[ExportProgram] = &[ExportProgram {
    name: "parquet",
    help: "A folder of Parquet tables, for DuckDB, pandas, Polars and Spark",
    program: "gpumemtrace-parquet",
}];

/// Writes runs in the format of another tool.
pub(crate) trait Exporter: OutputFormat {
    /// What the default name of the output adds to that of the trace, such as `.folded`.
    fn suffix(&self) -> &'static str;

    /// Number of runs that a file can hold; more are refused.
    fn max_runs(&self) -> usize {
        usize::MAX
    }

    /// True if it shows several values of each stack, or one of several.
    fn chooses_value(&self) -> bool {
        false
    }

    /// True if a file can also hold what torch.profiler wrote.
    fn takes_profiles(&self) -> bool {
        false
    }

    /// True if a file with these options names leaks. They are those of the whole run, because only
    /// it shows what survives, so a note says so where the file has only a part.
    fn shows_leaks(&self, _options: &FormatOptions) -> bool {
        false
    }

    /// Writes the runs. Returns errors of `out` and of reading the traces.
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()>;
}

/// Writes runs as files in a folder, in a program of its own.
pub trait FolderExporter {
    /// The name of the format, such as `parquet`.
    fn name(&self) -> &'static str;

    /// Begins an export to a folder, which may not exist. Fails with [`UsageError`] if the folder
    /// has files of another process in the place of these traces. Notes say what a user may not
    /// expect.
    fn begin(&self, target: ExportTarget, notes: &mut Vec<String>) -> anyhow::Result<Box<dyn FolderExport>>;
}

/// An export to a folder that has begun.
pub trait FolderExport {
    /// Writes runs. `first` is the index of the first of them in the traces of the target; the
    /// others follow it. Returns the bytes written. Files of other runs in the folder stay. After
    /// an error, no file is there by half.
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
    /// The user's choices for single formats.
    pub(crate) options: FormatOptions,
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
