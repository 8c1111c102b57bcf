//! The number of each trace in the partitions of a run: its rank, or another.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_cli::export::TraceIdentity;

use super::owner::PartitionOwner;

/// Most numbers that a note lists.
const MAX_LISTED: usize = 8;

/// A number for each trace that no other trace of the export has, and a note if some are not the
/// rank that the process reported.
///
/// A reported rank is kept. Of several traces with one rank, that keeps it which has it in the
/// archive, else the first process by host, start and process id. A trace without a rank keeps the
/// number that its process has in the archive. The others are numbered, in the order of their
/// processes, after all ranks of the run: those of the traces, of the archive, and of the job.
pub(super) fn number_traces(
    run: &str,
    traces: &[TraceIdentity],
    archive: &BTreeMap<u64, PartitionOwner>,
) -> (Vec<u64>, Option<String>) {
    let mut order: Vec<usize> = (0..traces.len()).collect();
    order.sort_by(|one, other| traces[*one].process_order().cmp(&traces[*other].process_order()));
    let is_own =
        |rank: &u64, trace: usize| archive.get(rank).is_some_and(|owner| owner.is_of(&traces[trace]));
    let mut used = BTreeSet::new();
    let mut numbers: Vec<Option<u64>> = vec![None; traces.len()];
    for takes_own in [true, false] {
        for &trace in &order {
            let rank = traces[trace].rank.filter(|rank| !takes_own || is_own(rank, trace));
            if numbers[trace].is_none() {
                numbers[trace] = rank.filter(|rank| used.insert(*rank));
            }
        }
    }
    for &trace in order.iter().filter(|_| !archive.is_empty()) {
        if numbers[trace].is_none() {
            let own = archive.keys().copied().find(|rank| !used.contains(rank) && is_own(rank, trace));
            numbers[trace] = own.filter(|rank| used.insert(*rank));
        }
    }
    let mut numbered = BTreeSet::new();
    for trace in order {
        let number = numbers[trace].unwrap_or_else(|| next_number(traces, &used, archive));
        used.insert(number);
        numbers[trace] = Some(number);
        if traces[trace].rank != Some(number) {
            numbered.insert(number);
        }
    }
    let note = describe(run, traces.len(), &numbered);
    (numbers.into_iter().flatten().collect(), note)
}

/// The number after all ranks of the run, or a free one if there is none after them.
fn next_number(
    traces: &[TraceIdentity],
    used: &BTreeSet<u64>,
    archive: &BTreeMap<u64, PartitionOwner>,
) -> u64 {
    let after = |last: Option<&u64>| last.map_or(0, |last| last.saturating_add(1));
    let of_job = traces.iter().filter_map(|trace| trace.world_size).max().unwrap_or(0);
    let next = of_job.max(after(used.last())).max(after(archive.keys().next_back()));
    // SQL has no type for more.
    if i64::try_from(next).is_ok() {
        return next;
    }
    let mut candidates = 0..=(used.len() + archive.len()) as u64;
    candidates.find(|number| !used.contains(number) && !archive.contains_key(number)).unwrap_or_default()
}

fn describe(run: &str, traces: usize, numbered: &BTreeSet<u64>) -> Option<String> {
    if numbered.is_empty() || (traces == 1 && numbered.contains(&0)) {
        return None;
    }
    let listed: Vec<String> = numbered.iter().take(MAX_LISTED).map(u64::to_string).collect();
    let more = numbered.len() - listed.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = format!("rank {}{more}", listed.join(", "));
    Some(match (traces, numbered.len()) {
        (1, _) => format!("the trace has no rank; in the run {run} it is {listed}"),
        (_, 1) => format!("1 of {traces} traces has no rank of its own; in the run {run} it is {listed}"),
        (_, many) => {
            format!("{many} of {traces} traces have no rank of their own; in the run {run} they are {listed}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::owner::Owner;
    use crate::folder::tests::identity;

    /// A trace of a process with this id, and the rank that it reported.
    fn trace(pid: u64, rank: Option<u64>) -> TraceIdentity {
        TraceIdentity { rank, ..identity(pid) }
    }

    fn archive(owners: &[(u64, u64)]) -> BTreeMap<u64, PartitionOwner> {
        owners
            .iter()
            .map(|(rank, pid)| (*rank, PartitionOwner::Owned(vec![Owner::of(&identity(*pid))])))
            .collect()
    }

    fn numbers(traces: &[(u64, Option<u64>)], owners: &[(u64, u64)]) -> Vec<u64> {
        let traces: Vec<_> = traces.iter().map(|(pid, rank)| trace(*pid, *rank)).collect();
        number_traces("job", &traces, &archive(owners)).0
    }

    #[test]
    fn reported_ranks_are_kept_and_others_come_after_them() {
        for (traces, expected) in [
            (&[(1, Some(3)), (2, Some(1))][..], &[3, 1][..]),
            (&[(1, None)], &[0]),
            (&[(1, None), (2, Some(0)), (3, None)], &[1, 0, 2]),
            (&[(2, Some(1)), (1, Some(1))], &[2, 1]),
            (&[(3, None), (1, None), (2, None)], &[2, 0, 1]),
            (&[(1, None), (2, Some(i64::MAX as u64))], &[0, i64::MAX as u64]),
        ] {
            assert_eq!(numbers(traces, &[]), expected, "{traces:?}");
        }
        let mut ranked = trace(1, Some(2));
        ranked.world_size = Some(8);
        assert_eq!(number_traces("job", &[ranked, trace(2, None)], &archive(&[])).0, [2, 8]);
    }

    #[test]
    fn processes_keep_their_numbers_in_the_archive() {
        // Two nodes without ranks, one after the other, and again.
        assert_eq!(numbers(&[(3, None), (4, None)], &[(0, 1), (1, 2)]), [2, 3]);
        assert_eq!(numbers(&[(1, None), (2, None)], &[(0, 1), (1, 2), (2, 3), (3, 4)]), [0, 1]);
        // Of two with one rank, the one that has it.
        assert_eq!(numbers(&[(1, Some(5)), (2, Some(5))], &[(5, 2)]), [6, 5]);
        // A reported rank is not moved out of the way of another process: the export is refused.
        assert_eq!(numbers(&[(1, Some(0))], &[(0, 2)]), [0]);
    }

    #[test]
    fn one_note_names_the_numbers() {
        let traces: Vec<_> = (0..20).map(|pid| trace(pid, (pid < 10).then_some(pid))).collect();
        let note = number_traces("job", &traces, &archive(&[])).1.unwrap();
        assert!(note.contains("10 of 20 traces") && note.contains("10, 11, 12"), "{note}");
        assert!(note.contains("17 and 2 more"), "{note}");
        assert_eq!(number_traces("job", &traces[..10], &archive(&[])).1, None);
        assert_eq!(number_traces("job", &traces[10..11], &archive(&[])).1, None);
        assert!(
            number_traces("job", &traces[10..11], &archive(&[(0, 99)]))
                .1
                .unwrap()
                .ends_with("in the run job it is rank 1")
        );
    }
}
