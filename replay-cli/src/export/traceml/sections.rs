//! The sections of a summary, from the steps of its ranks.
//!
//! A section has the same metrics in all its blocks; null where they are unknown.

use serde_json::{Map, Value};

use super::steps::CompletedStep;
use crate::export::json_object::{insert, object, uniform_object};

const MEMORY_METRICS: [&str; 2] = ["peak_allocated_bytes", "peak_reserved_bytes"];
const TIME_METRICS: [&str; 14] = [
    "input_wait_ms",
    "step_time_ms",
    "traced_step_time_ms",
    "step_time_cpu_ms",
    "step_time_gpu_ms",
    "traced_step_time_cpu_ms",
    "traced_step_time_gpu_ms",
    "dataloader_fetch_cpu_ms",
    "h2d_ms",
    "compute_ms",
    "residual_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
];

/// The steps of one rank.
pub(super) struct RankSteps {
    /// Number of the rank.
    pub(super) rank: u64,
    pub(super) host: Option<String>,
    pub(super) world_size: Option<u64>,
    /// The steps that all ranks completed, ascending.
    pub(super) steps: Vec<CompletedStep>,
    /// The last step that this rank completed.
    pub(super) latest_step: Option<u32>,
    pub(super) knows_live: bool,
    pub(super) knows_reserved: bool,
}

/// Keeps the steps that all ranks completed.
pub(super) fn align(ranks: &mut [RankSteps]) {
    let first = ranks.iter().filter_map(|rank| rank.steps.first()).map(|step| step.number).max();
    let last = ranks.iter().map(|rank| rank.steps.last().map_or(0, |step| step.number)).min();
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
    for rank in ranks {
        rank.steps.retain(|step| (first..=last).contains(&step.number));
    }
}

/// The peaks of the steps.
pub(super) fn memory_section(ranks: &[RankSteps], issues: Vec<Value>) -> Value {
    let value = |rank: &RankSteps, index: usize| {
        let peak = |step: &CompletedStep| [step.peak.live_bytes, step.peak.reserved_bytes][index] as f64;
        let is_known = [rank.knows_live, rank.knows_reserved][index];
        mean(&rank.steps.iter().map(peak).collect::<Vec<_>>()).filter(|_| is_known)
    };
    section(ranks, &MEMORY_METRICS, &value, ("memory", "bytes"), issues)
}

/// The durations of the steps. Their parts are unknown.
pub(super) fn time_section(ranks: &[RankSteps]) -> Value {
    let value = |rank: &RankSteps, index: usize| {
        let duration_ms = |step: &CompletedStep| step.duration_ns as f64 / 1e6;
        let is_known = matches!(TIME_METRICS[index], "step_time_ms" | "step_time_cpu_ms");
        mean(&rank.steps.iter().map(duration_ms).collect::<Vec<_>>()).filter(|_| is_known)
    };
    let mut section = section(ranks, &TIME_METRICS, &value, ("time", "ms"), Vec::new());
    section["global"]["window"]["diagnosis_clock"] = "cpu".into();
    section
}

/// A section for signals that a trace does not contain.
pub(super) fn unknown_section(index_by: &'static str) -> Value {
    let diagnosis = diagnosis("NO_DATA", "NO DATA", "info", "gpumemtrace does not record this.");
    let mut section = section(&[], &[], &|_, _| None, ("memory", "bytes"), vec![diagnosis]);
    section["global"]["index_by"] = index_by.into();
    section["groups"]["by"] = index_by.into();
    section["units"] = object([]);
    section
}

/// A finding of a section.
pub(super) fn diagnosis(kind: &str, status: &str, severity: &str, summary: &str) -> Value {
    let mut diagnosis = uniform_object(&[
        ("kind", Some(kind)),
        ("status", Some(status)),
        ("severity", Some(severity)),
        ("summary", Some(summary)),
        ("action", None),
        ("metric", None),
        ("phase", None),
        ("score", None),
        ("share_pct", None),
        ("skew_pct", None),
    ]);
    insert(&mut diagnosis, "ranks", Value::Array(Vec::new()));
    insert(&mut diagnosis, "evidence", object([]));
    Value::Object(diagnosis)
}

/// `value` is a rank's mean of the metric with an index in `names`.
fn section(
    ranks: &[RankSteps],
    names: &[&str],
    value: &dyn Fn(&RankSteps, usize) -> Option<f64>,
    (unit_of, unit): (&str, &str),
    issues: Vec<Value>,
) -> Value {
    let steps = ranks.first().map(|rank| rank.steps.as_slice()).unwrap_or_default();
    let used = if steps.is_empty() { &[] } else { ranks };
    let by_metric = |of_metric: &dyn Fn(usize) -> Value| -> Value {
        let mut map = Map::new();
        for (index, name) in names.iter().enumerate() {
            insert(&mut map, name, of_metric(index));
        }
        Value::Object(map)
    };
    let known = |index: usize| -> Vec<(u64, f64)> {
        used.iter().filter_map(|rank| Some((rank.rank, value(rank, index)?))).collect()
    };
    let mut rows = Map::new();
    for rank in used {
        let metrics = by_metric(&|index| value(rank, index).into());
        let row = object([("identity", identity(rank)), ("metrics", metrics)]);
        insert(&mut rows, &rank.rank.to_string(), row);
    }
    let number = |step: Option<&CompletedStep>| Value::from(step.map(|step| step.number));
    let average = |index: usize| mean(&known(index).iter().map(|(_, value)| *value).collect::<Vec<_>>());
    let window = object([
        ("kind", "step_window".into()),
        ("alignment", "common_steps".into()),
        ("samples", Value::Null),
        ("steps_analyzed", steps.len().into()),
        ("start_step", number(steps.first())),
        ("end_step", number(steps.last())),
        ("completed_step", number(steps.last())),
    ]);
    object([
        ("metadata", metadata(ranks, names)),
        ("diagnosis", issues.first().cloned().into()),
        ("issues", issues.into()),
        (
            "global",
            object([
                ("index_by", "global_rank".into()),
                ("window", window),
                ("average", by_metric(&|index| average(index).into())),
                ("median", by_metric(&|index| rank_point(median_rank(&known(index))))),
                ("worst", by_metric(&|index| rank_point(worst_rank(&known(index))))),
            ]),
        ),
        ("groups", object([("by", "global_rank".into()), ("rows", rows.into())])),
        ("units", object([(unit_of, unit.into())])),
        ("card", format!("gpumemtrace: {} steps, {} ranks", steps.len(), ranks.len()).into()),
    ])
}

