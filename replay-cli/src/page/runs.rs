//! The page of many ranks, or of many runs: `web/src/runs/page_data.ts` has its types.
//!
//! The page has a row for each run, and for each rank of the latest runs, so its size depends on
//! the number of ranks and not on that of events.

use gpumemtrace_multirun::{
    ArchiveGrowth, ArchivedRun, DeviceSummary, GpuChoice, JobReport, Regression, RunArchive, TraceSummary,
    WorstFinding,
};
use gpumemtrace_replay::Spread;
use serde::Serialize;

use super::document::{Bundle, Document, PageBlobs};
use crate::render::history_words::{describe_archive_gaps, describe_growth_gaps, describe_lines};
use crate::render::job_words::{
    attempt_number, describe_run_gaps, list_names, name_device, name_rank, short_text, worst_finding,
};
use crate::render::text::render_job;
use crate::render::wording::sentence;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_utc};
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

/// Most ranks of all runs together that the page shows one by one.
const MAX_RANKS: usize = 10_000;
/// Most leaks, errors and missing parts of a run, and most functions that grew.
const MAX_ROWS: usize = 200;

#[derive(Serialize)]
struct RunsPage {
    version: u32,
    headline: RunsHeadline,
    notes: Vec<String>,
    runs: Vec<RunRow>,
    regressions: Vec<RegressionRow>,
}

#[derive(Serialize)]
struct RunsHeadline {
    severity: String,
    verdict: String,
    program: String,
}

#[derive(Serialize)]
struct RunRow {
    name: String,
    started_unix_ns: Option<u64>,
    started: Option<String>,
    git_commit: Option<String>,
    program: Option<String>,
    torch: Option<String>,
    traces: usize,
    hosts: usize,
    peak: Option<Spread>,
    finding: Option<WorstFinding>,
    missing: Vec<String>,
    lines: Vec<LineRow>,
    ooms: Vec<OomRow>,
    ranks: Option<Vec<RankCells>>,
    text: String,
}

#[derive(Serialize)]
struct LineRow {
    line: String,
    kind: String,
    ranks: usize,
    names: String,
    bytes: u64,
    bytes_per_step: Option<f64>,
    first_step: Option<u64>,
}

#[derive(Serialize)]
struct OomRow {
    rank: String,
    line: String,
    step: Option<u64>,
    requested_bytes: u64,
}

#[derive(Serialize)]
struct RankCells {
    name: String,
    rank: Option<u64>,
    path: String,
    host: Option<String>,
    end: String,
    steps: Option<u64>,
    duration_ns: Option<u64>,
    total_bytes: Option<u64>,
    peak_live_bytes: Option<u64>,
    peak_reserved_bytes: Option<u64>,
    finding: Option<WorstFinding>,
    live_bytes: Vec<Option<u64>>,
}

#[derive(Serialize)]
struct RegressionRow {
    program: String,
    before: String,
    after: String,
    before_commit: Option<String>,
    after_commit: Option<String>,
    line: String,
    before_bytes: u64,
    after_bytes: u64,
}

/// Makes the page of runs in the order of their start; at least one. `text` is for browsers
/// without JavaScript.
pub(crate) fn make_runs_page(
    title: &str,
    archive: &RunArchive,
    growth: &ArchiveGrowth,
    text: &str,
) -> anyhow::Result<String> {
    let (runs, regressions) = (&archive.runs, &growth.regressions);
    let mut ranks_left = MAX_RANKS;
    let mut rows: Vec<RunRow> = archive.shown().rev().map(|run| run_row(run, &mut ranks_left)).collect();
    rows.reverse();
    let without_ranks = rows.iter().filter(|row| row.ranks.is_none()).count();
    let mut notes = archive_notes(archive, growth);
    if without_ranks > 0 {
        notes.push(format!(
            "This page shows {} GPUs individually. It has no map and no table of ranks for {}: for these, make a \
             page of one run (history --html FILE --run NAME).",
            MAX_RANKS - ranks_left,
            format_count(without_ranks as u64, "older run")
        ));
    }
    if let Some(more) = regressions.len().checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        notes.push(format!(
            "Not shown: {} that grew in earlier versions.",
            format_count(more as u64, "function")
        ));
    }
    let page = RunsPage {
        version: 1,
        headline: headline(&rows),
        notes,
        regressions: regressions.iter().take(MAX_ROWS).map(|one| regression_row(one, runs)).collect(),
        runs: rows,
    };
    let json = super::escape_names(&serde_json::to_string(&page)?);
    let document = Document::new(Bundle::RUNS, &escape_text(title), text, json.as_bytes());
    Ok(document.to_html(&PageBlobs::default()))
}

/// What is missing from the runs, and which versions were not compared. A page of a single run
/// shows what that lacks beside its ranks.
fn archive_notes(archive: &RunArchive, growth: &ArchiveGrowth) -> Vec<String> {
    let limit = if archive.shown().count() > 1 { MAX_ROWS } else { 0 };
    let gaps = if limit > 0 || !archive.without_summary.is_empty() || !archive.unreadable.is_empty() {
        describe_archive_gaps(archive, limit)
    } else {
        Vec::new()
    };
    let mut notes: Vec<String> =
        gaps.iter().chain(&describe_growth_gaps(growth, archive)).map(|gap| sentence(gap)).collect();
    if growth.regressions.iter().any(|one| one.before_is_bound || one.after_is_bound) {
        notes.push(
            "A summary keeps the largest call sites only: the growth of a function is the least that is \
             certain."
                .to_owned(),
        );
    }
    let partly = growth.regressions.iter().filter(|one| !one.after_is_whole).count();
    if partly > 0 {
        let count = format_count(partly as u64, "function");
        notes.push(format!("{count} grew in a run that is incomplete or did not end normally."));
    }
    notes
}

