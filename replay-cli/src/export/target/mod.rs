//! What a folder export writes, and where: the traces, the name of their run, and the folder.

mod identity;
mod run_id;

use std::path::PathBuf;

pub use identity::TraceIdentity;
use run_id::run_id;
pub(crate) use run_id::{HIVE_NULL, is_file_name_part};

/// The folder of an export, the name of its run, and its traces.
pub struct ExportTarget {
    /// The folder to write to.
    pub folder: PathBuf,
    /// The name of the run, a valid name of a folder.
    pub run: String,
    /// True if the folder may have other traces of this run: the user or a process names it. The
    /// name of a file does not identify a run.
    pub joins_run: bool,
    /// All traces of the export, in the order in which they are written.
    pub traces: Vec<TraceIdentity>,
    /// Replaces files of a more complete trace of the same process, too.
    pub is_forced: bool,
}

impl ExportTarget {
    /// Without a name for the run, its traces name it.
    pub(crate) fn new(
        folder: PathBuf,
        run: Option<String>,
        traces: Vec<TraceIdentity>,
        is_forced: bool,
    ) -> Self {
        let (run, joins_run) = run.map_or_else(|| run_id(&traces), |name| (name, true));
        Self { folder, run, joins_run, traces, is_forced }
    }
}
