//! The folder of an export: hive partitions by run and rank, one file each.
//!
//! All files are written to a hidden folder first, which readers pass over, and moved at the end.
//! So an export that fails leaves the folder as it was, and one of the same run replaces its files,
//! unless they are of a more complete copy of the trace.
//!
//! Several exports may write to one folder at once. A lock lets one after the other move its files,
//! so a partition never has tables of two exports. A partition that belongs to another process is
//! never replaced ([`owner`]). `runs` is moved after the other tables: a run that it lists is
//! complete. Numbers for traces without a rank are chosen under the lock, too, and kept in the
//! hidden folder ([`claims`]). So nodes that export at once do not choose the same numbers.

mod claims;
mod owner;
mod ranks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gpumemtrace_cli::export::{ExportTarget, TraceIdentity, UsageError};
use gpumemtrace_multirun::archive_layout::{SUMMARIES, rank_folder, rank_of_name, run_folder, summary_path};
use gpumemtrace_multirun::{Completeness, Summary, TraceSummary};
use parquet::file::metadata::KeyValue;
use tempfile::TempDir;

use self::owner::{OWNER_KEY, Owner, PartitionOwner, read_occupant};
use self::ranks::number_traces;
use crate::file::table::TableRow;
use crate::file::writer::TableWriter;
use crate::tables::{SCHEMA_NAME, SCHEMA_VERSION};

/// The name of each file. A later version may write further parts.
const FILE: &str = "part-0.parquet";
/// The file that one export locks at a time. Its name is hidden, so readers pass over it.
const LOCK: &str = ".gpumemtrace-lock";
/// How the name of a hidden folder begins.
const HIDDEN: &str = ".gpumemtrace-";

/// A folder that gets new files at once, and the traces that they are of.
pub(crate) struct OutputFolder {
    target: ExportTarget,
    /// The number of each trace.
    ranks: Vec<u64>,
    is_new: bool,
    hidden: Option<TempDir>,
    /// The files that were written, and the traces that they are of.
    files: Vec<(usize, PathBuf)>,
    /// The traces that the files are of, and what they have of their processes.
    written: BTreeMap<usize, Option<Completeness>>,
}

/// The files of one trace.
pub(crate) struct PartitionFolder<'a> {
    output: &'a mut OutputFolder,
    trace: usize,
}

impl OutputFolder {
    /// Begins an export, and chooses the number of each trace. A note says which are not the rank
    /// that the process reported.
    ///
    /// # Errors
    ///
    /// A partition of these traces has the files of another process, or the folder cannot be
    /// written.
    pub(crate) fn begin(target: ExportTarget, notes: &mut Vec<String>) -> anyhow::Result<Self> {
        let path = &target.folder;
        let error = || format!("cannot write to {}; choose another folder with --output", path.display());
        let is_new = !path.exists();
        std::fs::create_dir_all(path).with_context(error)?;
        let hidden = tempfile::Builder::new().prefix(HIDDEN).tempdir_in(path).with_context(error)?;
        let (ranks, files, written) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut output = Self { target, ranks, is_new, hidden: Some(hidden), files, written };
        output.claim_ranks(notes)?;
        Ok(output)
    }

    /// Chooses the numbers, and keeps them until this export ends.
    fn claim_ranks(&mut self, notes: &mut Vec<String>) -> anyhow::Result<()> {
        let Some(hidden) = &self.hidden else { return Ok(()) };
        let ExportTarget { folder, run, joins_run, traces, .. } = &self.target;
        let _lock = lock(folder)?;
        let mut present = BTreeMap::new();
        // Without a trace to be numbered, the other ranks of the run do not matter.
        let reported: BTreeSet<u64> = traces.iter().filter_map(|trace| trace.rank).collect();
        let has_all = reported.len() == traces.len();
        for rank in if has_all { reported } else { ranks_of_run(folder, run) } {
            present.extend(read_occupant(folder, run, rank).map(|occupant| (rank, occupant)));
        }
        for (rank, owner) in claims::read_claims(folder, run) {
            present.entry(rank).or_insert_with(|| PartitionOwner::Claimed(owner));
        }
        let is_known = |occupant: &PartitionOwner| traces.iter().any(|trace| occupant.is_of(trace));
        let (known, other) = present.into_iter().partition(|(_, occupant)| *joins_run || is_known(occupant));
        let (ranks, note) = number_traces(run, traces, &known);
        for (trace, rank) in traces.iter().zip(&ranks) {
            check_occupant(&self.target, (trace, *rank), known.get(rank).or(other.get(rank)))?;
        }
        let owners = ranks.iter().copied().zip(traces.iter().map(Owner::of)).collect();
        claims::write_claims(hidden.path(), run, owners)?;
        notes.extend(note);
        self.ranks = ranks;
        Ok(())
    }

