//! Where a folder export writes: the folder, and the names of run and ranks in it.

mod run_id;

use std::collections::BTreeSet;
use std::path::PathBuf;

use gpumemtrace_replay::Report;

pub(crate) use run_id::is_file_name_part;
use run_id::run_id;

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
        let (ranks, numbered) = number_ranks(&reported, &mut self.used_ranks);
        if numbered > 0 && self.used_ranks.len() > 1 {
            notes.push(format!(
                "{numbered} of the traces have no rank, or one that another trace has; rank= in the folders is \
                 the next free number"
            ));
        }
        ranks
    }
}

/// A number for each trace that is not used yet, and how many of them are not the reported rank.
fn number_ranks(reported: &[Option<u64>], used: &mut BTreeSet<u64>) -> (Vec<u64>, usize) {
    let mut kept = Vec::new();
    for rank in reported {
        kept.push(rank.filter(|rank| used.insert(*rank)));
    }
    let mut numbered = 0;
    let mut next_free = || {
        numbered += 1;
        let free = (0..=used.len() as u64).find(|rank| !used.contains(rank)).unwrap_or_default();
        used.insert(free);
        free
    };
    let ranks = kept.into_iter().map(|rank| rank.unwrap_or_else(&mut next_free)).collect();
    (ranks, numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_reported_and_others_get_free_numbers() {
        for (reported, ranks, numbered) in [
            (vec![Some(3), Some(1)], vec![3, 1], 0),
            (vec![None], vec![0], 1),
            (vec![None, Some(0), None], vec![1, 0, 2], 2),
            (vec![Some(1), Some(1)], vec![1, 0], 1),
        ] {
            assert_eq!(number_ranks(&reported, &mut BTreeSet::new()), (ranks, numbered));
        }
        let mut used = BTreeSet::from([0, 1]);
        assert_eq!(number_ranks(&[Some(1)], &mut used), (vec![2], 1));
        assert_eq!(used, BTreeSet::from([0, 1, 2]));
    }
}
