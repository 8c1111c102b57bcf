//! The folder of an export: hive partitions by run and rank, one file each.
//!
//! All files are written to a hidden folder first, which readers pass over, and moved at the end.
//! So an export that fails leaves the folder as it was, and one of the same run replaces its files.
//!
//! Several exports may write to one folder at once. A lock lets one after the other move its files,
//! so a partition never has tables of two exports. A partition that belongs to another process is
//! never replaced. `runs` is moved after the other tables: a run that it lists is complete.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use gpumemtrace_fleet::{Summary, TraceSummary};
use parquet::file::metadata::KeyValue;
use tempfile::TempDir;

use crate::file::table::TableRow;
use crate::file::writer::TableWriter;
use crate::tables::{SCHEMA_NAME, SCHEMA_VERSION};

/// The name of each file. A later version may write further parts.
const FILE: &str = "part-0.parquet";
/// The folder of summaries, which `gpumemtrace fleet` reads. Readers of tables pass over the name.
const SUMMARIES: &str = "_summaries";
/// The file that one export locks at a time. Its name is hidden, so readers pass over it.
const LOCK: &str = ".gpumemtrace-lock";

/// A folder that gets new files at once.
pub(crate) struct OutputFolder {
    path: PathBuf,
    is_new: bool,
    hidden: Option<TempDir>,
    files: Vec<PathBuf>,
    summaries: Vec<(PathBuf, TraceSummary)>,
}

/// The files of one trace.
pub(crate) struct PartitionFolder<'a> {
    output: &'a mut OutputFolder,
    run: &'a str,
    rank: u64,
}

impl OutputFolder {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let error = || format!("cannot write to {}; choose another folder with --output", path.display());
        let is_new = !path.exists();
        std::fs::create_dir_all(path).with_context(error)?;
        let hidden = tempfile::Builder::new().prefix(".gpumemtrace-").tempdir_in(path).with_context(error)?;
        Ok(Self {
            path: path.to_owned(),
            is_new,
            hidden: Some(hidden),
            files: Vec::new(),
            summaries: Vec::new(),
        })
    }

    /// The files of one trace. The id of the run must be a valid name of a folder.
    pub(crate) fn partition<'a>(&'a mut self, run: &'a str, rank: u64) -> PartitionFolder<'a> {
        PartitionFolder { output: self, run, rank }
    }

    /// Moves all files to their places. Returns their bytes. Fails without any change if a
    /// partition has the files of another process.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        if let Some(hidden) = &self.hidden {
            let _lock = lock(&self.path)?;
            for (file, summary) in &self.summaries {
                check_owner(&self.path.join(file), summary)?;
            }
            for file in &self.files {
                let (from, to) = (hidden.path().join(file), self.path.join(file));
                let error = || format!("cannot write {}", to.display());
                bytes += std::fs::metadata(&from).with_context(error)?.len();
                std::fs::create_dir_all(to.parent().unwrap_or(&self.path)).with_context(error)?;
                std::fs::rename(&from, &to).with_context(error)?;
            }
        }
        self.is_new = false;
        Ok(bytes)
    }
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

/// Fails if the partition of this summary belongs to another process.
fn check_owner(path: &Path, summary: &TraceSummary) -> anyhow::Result<()> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(()) };
    let Ok(present) = Summary::parse(&text) else { return Ok(()) };
    match present.traces() {
        [owner] if owner.process != summary.process => bail!(
            "{} has the rank of another process ({}); give {} another name with --run",
            path.display(),
            owner.path,
            summary.path
        ),
        _ => Ok(()),
    }
}