fn identity(rank: &RankSteps) -> Value {
    object([
        ("global_rank", rank.rank.into()),
        ("local_rank", Value::Null),
        ("node_rank", Value::Null),
        ("hostname", rank.host.clone().into()),
        ("local_world_size", Value::Null),
        ("world_size", rank.world_size.into()),
    ])
}

fn metadata(ranks: &[RankSteps], names: &[&str]) -> Value {
    let latest = ranks.iter().filter_map(|rank| rank.latest_step).max();
    let samples: usize = ranks.iter().map(|rank| rank.steps.len()).sum();
    let latest = latest.map(u64::from);
    let mut metadata = uniform_object(&[
        ("duration_s", None),
        ("samples", Some(samples as u64)),
        ("nodes_expected", None),
        ("nodes_observed", None),
        ("nodes_coverage", None),
        ("nodes_partial", None),
        ("gpus_observed", None),
        ("global_ranks_seen", Some(ranks.len() as u64)),
        ("global_ranks_used", Some(if samples == 0 { 0 } else { ranks.len() as u64 })),
        ("training_total_steps", Some(latest.unwrap_or(0))),
        ("training_latest_step", latest),
    ]);
    insert(&mut metadata, "mode", name_mode(ranks).into());
    insert(&mut metadata, "section_metric_names", names.to_vec().into());
    Value::Object(metadata)
}

/// TraceML's word for the hosts of the ranks.
pub(super) fn name_mode(ranks: &[RankSteps]) -> &'static str {
    let Some(first) = ranks.first().filter(|rank| !rank.steps.is_empty()) else { return "no_data" };
    if ranks.iter().all(|rank| rank.host == first.host) { "single_node" } else { "multi_node" }
}

/// The rank with the value closest to the median. Equal distances: the least value, then the least
/// rank.
fn median_rank(values: &[(u64, f64)]) -> Option<(u64, f64)> {
    let mut sorted: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let median = f64::midpoint(sorted[last / 2], sorted[last.div_ceil(2)]);
    let distance = |value: f64| (value - median).abs();
    values.iter().copied().min_by(|(rank, value), (other_rank, other)| {
        let by_distance = distance(*value).total_cmp(&distance(*other));
        by_distance.then(value.total_cmp(other)).then(rank.cmp(other_rank))
    })
}

/// The rank with the largest value. Equal values: the least rank.
fn worst_rank(values: &[(u64, f64)]) -> Option<(u64, f64)> {
    let order = |(rank, value): &(u64, f64), (other_rank, other): &(u64, f64)| {
        value.total_cmp(other).then(other_rank.cmp(rank))
    };
    values.iter().copied().max_by(|one, other| order(one, other))
}

/// A metric of one rank. The rank is the key of its row.
fn rank_point(point: Option<(u64, f64)>) -> Value {
    object([
        ("value", point.map(|(_, value)| value).into()),
        ("idx", point.map(|(rank, _)| rank.to_string()).into()),
    ])
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::series::Levels;

    #[test]
    fn median_and_worst_rank_break_ties_as_traceml_does() {
        assert_eq!(median_rank(&[]), None);
        assert_eq!(median_rank(&[(0, 3.0), (1, 1.0), (2, 2.0)]), Some((2, 2.0)));
        assert_eq!(median_rank(&[(0, 4.0), (1, 2.0)]), Some((1, 2.0)), "the least value");
        assert_eq!(median_rank(&[(3, 2.0), (1, 2.0)]), Some((1, 2.0)), "the least rank");
        assert_eq!(worst_rank(&[(2, 5.0), (1, 5.0), (0, 4.0)]), Some((1, 5.0)));
    }

    #[test]
    fn ranks_keep_their_common_steps() {
        let step = |number| CompletedStep { number, duration_ns: 1, peak: Levels::default() };
        let rank = |rank, numbers: std::ops::Range<u32>| RankSteps {
            rank,
            host: None,
            world_size: None,
            latest_step: numbers.clone().next_back(),
            steps: numbers.map(step).collect(),
            knows_live: true,
            knows_reserved: true,
        };
        let mut ranks = [rank(0, 1..8), rank(1, 3..6)];
        align(&mut ranks);
        for rank in &ranks {
            assert_eq!(rank.steps.iter().map(|step| step.number).collect::<Vec<_>>(), [3, 4, 5]);
        }
        let mut ranks = [rank(0, 1..8), rank(1, 0..0)];
        align(&mut ranks);
        assert!(ranks.iter().all(|rank| rank.steps.is_empty()));
    }
}
