//! What is missing from an archive of runs, and what of its versions was not compared.

use gpumemtrace_multirun::{
    ArchiveGrowth, ArchivedRun, JobReport, Outcome, PairOutcome, Regression, RunArchive,
};

use super::job_words::{describe_run_gaps, list_names};
use crate::terminal::escape::escape_text;
use crate::terminal::format::format_count;

/// Letters of a commit, as git shortens it.
const COMMIT_CHARS: usize = 8;
/// Most incomplete traces that are named of each run.
const MAX_TRACES: usize = 1;

/// What is missing, in sentences without a full stop; at most `limit` about single runs.
pub(crate) fn describe_archive_gaps(archive: &RunArchive, limit: usize) -> Vec<String> {
    let mut gaps = Vec::new();
    let mut name_runs = |names: &[String], what: &str| {
        if !names.is_empty() {
            let count = format_count(names.len() as u64, "run");
            let names = list_names(names.iter().map(|name| escape_text(name)), names.len());
            gaps.push(format!("{count} {what}: {names}"));
        }
    };
    name_runs(&archive.without_summary, "without a summary, to be exported again");
    name_runs(&archive.unreadable, "without a readable summary");
    let incomplete: Vec<&ArchivedRun> = archive.shown().rev().filter(|run| !run.is_complete()).collect();
    for run in incomplete.iter().take(limit) {
        let missing = describe_run_gaps(run, &JobReport::of(&run.summary), MAX_TRACES);
        gaps.push(format!("{}: {}", escape_text(&run.name), missing.join("; ")));
    }
    if let Some(more) = incomplete.len().checked_sub(limit).filter(|more| *more > 0) {
        gaps.push(format!("{} incomplete", format_count(more as u64, "more run")));
    }
    gaps
}

/// The versions that were not compared, or in part, in sentences without a full stop.
pub(crate) fn describe_growth_gaps(growth: &ArchiveGrowth, archive: &RunArchive) -> Vec<String> {
    let mut gaps = Vec::new();
    for (outcome, what) in [
        (
            PairOutcome::NoWholeTrace,
            "not compared, because no version before has a complete trace that ended normally",
        ),
        (PairOutcome::NoCommonRank, "not compared, because the one before has other ranks"),
        (PairOutcome::NoKnownPeak, "not compared, because the peak of each GPU is unknown, then or before"),
        (
            PairOutcome::SomeRanks,
            "compared in some ranks only, because the others are not in both, or not complete before",
        ),
    ] {
        let found: Vec<_> = growth.pairs.iter().filter(|pair| pair.outcome == outcome).collect();
        if !found.is_empty() {
            let names =
                list_names(found.iter().map(|pair| name_version(&archive.runs[pair.after])), found.len());
            gaps.push(format!("{} {what}: {names}", format_count(found.len() as u64, "version")));
        }
    }
    if !growth.unplaced.is_empty() {
        let names = growth.unplaced.iter().map(|index| escape_text(&archive.runs[*index].name));
        let count = format_count(growth.unplaced.len() as u64, "run");
        let names = list_names(names, growth.unplaced.len());
        gaps.push(format!("{count} not compared, because the program or the start is unknown: {names}"));
    }
    gaps
}

/// What is known if no function grew.
pub(crate) fn describe_no_growth(growth: &ArchiveGrowth) -> &'static str {
    let compared = growth.pairs.iter().filter(|pair| pair.outcome.is_compared()).count();
    if growth.pairs.is_empty() {
        "No program has two versions to compare."
    } else if compared == 0 {
        "Growth between versions is unknown."
    } else if compared < growth.pairs.len() {
        "No function is known to have grown by 5% and 1 MiB between the versions that were compared."
    } else {
        "No function is known to have grown by 5% and 1 MiB between versions."
    }
}

/// The line that grew most, or the lines that grew alike, and where the function was before.
pub(crate) fn describe_lines(regression: &Regression) -> String {
    let lines = list_names(regression.lines.iter().cloned(), regression.lines.len());
    if regression.moved_from.is_empty() {
        return lines;
    }
    let before = list_names(regression.moved_from.iter().cloned(), regression.moved_from.len());
    format!("{lines} (moved from {before})")
}

/// How a run ended, in a few words.
pub(crate) fn name_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::OutOfMemory => "out of memory",
        // The error may have ended the process.
        Outcome::OutOfMemoryUnknownEnd => "OOM, unknown",
        Outcome::Crashed => "crashed",
        Outcome::ErrorExit => "failed",
        Outcome::Killed => "killed",
        Outcome::Unknown => "unknown",
        Outcome::Unfinished => "running",
        Outcome::OutOfMemoryCaught => "OOM caught",
        Outcome::Exited => "normally",
    }
}

/// The commit of a run, else its name.
pub(crate) fn name_version(run: &ArchivedRun) -> String {
    run.git_commit().map_or_else(|| escape_text(&run.name), short_commit)
}

pub(crate) fn short_commit(commit: &str) -> String {
    escape_text(&commit.chars().take(COMMIT_CHARS).collect::<String>())
}