/// The most severe finding of the latest run, or how many runs have critical ones.
fn headline(rows: &[RunRow]) -> RunsHeadline {
    let is_critical =
        |row: &&RunRow| row.finding.as_ref().is_some_and(|finding| finding.severity == "critical");
    let critical = rows.iter().filter(is_critical).count();
    let latest = rows.last();
    let finding = latest.and_then(|row| row.finding.clone());
    let (severity, verdict) = match finding {
        _ if rows.len() > 1 && critical > 0 => (
            "critical".to_owned(),
            format!("{} of {} have critical findings", critical, format_count(rows.len() as u64, "run")),
        ),
        _ if rows.len() > 1 => ("info".to_owned(), "No run has a critical finding".to_owned()),
        Some(finding) => (finding.severity, finding.summary),
        None => ("info".to_owned(), "No findings".to_owned()),
    };
    let program = latest.map_or_else(String::new, |row| {
        let hosts = format_count(row.hosts as u64, "host");
        let program = row.program.as_deref().unwrap_or("unknown program");
        format!("{} on {hosts}: {program}", format_count(row.traces as u64, "trace"))
    });
    RunsHeadline { severity, verdict, program }
}

fn run_row(run: &ArchivedRun, ranks_left: &mut usize) -> RunRow {
    let job = JobReport::of(&run.summary);
    let devices: usize = job.traces.iter().map(|trace| trace.devices.len()).sum();
    let has_ranks = devices <= *ranks_left;
    if has_ranks {
        *ranks_left -= devices;
    }
    let started_unix_ns = run.started_unix_ns();
    RunRow {
        name: run.name.clone(),
        started_unix_ns,
        started: started_unix_ns.map(format_utc),
        git_commit: run.git_commit().map(str::to_owned),
        program: run.program().map(|program| shorten_paths_in(&program)),
        torch: run.common(|trace| trace.torch.as_deref()).map(str::to_owned),
        traces: job.traces.len(),
        hosts: job.hosts.len(),
        peak: job.peak_live.clone(),
        finding: worst_finding(&job),
        missing: describe_run_gaps(run, &job, MAX_ROWS),
        lines: line_rows(&job),
        ooms: oom_rows(&job),
        ranks: has_ranks.then(|| rank_rows(&job)),
        text: render_job(&job, Style::for_files()),
    }
}

fn line_rows(job: &JobReport) -> Vec<LineRow> {
    let rows = job.lines.iter().take(MAX_ROWS).map(|line| {
        let names = line.traces.iter().map(|trace| name_rank(&job.traces[*trace], job));
        LineRow {
            line: short_text(&line.site),
            kind: line.kind.clone(),
            ranks: line.traces.len(),
            names: list_names(names, line.traces.len()),
            bytes: line.bytes,
            bytes_per_step: line.most_bytes_per_step,
            first_step: line.first_step,
        }
    });
    rows.collect()
}

fn oom_rows(job: &JobReport) -> Vec<OomRow> {
    let rows = job.ooms.iter().take(MAX_ROWS).map(|oom| {
        let name = name_device(&job.traces[oom.trace], oom.error.device, job);
        OomRow {
            rank: match attempt_number(oom.attempt, job) {
                Some(number) => format!("{name} (attempt {number})"),
                None => name,
            },
            line: short_text(&oom.error.site),
            step: oom.error.step,
            requested_bytes: oom.error.requested_bytes,
        }
    });
    rows.collect()
}

fn rank_rows(job: &JobReport) -> Vec<RankCells> {
    let devices = job.traces.iter().flat_map(|trace| trace.devices.iter().map(move |each| (trace, each)));
    devices.map(|(trace, device)| rank_row(trace, device, job)).collect()
}

fn rank_row(trace: &TraceSummary, device: &DeviceSummary, job: &JobReport) -> RankCells {
    RankCells {
        name: name_device(trace, device.device, job),
        rank: trace.rank,
        path: escape_text(&trace.path),
        host: trace.process.host.clone(),
        end: trace.end.clone().unwrap_or_else(|| "unknown".to_owned()),
        steps: trace.steps,
        duration_ns: trace.duration_ns,
        total_bytes: device.total_bytes,
        peak_live_bytes: device.peak_live_bytes,
        peak_reserved_bytes: device.peak_reserved_bytes,
        finding: trace.worst_finding.clone(),
        live_bytes: device.live_bytes_over_time.clone(),
    }
}

fn regression_row(regression: &Regression, runs: &[ArchivedRun]) -> RegressionRow {
    let (before, after) = (&runs[regression.before], &runs[regression.after]);
    RegressionRow {
        program: shorten_paths_in(&regression.program),
        before: before.name.clone(),
        after: after.name.clone(),
        before_commit: before.git_commit().map(str::to_owned),
        after_commit: after.git_commit().map(str::to_owned),
        line: shorten_paths_in(&describe_lines(regression))
            + if regression.chosen == GpuChoice::Most { " (on the GPU with the most)" } else { "" },
        before_bytes: regression.before_bytes,
        after_bytes: regression.after_bytes,
    }
}
