//! All ranks of a summary together.

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_replay::Spread;
use schemars::JsonSchema;
use serde::Serialize;

use crate::attempts::{attempts, superseded};
use crate::growth::{FirstGrowth, GrowingLine, first_growth, growing_lines, have_equal_steps};
use crate::summary::{Summary, UnreadableTrace};
use crate::trace_summary::{DeviceSummary, OomSummary, TraceSummary, WorstFinding};

/// What the traces of a summary say together. Sizes are bytes; unknown values are `null`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace job", extend("$id" = "urn:gpumemtrace:job:1"))]
pub struct JobReport {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.job"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The traces, by rank.
    pub traces: Vec<TraceSummary>,
    /// Traces that could not be read.
    pub unreadable: Vec<UnreadableTrace>,
    /// Traces that lack something.
    pub incomplete: Vec<IncompleteTrace>,
    /// The largest number of ranks that a trace names; `null` if none does.
    pub world_size: Option<u64>,
    /// Ranks of it without a trace.
    pub missing_ranks: Vec<u64>,
    /// Ranks with more than one trace: restarts, or several jobs.
    pub repeated_ranks: Vec<u64>,
    /// The number of attempts of the job: 1 unless ranks have several traces. `null` if the times
    /// of the traces do not separate them.
    pub attempts: Option<u64>,
    /// PyTorch's peak of `memory_allocated()`, of each GPU of the last process of each rank.
    pub peak_live: Option<Spread>,
    /// PyTorch's peak of `memory_reserved()`, likewise.
    pub peak_reserved: Option<Spread>,
    /// GPUs with a much higher or lower peak of `memory_allocated()`, the furthest first.
    pub outliers: Vec<Outlier>,
    /// Whether all traces with steps count them by the same rule, so that they can be compared.
    pub have_equal_steps: bool,
    /// Where growth began first, in the first attempt with growth. `null` if nothing leaks, or if
    /// steps or attempts cannot be compared.
    pub first_growth: Option<FirstGrowth>,
    /// The lines that leak, with most bytes first.
    pub lines: Vec<GrowingLine>,
    /// Out-of-memory errors, by attempt and step. Without `attempts`, the first one is unknown.
    pub ooms: Vec<RankOom>,
    /// Each host, by name; empty if no trace names one.
    pub hosts: Vec<HostRow>,
}

/// A GPU whose peak differs from the others.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Outlier {
    /// Index in the summary's list of traces.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// Its value, in bytes.
    pub bytes: u64,
    /// Its value divided by the median, minus 1.
    pub excess: f64,
}

/// A trace that lacks something, or was not closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct IncompleteTrace {
    /// Index in the list of traces.
    pub trace: usize,
    /// What is missing, as sentences.
    pub missing: Vec<String>,
}

/// An out-of-memory error of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RankOom {
    /// Index in the list of traces.
    pub trace: usize,
    /// The attempt of the job, from 0; `null` if it is unknown.
    pub attempt: Option<u64>,
    /// The error, with its step and size.
    #[serde(flatten)]
    pub error: OomSummary,
}

/// The ranks of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct HostRow {
    /// The name of the host.
    pub host: String,
    /// The number of traces.
    pub traces: u64,
    /// The largest peak of `memory_allocated()`.
    pub most_peak_live_bytes: Option<u64>,
    /// The number of traces with a leak.
    pub leaking: u64,
    /// The number of traces with an out-of-memory error.
    pub out_of_memory: u64,
}

impl JobReport {
    /// The most severe finding of all ranks, and the index of its trace.
    #[must_use]
    pub fn worst_finding(&self) -> Option<(usize, &WorstFinding)> {
        let order = ["info", "warning", "critical"];
        let place = |finding: &WorstFinding| order.iter().position(|severity| *severity == finding.severity);
        let found = self.traces.iter().enumerate();
        let found = found.filter_map(|(trace, one)| Some((trace, one.worst_finding.as_ref()?)));
        // The first of equal ones: `max_by_key` takes the last.
        found.rev().max_by_key(|(_, finding)| place(finding))
    }

