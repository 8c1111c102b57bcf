//! Where a folder export writes: the folder, and the names of run and ranks in it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gpumemtrace_replay::Report;

use super::run_id::run_id;

/// The folder of an export, and the names of its partitions.
pub struct ExportTarget {
    /// The folder to write to.
    pub folder: PathBuf,
    run: Option<String>,
    used_ranks: BTreeSet<u64>,
}

impl ExportTarget {
    /// A folder. Without a name for the run, its traces name it.
    pub(crate) fn new(folder: PathBuf, run: Option<String>) -> Self {
        Self { folder, run, used_ranks: BTreeSet::new() }
    }

    /// The name of the run of these traces, a valid name of a folder.
    pub fn run_of(&self, report: &Report) -> String {
        self.run.clone().unwrap_or_else(|| run_id(report))
    }

    /// A number for each trace that no other trace of this export has: its rank, or the next free
    /// number if the rank is unknown or repeats. Notes say so, unless there is only one trace.
    pub fn ranks_of(&mut self, report: &Report, notes: &mut Vec<String>) -> Vec<u64> {
        let reported: Vec<Option<u64>> = report.traces.iter().map(|trace| trace.rank).collect();
        let mut numbered = 0;
        let mut first_of = |rank: &Option<u64>| rank.filter(|rank| self.used_ranks.insert(*rank));
        let kept: Vec<Option<u64>> = reported.iter().map(|rank| first_of(rank)).collect();
        let ranks = kept.into_iter().map(|rank| {
            rank.unwrap_or_else(|| {
                numbered += 1;
                let free = (0..).find(|rank| !self.used_ranks.contains(rank)).unwrap_or(u64::MAX);
                self.used_ranks.insert(free);
                free
            })
        });
        let ranks: Vec<u64> = ranks.collect();
        if numbered > 0 && self.used_ranks.len() > 1 {
            notes.push(format!(
                "{numbered} of the traces have no rank, or one that another trace has; rank= in the folders is \
                 the next free number"
            ));
        }
        ranks
    }
}
