//! The names in the folder of an archive, for the export that writes them and for its readers.
//!
//! Each table is a folder with hive partitions, such as `runs/run=nightly/rank=0/part-0.parquet`.
//! Summaries are beside them: `_summaries/run=nightly/rank=0.summary`. Readers of tables pass over
//! names that begin with `_` or a dot. `gpumemtrace.sql` reads the same names (`sql/_archive.py`).

use std::path::{Path, PathBuf};

/// The table with a row for each process.
pub const TABLE_OF_RUNS: &str = "runs";
/// The folder of summaries.
pub const SUMMARIES: &str = "_summaries";
/// How the name of a run's folder begins.
const RUN: &str = "run=";
const RANK: &str = "rank=";
const SUMMARY_SUFFIX: &str = ".summary";

/// The folder of a run in a table, or among the summaries.
#[must_use]
pub fn run_folder(run: &str) -> String {
    format!("{RUN}{run}")
}

/// The folder of a rank in that of its run.
#[must_use]
pub fn rank_folder(rank: u64) -> String {
    format!("{RANK}{rank}")
}

/// The path of a rank's summary.
#[must_use]
pub fn summary_path(archive: &Path, run: &str, rank: u64) -> PathBuf {
    archive.join(SUMMARIES).join(run_folder(run)).join(format!("{RANK}{rank}{SUMMARY_SUFFIX}"))
}

/// The run that a folder is of; `None` for other names.
#[must_use]
pub fn run_of_folder(name: &str) -> Option<&str> {
    name.strip_prefix(RUN)
}

/// The rank that a folder or a summary is of; `None` for other names, and for ranks that engines of
/// SQL cannot read.
#[must_use]
pub fn rank_of_name(name: &str) -> Option<u64> {
    let rank = name.strip_prefix(RANK)?;
    let rank: i64 = rank.strip_suffix(SUMMARY_SUFFIX).unwrap_or(rank).parse().ok()?;
    u64::try_from(rank).ok()
}

/// True for the file of a summary.
#[must_use]
pub fn is_summary_name(name: &str) -> bool {
    name.ends_with(SUMMARY_SUFFIX)
}
