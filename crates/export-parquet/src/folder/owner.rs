//! The process that a partition of an archive belongs to.
//!
//! Every table names it in the metadata of its file. The summary knows the path of its trace, too.

use std::fs::File;
use std::path::{Path, PathBuf};

use gpumemtrace_cli::export::TraceIdentity;
use gpumemtrace_multirun::archive_layout::{rank_folder, run_folder, summary_path};
use gpumemtrace_multirun::{Process, Summary, TraceSummary};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use serde::{Deserialize, Serialize};

use super::FILE;
use crate::file::table::TableRow as _;
use crate::tables::runs::RunRow;

/// The key of an [`Owner`] in the metadata of a file.
pub(super) const OWNER_KEY: &str = "gpumemtrace.process";

/// The process and the trace that files were made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Owner {
    #[serde(flatten)]
    process: Process,
    trace_id: Option<String>,
    /// The absolute path of the trace, if nothing else identifies it.
    absolute_path: Option<String>,
    /// The path as given, which the summary has.
    #[serde(skip)]
    path: Option<String>,
}

/// The owner of the files of a partition.
pub(super) enum PartitionOwner {
    /// One owner, unless the files name several.
    Owned(Vec<Owner>),
    /// There are no files yet: an export of this owner has chosen the rank, and may have ended.
    Claimed(Owner),
    /// This file does not say it.
    Unknown(PathBuf),
}

/// No two processes have all three facts in common.
fn is_complete(process: &Process) -> bool {
    process.host.is_some() && process.pid.is_some() && process.started_unix_ns.is_some()
}

fn absolute_path(trace: &TraceIdentity) -> Option<String> {
    let path = Path::new(&trace.path).canonicalize().ok()?;
    Some(path.to_string_lossy().into_owned())
}

impl Owner {
    pub(super) fn of(trace: &TraceIdentity) -> Self {
        let is_known = is_complete(&trace.process) || trace.trace_id.is_some();
        Self {
            process: trace.process.clone(),
            trace_id: trace.trace_id.clone(),
            absolute_path: if is_known { None } else { absolute_path(trace) },
            path: None,
        }
    }

    fn of_summary(summary: &TraceSummary) -> Self {
        let mut process = summary.process.clone();
        // As `TraceIdentity` has them.
        let is_number = |number: &u64| i64::try_from(*number).is_ok();
        process.pid = process.pid.filter(is_number);
        process.started_unix_ns = process.started_unix_ns.filter(is_number);
        Self { process, trace_id: None, absolute_path: None, path: Some(summary.path.clone()) }
    }

    /// True if the trace is of this process. If their facts do not show it, the id of the trace
    /// decides, else its path.
    fn is_of(&self, trace: &TraceIdentity) -> bool {
        if self.process != trace.process || is_complete(&self.process) {
            return self.process == trace.process;
        }
        match (&self.trace_id, &trace.trace_id, &self.absolute_path) {
            (Some(own), Some(other), _) => own == other,
            (_, _, Some(own)) => absolute_path(trace).as_ref() == Some(own),
            _ => self.path.as_ref() == Some(&trace.path),
        }
    }

    /// The path of its trace, else the process.
    fn describe(&self) -> String {
        let Process { host, pid, .. } = &self.process;
        match (&self.path, pid, host) {
            (Some(path), ..) => path.clone(),
            (None, Some(pid), Some(host)) => format!("process {pid} on {host}"),
            (None, Some(pid), None) => format!("process {pid}"),
            (None, None, _) => "without a process id".to_owned(),
        }
    }
}

impl PartitionOwner {
    /// True if the files are of this trace and of no other.
    pub(super) fn is_of(&self, trace: &TraceIdentity) -> bool {
        match self {
            Self::Owned(owners) => owners.iter().all(|owner| owner.is_of(trace)),
            Self::Claimed(owner) => owner.is_of(trace),
            Self::Unknown(_) => false,
        }
    }

    /// Why a trace may not replace the files of a partition of this archive, such as
    /// `run=job/rank=0`; `None` if it may.
    pub(super) fn refuse(&self, archive: &Path, partition: &Path, trace: &TraceIdentity) -> Option<String> {
        let name = format!("give {} another name with --run-name", trace.path);
        match self {
            Self::Unknown(file) => Some(format!(
                "{} does not name its process, so {} is not replaced; {name}, or delete {} from all folders of {}",
                file.display(),
                partition.display(),
                partition.display(),
                archive.display()
            )),
            Self::Owned(owners) => owners.iter().find(|owner| !owner.is_of(trace)).map(|owner| {
                let partition = archive.join(RunRow::TABLE).join(partition);
                let owner = owner.describe();
                format!("{} has the rank of another process ({owner}); {name}", partition.display())
            }),
            Self::Claimed(_) => None,
        }
    }
}

/// The owner of a partition of a run; `None` if it has no file.
pub(super) fn read_occupant(archive: &Path, run: &str, rank: u64) -> Option<PartitionOwner> {
    let partition = Path::new(&run_folder(run)).join(rank_folder(rank)).join(FILE);
    let mut files: Vec<PathBuf> = super::table_folders(archive).map(|table| table.join(&partition)).collect();
    files.retain(|file| file.exists());
    files.sort();
    let owner = files.iter().find_map(|file| read_owner(file));
    let summary = summary_path(archive, run, rank);
    let owners = add_summary(owner, &summary);
    if !owners.is_empty() {
        return Some(PartitionOwner::Owned(owners));
    }
    files.into_iter().next().or(summary.exists().then_some(summary)).map(PartitionOwner::Unknown)
}

/// Adds the owners that a summary names. It knows less of the same process than a table.
fn add_summary(owner: Option<Owner>, summary: &Path) -> Vec<Owner> {
    let text = std::fs::read_to_string(summary).unwrap_or_default();
    let summary = Summary::parse(&text).unwrap_or_else(|_| Summary::empty());
    let named: Vec<Owner> = summary.traces().iter().map(Owner::of_summary).collect();
    match (owner, &named[..]) {
        (Some(mut owner), [one]) if one.process == owner.process => {
            owner.path.clone_from(&one.path);
            vec![owner]
        }
        (owner, _) => owner.into_iter().chain(named).collect(),
    }
}

/// The owner that the metadata of a file names.
fn read_owner(file: &Path) -> Option<Owner> {
    let reader = SerializedFileReader::new(File::open(file).ok()?).ok()?;
    let metadata = reader.metadata().file_metadata().key_value_metadata()?;
    let named = metadata.iter().find(|entry| entry.key == OWNER_KEY)?;
    serde_json::from_str(named.value.as_ref()?).ok()
}
