//! Exports to the formats of other tools: one file or folder for each, and a row in `registry.rs`.
//!
//! An `Exporter` gets the analysed runs. It takes bounded values from the report and the history,
//! and walks the events for everything else, so memory does not grow with the events. Equal traces
//! give equal bytes: an export holds no clock time and no order of a hash map.
//!
//! A format with many dependencies has a program of its own (`ExportProgram`), which implements
//! [`FolderExporter`] with what this module makes public.

mod csv;
mod distinct;
mod exporter;
mod firefox;
mod folded;
mod line_ids;
mod perfetto;
mod pprof;
mod program;
mod protobuf;
mod registry;
mod run;
mod series;
mod speedscope;
mod stacks;
mod svg;
mod target;
mod torch_snapshot;
mod window;

pub use crate::exit::UsageError;
pub use exporter::{ExportJob, FolderExport, FolderExporter};
pub use line_ids::LineIds;
pub use run::ExportRun;
pub use target::{ExportTarget, TraceIdentity};
pub use window::ExportWindow;

pub(crate) use exporter::{ExportFormat, Exporter};
pub(crate) use program::ExportProgram;
pub(crate) use registry::{FORMATS, FormatRow, PROGRAMS};
pub(crate) use run::read_for_export;
pub(crate) use target::{HIVE_NULL, is_file_name_part};
pub(crate) use window::WindowArgs;
