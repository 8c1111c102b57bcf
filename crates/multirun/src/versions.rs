//! Versions of programs: the runs of one program at one commit.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::archive::ArchivedRun;
use crate::trace_summary::{DeviceSummary, TraceSummary};

/// How much of two versions was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PairOutcome {
    /// Nothing: no trace of any version before is complete and ended normally.
    NoWholeTrace,
    /// Nothing: the versions have no rank in common, of those with a complete trace before.
    NoCommonRank,
    /// Nothing: no GPU has a known peak, then or before.
    NoKnownPeak,
    /// Some ranks. The others are in one version only, or have no complete trace before that ended
    /// normally.
    SomeRanks,
    /// All ranks of both versions.
    AllRanks,
}

impl PairOutcome {
    /// False if nothing was compared.
    #[must_use]
    pub fn is_compared(self) -> bool {
        matches!(self, Self::SomeRanks | Self::AllRanks)
    }
}

/// All runs of one program at one commit, with their indices, by their start. A run without a
/// commit is a version of its own.
pub(crate) struct Version<'a> {
    runs: Vec<(usize, &'a ArchivedRun)>,
}

/// The versions of each program, by their first runs, and the indices of runs that are in none:
/// their program or their start is unknown. Runs are in the order of their start.
pub(crate) fn versions(runs: &[ArchivedRun]) -> (BTreeMap<&[String], Vec<Version<'_>>>, Vec<usize>) {
    let mut programs: BTreeMap<&[String], Vec<Version<'_>>> = BTreeMap::new();
    let mut unplaced = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let Some(command) = run.command().filter(|_| run.started_unix_ns().is_some()) else {
            unplaced.push(index);
            continue;
        };
        let versions = programs.entry(command).or_default();
        // Runs of two commits may alternate, as on two branches.
        let is_same = |version: &&mut Version<'_>| {
            let commit = version.runs[0].1.git_commit();
            commit.is_some() && commit == run.git_commit()
        };
        match versions.iter_mut().find(is_same) {
            Some(version) => version.runs.push((index, run)),
            None => versions.push(Version { runs: vec![(index, run)] }),
        }
    }
    (programs, unplaced)
}

/// Traces of a version by rank, those without a rank together, each with the index of its run.
type TracesOfRanks<'a> = BTreeMap<Option<u64>, Vec<(usize, &'a TraceSummary)>>;

impl<'a> Version<'a> {
    /// Index of its first run.
    pub(crate) fn first(&self) -> usize {
        self.runs[0].0
    }

    /// Index of its last run.
    pub(crate) fn last(&self) -> usize {
        self.runs[self.runs.len() - 1].0
    }

    /// True if other versions can be compared with it: a trace is complete, its process ended
    /// normally, and the peak of a GPU is known.
    pub(crate) fn is_baseline(&self) -> bool {
        let mut traces = self.runs.iter().flat_map(|(_, run)| run.summary.traces());
        traces.any(|trace| trace.is_whole() && gpus_of(trace).next().is_some())
    }

    fn ranks(&self) -> TracesOfRanks<'a> {
        let mut ranks = TracesOfRanks::new();
        for (index, run) in &self.runs {
            for trace in run.summary.traces() {
                ranks.entry(trace.rank).or_default().push((*index, trace));
            }
        }
        ranks
    }
}

/// The GPUs of one run.
pub(crate) type Gpus<'a> = Vec<&'a DeviceSummary>;

/// The GPUs of the ranks that two versions have in common, by run.
pub(crate) struct CommonRanks<'a> {
    /// Of complete traces that ended normally.
    pub(crate) before: Vec<Gpus<'a>>,
    pub(crate) after: Vec<Gpus<'a>>,
    /// False if a trace of the version is incomplete, or did not end normally.
    pub(crate) after_is_whole: bool,
    pub(crate) outcome: PairOutcome,
}

impl<'a> CommonRanks<'a> {
    /// `Err` if nothing can be compared, with the reason.
    pub(crate) fn new(before: &Version<'a>, after: &Version<'a>) -> Result<Self, PairOutcome> {
        let (mut old, mut new) = (before.ranks(), after.ranks());
        let all: BTreeSet<Option<u64>> = old.keys().chain(new.keys()).copied().collect();
        for traces in old.values_mut() {
            traces.retain(|(_, trace)| trace.is_whole());
        }
        old.retain(|_, traces| !traces.is_empty());
        if old.is_empty() {
            return Err(PairOutcome::NoWholeTrace);
        }
        for traces in old.values_mut().chain(new.values_mut()) {
            traces.retain(|(_, trace)| gpus_of(trace).next().is_some());
        }
        old.retain(|_, traces| !traces.is_empty());
        new.retain(|_, traces| !traces.is_empty());
        if old.is_empty() || new.is_empty() {
            return Err(PairOutcome::NoKnownPeak);
        }
        old.retain(|rank, _| new.contains_key(rank));
        new.retain(|rank, _| old.contains_key(rank));
        if old.is_empty() {
            return Err(PairOutcome::NoCommonRank);
        }
        let (mut gpus_before, mut gpus_after) = (GpusOfRuns::new(), GpusOfRuns::new());
        let mut after_is_whole = true;
        for (old, new) in old.values().zip(new.values_mut()) {
            if new.iter().any(|(_, trace)| trace.is_whole()) {
                new.retain(|(_, trace)| trace.is_whole());
            }
            add_gpus(&mut gpus_before, old);
            add_gpus(&mut gpus_after, new);
            after_is_whole &= new.iter().all(|(_, trace)| trace.is_whole());
        }
        let outcome = if old.len() < all.len() { PairOutcome::SomeRanks } else { PairOutcome::AllRanks };
        let [before, after] = [gpus_before, gpus_after].map(|runs| runs.into_values().collect());
        Ok(Self { before, after, after_is_whole, outcome })
    }
}

type GpusOfRuns<'a> = BTreeMap<usize, Gpus<'a>>;

fn add_gpus<'a>(runs: &mut GpusOfRuns<'a>, traces: &[(usize, &'a TraceSummary)]) {
    for (run, trace) in traces {
        let known: Gpus<'a> = gpus_of(trace).collect();
        if !known.is_empty() {
            runs.entry(*run).or_default().extend(known);
        }
    }
}

/// The GPUs with a known peak.
fn gpus_of(trace: &TraceSummary) -> impl Iterator<Item = &DeviceSummary> {
    trace.devices.iter().filter(|device| device.peak_live_bytes.is_some() && !device.peak_sites.is_empty())
}
