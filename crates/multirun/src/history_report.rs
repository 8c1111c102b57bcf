//! The runs of an archive and what grew between their versions, as one document.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::archive::{ArchivedRun, RunArchive};
use crate::functions::GpuChoice;
use crate::growth_between_versions::ArchiveGrowth;
use crate::job::JobReport;
use crate::outcome::{Outcome, outcome_of_run};
use crate::trace_summary::WorstFinding;
use crate::versions::PairOutcome;

/// The result of `gpumemtrace history --json`.
///
/// Sizes are bytes, unknown values are `null` and never 0. Keys may be added.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace history", extend("$id" = "urn:gpumemtrace:history:1"))]
pub struct HistoryReport {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.history"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// True if all ranks of all runs are here, and nothing is missing from their traces.
    pub complete: bool,
    /// The runs, the newest first, then those with an unknown start.
    pub runs: Vec<HistoryRun>,
    /// Functions that grew from one version of their program to the next: the latest version first,
    /// then the largest growth.
    pub growth: Vec<FunctionGrowth>,
    /// Each version of a program but the first, with the one that it is compared with: the latest
    /// first.
    pub versions: Vec<ComparedVersions>,
    /// Names of runs that are in no version: their program or their start is unknown.
    pub unplaced: Vec<String>,
    /// Names of runs that the tables list and that have no summary.
    pub without_summary: Vec<String>,
    /// Names of runs whose summaries cannot be read.
    pub unreadable: Vec<String>,
}

/// The ranks of one run together, without a row for each.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HistoryRun {
    /// The name of the run.
    pub name: String,
    /// The start of its first rank, in nanoseconds since the Unix epoch.
    pub started_unix_ns: Option<u64>,
    /// The commit of the program; `null` if it is unknown, or if ranks differ.
    pub git_commit: Option<String>,
    /// The command line of the lowest rank.
    pub program: Option<String>,
    /// The labels of its ranks.
    pub labels: BTreeMap<String, String>,
    /// The number of traces.
    pub traces: u64,
    /// The median over all GPUs of the peak of `memory_allocated()`.
    pub median_peak_live_bytes: Option<u64>,
    /// The largest of these peaks.
    pub most_peak_live_bytes: Option<u64>,
    /// How the run ended: the last process of each rank counts.
    pub outcome: Option<Outcome>,
    /// The most severe finding of all ranks.
    pub worst_finding: Option<WorstFinding>,
    /// False if a rank or a part of a trace is missing.
    pub complete: bool,
    /// Ranks of the job without a trace.
    pub missing_ranks: Vec<u64>,
}

/// A function that has more memory at the peak in a version than in the version before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FunctionGrowth {
    /// The version, and the one before.
    #[serde(flatten)]
    pub between: Versions,
    /// The line of the function that grew most; all of these if several fit.
    pub lines: Vec<String>,
    /// The functions before that this one was, if it has another name or file now.
    pub moved_from: Vec<String>,
    /// Which bytes are compared, of several GPUs.
    pub gpus: GpuChoice,
    /// The most bytes in any usual run before.
    pub before_bytes: u64,
    /// True if the bytes before may be fewer: a trace keeps only its largest lines.
    pub before_is_bound: bool,
    /// The least bytes in any usual run of the version.
    pub after_bytes: u64,
    /// True if they may be more.
    pub after_is_bound: bool,
    /// The growth, at least.
    pub growth_bytes: u64,
    /// False if a trace of the version is incomplete, or did not end normally.
    pub after_is_whole: bool,
}

/// A version and the one before, and how much of them was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ComparedVersions {
    /// The version, and the one before.
    #[serde(flatten)]
    pub between: Versions,
    /// How much was compared, or why nothing was.
    pub compared: PairOutcome,
}

/// Two versions of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Versions {
    /// The command line with spaces; `null` if it is unknown.
    pub program: Option<String>,
    /// The last run of the version before.
    pub before_run: String,
    /// The first run of the version.
    pub after_run: String,
    /// The commit of the version before; `null` if it is unknown.
    pub before_commit: Option<String>,
    /// The commit of the version; `null` if it is unknown.
    pub after_commit: Option<String>,
}

impl HistoryReport {
    /// The report of an archive.
    #[must_use]
    pub fn new(archive: &RunArchive, growth: &ArchiveGrowth) -> Self {
        let runs = &archive.runs;
        let between = |before: usize, after: usize| Versions {
            program: runs[after].program(),
            before_run: runs[before].name.clone(),
            after_run: runs[after].name.clone(),
            before_commit: runs[before].git_commit().map(str::to_owned),
            after_commit: runs[after].git_commit().map(str::to_owned),
        };
        let grown = growth.regressions.iter().map(|one| FunctionGrowth {
            between: between(one.before, one.after),
            lines: one.lines.clone(),
            moved_from: one.moved_from.clone(),
            gpus: one.chosen,
            before_bytes: one.before_bytes,
            before_is_bound: one.before_is_bound,
            after_bytes: one.after_bytes,
            after_is_bound: one.after_is_bound,
            growth_bytes: one.growth_bytes(),
            after_is_whole: one.after_is_whole,
        });
        let versions = growth.pairs.iter().map(|pair| ComparedVersions {
            between: between(pair.before, pair.after),
            compared: pair.outcome,
        });
        Self {
            schema: "gpumemtrace.history",
            version: 1,
            complete: archive.is_complete(),
            runs: archive.shown().rev().map(HistoryRun::new).collect(),
            growth: grown.collect(),
            versions: versions.collect(),
            unplaced: growth.unplaced.iter().map(|index| runs[*index].name.clone()).collect(),
            without_summary: archive.without_summary.clone(),
            unreadable: archive.unreadable.clone(),
        }
    }
}

impl HistoryRun {
    fn new(run: &ArchivedRun) -> Self {
        let job = JobReport::of(&run.summary);
        Self {
            name: run.name.clone(),
            started_unix_ns: run.started_unix_ns(),
            git_commit: run.git_commit().map(str::to_owned),
            program: run.program(),
            labels: job.traces.iter().flat_map(|trace| trace.labels.clone()).collect(),
            traces: job.traces.len() as u64,
            median_peak_live_bytes: job.peak_live.as_ref().map(|peak| peak.median_bytes),
            most_peak_live_bytes: job.peak_live.as_ref().map(|peak| peak.most_bytes),
            outcome: run.outcome(),
            worst_finding: job.worst_finding().map(|(_, finding)| finding.clone()),
            complete: run.is_complete(),
            missing_ranks: job.missing_ranks,
        }
    }
}

impl ArchivedRun {
    /// How the run ended: the last process of each rank counts. `None` without traces.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        outcome_of_run(self.summary.traces())
    }
}
