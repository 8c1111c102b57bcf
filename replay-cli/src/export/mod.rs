//! Exports to the formats of other tools: one file or folder for each, and a row in [`EXPORTERS`].
//!
//! An [`Exporter`] gets the analysed runs. It takes bounded values from the report and the history,
//! and walks the events for everything else, so memory does not grow with the events. Equal traces
//! give equal bytes: an export holds no clock time and no order of a hash map.

mod csv;
mod distinct;
mod firefox;
mod folded;
mod json_object;
mod perfetto;
mod pprof;
mod protobuf;
mod run;
mod series;
mod speedscope;
mod stacks;
mod stormlog;
mod torch_snapshot;
mod traceml;
mod window;

use std::io::Write;
use std::path::PathBuf;

use gpumemtrace_cli::symbolize::Resolver;
use gpumemtrace_replay::Report;

use crate::render::OutputFormat;
pub(crate) use run::{ExportRun, read_for_export};
pub(crate) use stacks::StackValue;
pub(crate) use window::{ExportWindow, WindowArgs};

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
    &stormlog::StormlogExporter,
    &traceml::TracemlExporter,
];

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

    /// Writes the runs. Returns errors of `out` and of reading the traces.
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()>;
}

/// The runs to export.
pub(crate) struct ExportJob {
    /// The runs in the order of the command line; at least one.
    pub(crate) runs: Vec<ExportRun>,
    /// The report of all runs, with names of native functions. Its `traces` are in the order of
    /// `runs`.
    pub(crate) report: Report,
    /// Files of torch.profiler to merge. Empty unless [`Exporter::takes_profiles`].
    pub(crate) profiles: Vec<PathBuf>,
    /// Finds the names of native functions.
    pub(crate) resolver: Resolver,
    /// The value that the user wants to see first, or alone. Only for exporters that
    /// [choose a value](Exporter::chooses_value).
    pub(crate) value: Option<StackValue>,
    /// The most entries that a snapshot of PyTorch gets.
    pub(crate) max_events: u64,
    /// What the export leaves out or sums up, one sentence each. Printed after the export.
    pub(crate) notes: Vec<String>,
}
