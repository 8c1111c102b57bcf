//! Names of ranks and lists of them, and what is missing from a summary of many.

use gpumemtrace_multirun::{ArchivedRun, CallSite, JobReport, TraceSummary, WorstFinding};

use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::paths::shorten_paths_in;

/// Most ranks that a sentence names.
const MAX_NAMED: usize = 8;

/// What is missing, in sentences without a full stop; at most `limit` about single traces.
pub(crate) fn describe_gaps(job: &JobReport, limit: usize) -> Vec<String> {
    let mut gaps = Vec::new();
    if !job.unreadable.is_empty() {
        gaps.push(format!("{} cannot be read", format_count(job.unreadable.len() as u64, "trace")));
    }
    gaps.extend(describe_missing_ranks(&job.missing_ranks));
    if !job.repeated_ranks.is_empty() {
        let ranks = list_ranks(&job.repeated_ranks);
        gaps.push(format!("several traces of one rank, of restarts or of several jobs: {ranks}"));
    }
    for incomplete in job.incomplete.iter().take(limit) {
        let name = name_rank(&job.traces[incomplete.trace], job);
        let missing = escape_text(&incomplete.missing.join("; "));
        gaps.push(format!("{name} is incomplete: {missing}"));
    }
    if let Some(more) = job.incomplete.len().checked_sub(limit).filter(|more| *more > 0) {
        gaps.push(format!("{} incomplete", format_count(more as u64, "more trace")));
    }
    gaps
}

/// `4 ranks without a trace: …`; `None` if no rank is missing.
pub(crate) fn describe_missing_ranks(ranks: &[u64]) -> Option<String> {
    let count = format_count(ranks.len() as u64, "rank");
    (!ranks.is_empty()).then(|| format!("{count} without a trace: {}", list_ranks(ranks)))
}

/// [`describe_gaps`] of a run in an archive.
pub(crate) fn describe_run_gaps(run: &ArchivedRun, job: &JobReport, limit: usize) -> Vec<String> {
    let mut gaps = describe_gaps(job, limit);
    if !run.ranks_without_summary.is_empty() {
        let ranks = list_ranks(&run.ranks_without_summary);
        let count = format_count(run.ranks_without_summary.len() as u64, "rank");
        gaps.push(format!("{count} without a summary, to be exported again: {ranks}"));
    }
    gaps
}

/// `rank 3`, and its host if there are several; else the process, else the path.
pub(crate) fn name_rank(trace: &TraceSummary, job: &JobReport) -> String {
    let name = match (trace.rank, trace.process.pid) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => return escape_text(&trace.path),
    };
    match &trace.process.host {
        Some(host) if job.hosts.len() > 1 => format!("{name} on {}", escape_text(host)),
        _ => name,
    }
}

/// [`name_rank`], and the GPU if the process used several.
pub(crate) fn name_device(trace: &TraceSummary, device: u32, job: &JobReport) -> String {
    let name = name_rank(trace, job);
    if trace.devices.len() > 1 { format!("{name}, GPU {device}") } else { name }
}

/// The number of an attempt from 1, if there are several.
pub(crate) fn attempt_number(attempt: Option<u64>, job: &JobReport) -> Option<String> {
    let is_one_of_several = job.attempts.is_some_and(|attempts| attempts > 1);
    attempt.filter(|_| is_one_of_several).map(|attempt| format_number(attempt + 1))
}

pub(crate) fn short_text(site: &CallSite) -> String {
    shorten_paths_in(&site.text)
}

pub(crate) fn list_names(names: impl Iterator<Item = String>, count: usize) -> String {
    let shown: Vec<String> = names.take(MAX_NAMED).collect();
    let more = count.saturating_sub(shown.len());
    let more = if more > 0 { format!(" and {} more", format_number(more as u64)) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn list_ranks(ranks: &[u64]) -> String {
    list_names(ranks.iter().map(|rank| format_number(*rank)), ranks.len())
}

/// The most severe finding of all ranks, with the rank if there are several.
pub(crate) fn worst_finding(job: &JobReport) -> Option<WorstFinding> {
    let (trace, worst) = job.worst_finding()?;
    let trace = &job.traces[trace];
    let mut worst = worst.clone();
    if job.traces.len() > 1 {
        worst.summary = format!("{}: {}", name_rank(trace, job), worst.summary);
    }
    Some(worst)
}