    /// The files of the trace with this index.
    pub(crate) fn partition(&mut self, trace: usize) -> PartitionFolder<'_> {
        self.written.insert(trace, None);
        PartitionFolder { output: self, trace }
    }

    /// Moves the files that were written to their places. Returns their bytes. Fails without any
    /// change if a partition has the files of another process. Files of a more complete trace of
    /// the same process stay, unless the export is forced: a note says so.
    pub(crate) fn publish(&mut self, notes: &mut Vec<String>) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let Some(hidden) = &self.hidden else { return Ok(bytes) };
        let folder = &self.target.folder;
        let _lock = lock(folder)?;
        let mut kept = BTreeSet::new();
        for (trace, written) in std::mem::take(&mut self.written) {
            let (identity, rank) = (&self.target.traces[trace], self.ranks[trace]);
            let present = read_occupant(folder, &self.target.run, rank);
            check_occupant(&self.target, (identity, rank), present.as_ref())?;
            let present = read_completeness(&summary_path(folder, &self.target.run, rank));
            if let (Some(present), Some(written), false) = (present, written, self.target.is_forced)
                && present > written
            {
                kept.insert(trace);
                notes.push(format!(
                    "the tables of run={}/rank={rank} stay: they have {} events of the process, and {} has {}; \
                     --force replaces them",
                    self.target.run, present.events, identity.path, written.events
                ));
            }
        }
        for (trace, file) in self.files.drain(..) {
            if kept.contains(&trace) {
                continue;
            }
            let (from, to) = (hidden.path().join(&file), folder.join(&file));
            let error = || format!("cannot write {}", to.display());
            bytes += std::fs::metadata(&from).with_context(error)?.len();
            std::fs::create_dir_all(to.parent().unwrap_or(folder)).with_context(error)?;
            std::fs::rename(&from, &to).with_context(error)?;
        }
        self.is_new = false;
        Ok(bytes)
    }
}

/// Fails if the partition of a trace has the files of another process.
fn check_occupant(
    target: &ExportTarget,
    (trace, rank): (&TraceIdentity, u64),
    present: Option<&PartitionOwner>,
) -> anyhow::Result<()> {
    let partition = Path::new(&run_folder(&target.run)).join(rank_folder(rank));
    let refused = present.and_then(|occupant| occupant.refuse(&target.folder, &partition, trace));
    refused.map_or(Ok(()), |why| Err(UsageError(why).into()))
}

/// What the trace has of its process that a summary is of; `None` if there is none.
fn read_completeness(summary: &Path) -> Option<Completeness> {
    let summary = Summary::parse(&std::fs::read_to_string(summary).ok()?).ok()?;
    summary.traces().iter().map(TraceSummary::completeness).max()
}

/// The folders of tables in an archive.
fn table_folders(archive: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(archive).into_iter().flatten().flatten();
    let is_hidden = |name: &str| name.starts_with(['.', '_']);
    entries.filter(move |entry| !is_hidden(&entry.file_name().to_string_lossy())).map(|entry| entry.path())
}

/// The numbers of the ranks that an archive has of a run. Some may have no file.
fn ranks_of_run(archive: &Path, run: &str) -> BTreeSet<u64> {
    let folders = table_folders(archive).chain([archive.join(SUMMARIES)]);
    let entries = folders.filter_map(|folder| std::fs::read_dir(folder.join(run_folder(run))).ok());
    let names = entries.flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| rank_of_name(&name)).collect()
}

/// Waits until no other export moves files into this folder. A file system without locks lets
/// several do so at once; each file is still whole.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join(LOCK);
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.lock() {
        Err(error) if error.kind() != ErrorKind::Unsupported => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
        _ => Ok(file),
    }
}

impl PartitionFolder<'_> {
    /// The place for a file, below the hidden folder. It is moved with the others.
    fn add_file(&mut self, file: PathBuf) -> std::io::Result<PathBuf> {
        let output = &mut *self.output;
        let folder = output.hidden.as_ref().map_or(output.target.folder.as_path(), TempDir::path);
        let hidden = folder.join(&file);
        std::fs::create_dir_all(hidden.parent().unwrap_or(folder))?;
        output.files.push((self.trace, file));
        Ok(hidden)
    }

    fn run_folder(&self, table: &str) -> PathBuf {
        Path::new(table).join(run_folder(&self.output.target.run))
    }

    fn rank(&self) -> u64 {
        self.output.ranks[self.trace]
    }

    /// Begins the file of a table.
    pub(crate) fn begin<R: TableRow + 'static>(&mut self) -> anyhow::Result<TableWriter<R>> {
        let file = self.run_folder(R::TABLE).join(rank_folder(self.rank())).join(FILE);
        let hidden = self.add_file(file)?;
        let ExportTarget { run, traces, .. } = &self.output.target;
        let owner = Owner::of(&traces[self.trace]);
        TableWriter::create(&hidden, metadata(R::TABLE, (run, self.rank()), &owner)?)
    }

    /// Writes the summary of the trace. It is the last file of a partition.
    pub(crate) fn write_summary(&mut self, summary: &TraceSummary) -> anyhow::Result<()> {
        self.output.written.insert(self.trace, Some(summary.completeness()));
        let hidden = self.add_file(summary_path(Path::new(""), &self.output.target.run, self.rank()))?;
        let mut json = serde_json::to_vec(&Summary::of_trace(summary.clone()))?;
        json.push(b'\n');
        Ok(std::fs::write(&hidden, json)?)
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        drop(self.hidden.take());
        if self.is_new {
            let folder = &self.target.folder;
            let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            if entries.all(|entry| entry.file_name() == LOCK) {
                let _ = std::fs::remove_file(folder.join(LOCK));
                // Fails if something else was put there meanwhile, which stays.
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
}

fn metadata(table: &str, (run, rank): (&str, u64), owner: &Owner) -> anyhow::Result<Vec<KeyValue>> {
    let entries = [
        ("gpumemtrace.schema", SCHEMA_NAME.to_owned()),
        ("gpumemtrace.schema_version", SCHEMA_VERSION.to_owned()),
        ("gpumemtrace.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("gpumemtrace.table", table.to_owned()),
        ("gpumemtrace.run", run.to_owned()),
        ("gpumemtrace.rank", rank.to_string()),
        (OWNER_KEY, serde_json::to_string(owner)?),
        (
            "gpumemtrace.sizes",
            "size_bytes as rounded by the allocator, requested_bytes as requested".to_owned(),
        ),
        ("gpumemtrace.times", "nanoseconds since runs.started_unix_ns".to_owned()),
    ];
    Ok(entries.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec())
}