impl PartitionFolder<'_> {
    /// Begins the file of a table.
    pub(crate) fn begin<R: TableRow + 'static>(&mut self) -> anyhow::Result<TableWriter<R>> {
        let Self { output, run, rank } = self;
        let file = Path::new(R::TABLE).join(format!("run={run}")).join(format!("rank={rank}")).join(FILE);
        let hidden = output.hidden.as_ref().map_or(output.path.as_path(), TempDir::path).join(&file);
        std::fs::create_dir_all(hidden.parent().unwrap_or(&output.path))?;
        let writer = TableWriter::create(&hidden, metadata(R::TABLE, run, *rank))?;
        output.files.push(file);
        Ok(writer)
    }

    /// Writes the summary of the trace. It is the last file of a partition.
    pub(crate) fn write_summary(&mut self, summary: &TraceSummary) -> anyhow::Result<()> {
        let Self { output, run, rank } = self;
        let file = Path::new(SUMMARIES).join(format!("run={run}")).join(format!("rank={rank}.summary"));
        let hidden = output.hidden.as_ref().map_or(output.path.as_path(), TempDir::path).join(&file);
        std::fs::create_dir_all(hidden.parent().unwrap_or(&output.path))?;
        let mut json = serde_json::to_vec(&Summary::of_trace(summary.clone()))?;
        json.push(b'\n');
        std::fs::write(&hidden, json)?;
        output.files.push(file.clone());
        output.summaries.push((file, summary.clone()));
        Ok(())
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        drop(self.hidden.take());
        if self.is_new {
            // Fails if something else was put there meanwhile, which stays.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

fn metadata(table: &str, run: &str, rank: u64) -> Vec<KeyValue> {
    let entries = [
        ("gpumemtrace.schema", SCHEMA_NAME.to_owned()),
        ("gpumemtrace.schema_version", SCHEMA_VERSION.to_owned()),
        ("gpumemtrace.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("gpumemtrace.table", table.to_owned()),
        ("gpumemtrace.run", run.to_owned()),
        ("gpumemtrace.rank", rank.to_string()),
        (
            "gpumemtrace.sizes",
            "size_bytes as rounded by the allocator, requested_bytes as requested".to_owned(),
        ),
        ("gpumemtrace.times", "nanoseconds since runs.started_unix_ns".to_owned()),
    ];
    entries.map(|(key, value)| KeyValue::new(key.to_owned(), value)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::cell::Text;
    use crate::tables::findings::FindingRow;

    fn write(folder: &Path, run: &str, finishes: bool) -> anyhow::Result<()> {
        write_as(folder, run, 7, finishes)
    }

    /// Writes a partition of the process with this id.
    fn write_as(folder: &Path, run: &str, pid: u64, finishes: bool) -> anyhow::Result<()> {
        let mut output = OutputFolder::create(folder)?;
        output.partition(run, 0).write_summary(&summary_of(pid))?;
        let mut writer = output.partition(run, 0).begin::<FindingRow>()?;
        writer.push(FindingRow {
            rank_in_report: 0,
            severity: Text::from_static("info"),
            kind: Text::from_static("leak"),
            device: None,
            summary: Text::from(run),
            site_id: None,
            evidence_json: Text::from_static("{}"),
        });
        writer.finish()?;
        if finishes {
            output.finish()?;
        }
        Ok(())
    }

    fn summary_of(pid: u64) -> TraceSummary {
        let json = format!(
            r#"{{"host":"node0","pid":{pid},"started_unix_ns":1,"path":"run.trace","rank":0,"world_size":null,
            "command":null,"torch":null,"allocator_conf":null,"git_commit":null,"events":9,"duration_ns":5,
            "end":"exit","missing":[],"steps":null,"step_source":null,"leak_assessment":"assessed",
            "worst_finding":null,"devices":[],"leaks":[],"more_leaks":0,"ooms":[],"more_ooms":0}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    /// The Parquet files below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension != "parquet") || path.ends_with(LOCK) {
                continue;
            }
            if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
        }
        found.sort();
        found
    }

    #[test]
    fn an_unfinished_export_leaves_the_folder_as_it_was() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("out");
        write(&folder, "a", false).unwrap();
        assert!(!folder.exists());
        write(&folder, "a", true).unwrap();
        let before = std::fs::read(&files(&folder)[0]).unwrap();
        write(&folder, "a", false).unwrap();
        assert_eq!(files(&folder), [folder.join("findings/run=a/rank=0/part-0.parquet")]);
        assert_eq!(std::fs::read(&files(&folder)[0]).unwrap(), before);
    }

    #[test]
    fn other_runs_stay_and_the_same_run_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        for run in ["a", "b", "a"] {
            write(parent.path(), run, true).unwrap();
        }
        let expected =
            ["a", "b"].map(|run| parent.path().join(format!("findings/run={run}/rank=0/part-0.parquet")));
        assert_eq!(files(parent.path()), expected);
    }

    #[test]
    fn a_partition_of_another_process_is_never_replaced() {
        let parent = tempfile::tempdir().unwrap();
        write_as(parent.path(), "a", 7, true).unwrap();
        let before = std::fs::read(&files(parent.path())[0]).unwrap();
        let refused = write_as(parent.path(), "a", 8, true).unwrap_err().to_string();
        assert!(refused.contains("rank=0.summary") && refused.contains("--run"), "{refused}");
        assert_eq!(std::fs::read(&files(parent.path())[0]).unwrap(), before);
        write_as(parent.path(), "b", 8, true).unwrap();
    }

    #[test]
    fn exports_at_once_leave_whole_partitions() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let folder = parent.path();
                scope.spawn(move || {
                    for run in 0..5 {
                        write(folder, &format!("run{}", (writer + run) % 5), true).unwrap();
                    }
                });
            }
        });
        assert_eq!(files(parent.path()).len(), 5);
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().flatten().collect();
        assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with(".gpumemtrace-")
            || entry.file_name() == LOCK));
    }
}
