//! Attempts of a job that was restarted. Steps begin again in each, so only steps of one attempt
//! are compared.

use std::collections::{BTreeMap, BTreeSet};

use crate::trace_summary::TraceSummary;

/// The attempt of each trace, from 0; all 0 without ranks that have several traces.
///
/// An attempt starts after all traces of the one before have ended. `None` if times do not separate
/// attempts: the start or the end of a trace is unknown, traces of one rank overlap in time, or the
/// lowest rank is not in each attempt, as with clocks that differ by more than a run.
pub(crate) fn attempts(traces: &[TraceSummary]) -> Option<Vec<u64>> {
    let mut of_trace = vec![0; traces.len()];
    if !has_repeated_rank(traces.iter()) {
        return Some(of_trace);
    }
    let times_of = |(index, trace): (usize, &TraceSummary)| {
        let start = trace.process.started_unix_ns?;
        Some((start, start.checked_add(trace.duration_ns?)?, index))
    };
    let mut times = traces.iter().enumerate().map(times_of).collect::<Option<Vec<_>>>()?;
    times.sort_unstable();
    let (mut attempt, mut all_ended) = (0, 0);
    for (start, end, index) in times {
        if start >= all_ended && all_ended > 0 {
            attempt += 1;
        }
        all_ended = all_ended.max(end);
        of_trace[index] = attempt;
    }
    let lowest = traces.iter().filter_map(|trace| trace.rank).min();
    let is_whole = (0..=attempt).all(|one| {
        let these = || traces.iter().zip(&of_trace).filter(|(_, of)| **of == one).map(|(trace, _)| trace);
        !has_repeated_rank(these()) && these().any(|trace| trace.rank == lowest)
    });
    is_whole.then_some(of_trace)
}

/// For each trace, true if its rank was started again after it had ended: only the last process of
/// a rank counts. `gpumemtrace.sql` has the same rule (`questions/failed_runs.sql`).
pub(crate) fn superseded(traces: &[TraceSummary]) -> Vec<bool> {
    let mut starts: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for trace in traces {
        if let Some((rank, start)) = trace.rank.zip(trace.process.started_unix_ns) {
            starts.entry(rank).or_default().push(start);
        }
    }
    let is_superseded = |trace: &TraceSummary| {
        let (rank, start) = trace.rank.zip(trace.process.started_unix_ns)?;
        let end = start.checked_add(trace.duration_ns?)?;
        Some(starts.get(&rank)?.iter().any(|other| *other > start && *other >= end))
    };
    traces.iter().map(|trace| is_superseded(trace).unwrap_or(false)).collect()
}

fn has_repeated_rank<'a>(traces: impl Iterator<Item = &'a TraceSummary>) -> bool {
    let mut seen = BTreeSet::new();
    let mut ranks = traces.filter_map(|trace| trace.rank);
    ranks.any(|rank| !seen.insert(rank))
}