    /// True if nothing is missing: no rank, no trace, and no part of a trace.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.lacks_only_ranks() && self.missing_ranks.is_empty()
    }

    /// True if nothing is missing but ranks.
    #[must_use]
    pub fn lacks_only_ranks(&self) -> bool {
        self.unreadable.is_empty() && self.incomplete.is_empty()
    }

    /// Compares the ranks of a summary.
    #[must_use]
    pub fn of(summary: &Summary) -> Self {
        let traces = summary.traces();
        let superseded = superseded(traces);
        let last = || traces.iter().zip(&superseded).filter(|(_, is_superseded)| !**is_superseded);
        let peaks = |of: fn(&DeviceSummary) -> Option<u64>| {
            Spread::from_values(last().flat_map(|(trace, _)| &trace.devices).filter_map(of).collect())
        };
        let peak_live = peaks(|device| device.peak_live_bytes);
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for rank in traces.iter().filter_map(|trace| trace.rank) {
            *seen.entry(rank).or_default() += 1;
        }
        let attempts = attempts(traces);
        let lacking = traces.iter().enumerate().filter(|(_, trace)| !trace.missing.is_empty());
        Self {
            schema: "gpumemtrace.job",
            version: 1,
            unreadable: summary.unreadable().to_vec(),
            incomplete: lacking
                .map(|(trace, of)| IncompleteTrace { trace, missing: of.missing.clone() })
                .collect(),
            world_size: world_size(traces),
            missing_ranks: missing_ranks_of(traces),
            repeated_ranks: seen.into_iter().filter(|(_, count)| *count > 1).map(|(rank, _)| rank).collect(),
            attempts: attempts.as_ref().map(|of| of.iter().max().map_or(0, |last| last + 1)),
            peak_reserved: peaks(|device| device.peak_reserved_bytes),
            outliers: peak_live
                .as_ref()
                .map(|spread| outliers(traces, &superseded, spread))
                .unwrap_or_default(),
            peak_live,
            have_equal_steps: have_equal_steps(traces),
            first_growth: first_growth(traces, attempts.as_deref()),
            lines: growing_lines(traces),
            ooms: ooms(traces, attempts.as_deref()),
            hosts: hosts(traces),
            traces: traces.to_vec(),
        }
    }
}

/// Most ranks that a job may have for its missing ranks to be listed: a trace may be damaged.
const MAX_WORLD: u64 = 1 << 20;

fn world_size(traces: &[TraceSummary]) -> Option<u64> {
    traces.iter().filter_map(|trace| trace.world_size).max()
}

/// The ranks of the largest world size that a trace names, without a trace.
pub(crate) fn missing_ranks_of(traces: &[TraceSummary]) -> Vec<u64> {
    missing_ranks(world_size(traces), &traces.iter().filter_map(|trace| trace.rank).collect())
}

/// Ranks without a trace. Empty if the size of the job is unknown.
pub(crate) fn missing_ranks(world_size: Option<u64>, seen: &BTreeSet<u64>) -> Vec<u64> {
    let known = world_size.filter(|size| *size <= MAX_WORLD);
    (0..known.unwrap_or(0)).filter(|rank| !seen.contains(rank)).collect()
}

fn outliers(traces: &[TraceSummary], superseded: &[bool], spread: &Spread) -> Vec<Outlier> {
    let mut found = Vec::new();
    // Of a median of 0, there is no share.
    if spread.median_bytes == 0 {
        return found;
    }
    for (trace, one) in traces.iter().enumerate().filter(|(trace, _)| !superseded[*trace]) {
        for device in &one.devices {
            let Some(bytes) = device.peak_live_bytes else { continue };
            if spread.is_outlier(bytes) {
                found.push(Outlier { trace, device: device.device, bytes, excess: spread.excess(bytes) });
            }
        }
    }
    found.sort_by(|one, other| {
        other.excess.abs().total_cmp(&one.excess.abs()).then(one.trace.cmp(&other.trace))
    });
    found
}

/// Steps of ranks can be compared within an attempt, their clocks cannot.
fn ooms(traces: &[TraceSummary], attempts: Option<&[u64]>) -> Vec<RankOom> {
    let errors_of = |(trace, one): (usize, &TraceSummary)| -> Vec<RankOom> {
        let attempt = attempts.map(|of| of[trace]);
        one.ooms.iter().map(|error| RankOom { trace, attempt, error: error.clone() }).collect()
    };
    let mut all: Vec<RankOom> = traces.iter().enumerate().flat_map(errors_of).collect();
    all.sort_by_key(|oom| (oom.attempt, oom.error.step.unwrap_or(u64::MAX), oom.error.time_ns, oom.trace));
    all
}

fn hosts(traces: &[TraceSummary]) -> Vec<HostRow> {
    let mut rows: BTreeMap<&str, HostRow> = BTreeMap::new();
    for trace in traces {
        let Some(host) = trace.process.host.as_deref() else { continue };
        let row = rows.entry(host).or_insert_with(|| HostRow {
            host: host.to_owned(),
            traces: 0,
            most_peak_live_bytes: None,
            leaking: 0,
            out_of_memory: 0,
        });
        row.traces += 1;
        let peaks = trace.devices.iter().filter_map(|device| device.peak_live_bytes);
        row.most_peak_live_bytes = row.most_peak_live_bytes.into_iter().chain(peaks).max();
        row.leaking += u64::from(!trace.leaks.is_empty());
        row.out_of_memory += u64::from(!trace.ooms.is_empty());
    }
    rows.into_values().collect()
}
