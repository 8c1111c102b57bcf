//! The folder of an export: hive partitions by run and rank, one file each.
//!
//! All files are written to a hidden folder first, which readers pass over, and moved at the end.
//! So an export that fails leaves the folder as it was, and one of the same run replaces its files.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use parquet::file::metadata::KeyValue;
use tempfile::TempDir;

use crate::file::table::TableRow;
use crate::file::writer::TableWriter;
use crate::tables::{SCHEMA_NAME, SCHEMA_VERSION};

/// The name of each file. A later version may write further parts.
const FILE: &str = "part-0.parquet";

/// A folder that gets new files at once.
pub(crate) struct OutputFolder {
    path: PathBuf,
    is_new: bool,
    hidden: Option<TempDir>,
    files: Vec<PathBuf>,
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
        Ok(Self { path: path.to_owned(), is_new, hidden: Some(hidden), files: Vec::new() })
    }

    /// The files of one trace. The id of the run must be a valid name of a folder.
    pub(crate) fn partition<'a>(&'a mut self, run: &'a str, rank: u64) -> PartitionFolder<'a> {
        PartitionFolder { output: self, run, rank }
    }

    /// Moves all files to their places. Returns their bytes.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        if let Some(hidden) = &self.hidden {
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
        let mut output = OutputFolder::create(folder)?;
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

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
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
}
