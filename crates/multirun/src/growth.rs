//! Which lines grow on which ranks, and where growth began first.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::trace_summary::{CallSite, LeakSummary, TraceSummary};

/// A line that leaks on at least one rank.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GrowingLine {
    /// The line that a report names for it.
    pub site: CallSite,
    /// The memory that grows: `tensors`, `device`, `pinned_host` or `reserved`.
    pub kind: String,
    /// Indices in the summary's list of traces.
    pub traces: Vec<usize>,
    /// The sum of the bytes on all of them.
    pub bytes: u64,
    /// The largest growth per step on one of them; `null` without steps.
    pub most_bytes_per_step: Option<f64>,
    /// The first step of the growth on any of them; `null` without steps.
    pub first_step: Option<u64>,
}

/// The lines that leak, those on most bytes first.
pub(crate) fn growing_lines(traces: &[TraceSummary]) -> Vec<GrowingLine> {
    let mut lines: BTreeMap<(&str, &str), GrowingLine> = BTreeMap::new();
    for (index, trace) in traces.iter().enumerate() {
        for leak in &trace.leaks {
            let line = lines.entry((&leak.kind, &leak.site.id)).or_insert_with(|| GrowingLine {
                site: leak.site.clone(),
                kind: leak.kind.clone(),
                traces: Vec::new(),
                bytes: 0,
                most_bytes_per_step: None,
                first_step: None,
            });
            if line.traces.last() != Some(&index) {
                line.traces.push(index);
            }
            line.bytes = line.bytes.saturating_add(leak.bytes);
            let rates = line.most_bytes_per_step.into_iter().chain(leak.bytes_per_step);
            line.most_bytes_per_step = rates.reduce(f64::max);
            line.first_step = line.first_step.into_iter().chain(leak.first_step).min();
        }
    }
    let mut lines: Vec<GrowingLine> = lines.into_values().collect();
    lines.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.site.cmp(&other.site)));
    lines
}

/// Where growth of tensors began first.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FirstGrowth {
    /// Index in the summary's list of traces.
    pub trace: usize,
    /// Ordinal of the GPU.
    pub device: u32,
    /// The line that a report names for it.
    pub site: CallSite,
    /// The attempt of the job, from 0. Later attempts were not compared.
    pub attempt: u64,
    /// The first step of the growth.
    pub step: u64,
    /// Its growth per step.
    pub bytes_per_step: Option<f64>,
    /// How many other ranks began in the same step.
    pub others_in_step: u64,
    /// Steps until growth began on another rank; `null` if it never did.
    pub lead_steps: Option<u64>,
    /// How many traces of this attempt have steps. The others were not compared.
    pub compared: u64,
}

/// The first growth, in the first attempt that has any; `None` if no rank leaks, if ranks count
/// steps by different rules, or if attempts are unknown. Ranks start at different times, on clocks
/// that differ; collectives keep the steps of an attempt equal.
pub(crate) fn first_growth(traces: &[TraceSummary], attempts: Option<&[u64]>) -> Option<FirstGrowth> {
    let attempts = attempts.filter(|_| have_equal_steps(traces))?;
    // The first leak of each rank, the largest of those that began in one step.
    let first_of = |trace: &TraceSummary| -> Option<(u64, LeakSummary)> {
        let of_tensors = trace.leaks.iter().filter(|leak| leak.is_of_tensors());
        let begun = of_tensors.filter_map(|leak| Some((leak.first_step?, leak.clone())));
        begun.min_by_key(|(step, leak)| (*step, u64::MAX - leak.bytes))
    };
    let mut begun: Vec<(u64, usize, LeakSummary)> = traces
        .iter()
        .enumerate()
        .filter_map(|(index, trace)| first_of(trace).map(|(step, leak)| (step, index, leak)))
        .collect();
    let attempt = begun.iter().map(|(_, index, _)| attempts[*index]).min()?;
    begun.retain(|(_, index, _)| attempts[*index] == attempt);
    begun.sort_by_key(|(step, index, leak)| (*step, u64::MAX - leak.bytes, *index));
    let (step, trace, leak) = begun.first()?;
    let of_attempt = traces.iter().zip(attempts).filter(|(_, of)| **of == attempt);
    Some(FirstGrowth {
        trace: *trace,
        device: leak.device,
        site: leak.site.clone(),
        attempt,
        step: *step,
        bytes_per_step: leak.bytes_per_step,
        others_in_step: begun.iter().skip(1).filter(|(other, _, _)| other == step).count() as u64,
        lead_steps: begun.get(1).map(|(other, _, _)| other - step),
        compared: of_attempt.filter(|(trace, _)| trace.step_source.is_some()).count() as u64,
    })
}

/// True if there are steps, and all traces that have them find them by the same rule.
pub(crate) fn have_equal_steps(traces: &[TraceSummary]) -> bool {
    let mut sources = traces.iter().filter_map(|trace| trace.step_source.as_ref());
    let first = sources.next();
    first.is_some() && sources.all(|source| Some(source) == first)
}
