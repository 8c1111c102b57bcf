//! The format `traceml`: the final summary of TraceML, schema version 1.9.
//!
//! `traceml compare` needs all four sections, and `traceml view` a text.

mod sections;
mod steps;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{AssessmentStatus, LeakKind};

use crate::export::json_object::object;
use crate::export::series::KnownSeries;
use crate::export::{ExportJob, Exporter, FormatOptions};
use crate::render::OutputFormat;
use crate::render::json::write_json;
use crate::render::wording::assessment::{describe_assessment, find_assessment};
use crate::render::wording::leaks::growth::format_rate;
use crate::render::wording::leaks::label_leak;
use crate::render::wording::sites::format_site;
use crate::terminal::format::{format_count, format_number, format_utc};
use crate::terminal::units::format_bytes;
use sections::{RankSteps, align, diagnosis, memory_section, name_mode, time_section, unknown_section};
use serde_json::Value;
use steps::{MAX_STEPS, read_steps};

const SCHEMA_VERSION: f64 = 1.9;

/// The format `traceml`: means over the steps of each rank.
pub(crate) struct TracemlExporter;

impl OutputFormat for TracemlExporter {
    fn name(&self) -> &'static str {
        "traceml"
    }

    fn help(&self) -> &'static str {
        "Final summary for TraceML (JSON, schema version 1.9)"
    }
}

impl Exporter for TracemlExporter {
    fn suffix(&self) -> &'static str {
        ".traceml.json"
    }

    fn shows_leaks(&self, _options: &FormatOptions) -> bool {
        true
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let numbers = rank_numbers(job);
        let mut ranks = Vec::new();
        for (trace, number) in numbers.into_iter().enumerate() {
            ranks.push(rank_steps(job, trace, number)?);
        }
        // TraceML lists ranks by number.
        ranks.sort_by_key(|rank| rank.rank);
        align(&mut ranks);
        if ranks.iter().any(|rank| rank.steps.is_empty()) {
            job.notes.push(
                "no completed steps, so TraceML shows no memory; mark steps with gpumemtrace.step()"
                    .to_owned(),
            );
        }
        let issues = memory_issues(job);
        let report = &job.report;
        let first = &report.traces[0];
        let spans = || job.runs.iter().map(|run| run.window.span_ns);
        let duration_ns = spans().map(|(begin_ns, end_ns)| end_ns - begin_ns).max();
        let end_ns = first.started_unix_ns.zip(spans().next());
        let meta = object([
            ("run_name", file_name(&first.path).into()),
            ("mode", name_mode(&ranks).into()),
            ("world_size", first.world_size.unwrap_or(ranks.len() as u64).into()),
            ("nodes_observed", Value::Null),
            ("gpus_observed", ranks.iter().filter(|rank| rank.knows_live).count().into()),
        ]);
        let text = summary_text(report, &ranks, &issues);
        let summary = object([
            ("schema_version", SCHEMA_VERSION.into()),
            // The end of the exported part, so that equal traces give equal files.
            (
                "generated_at",
                end_ns.map(|(start_ns, (_, end_ns))| format_utc(start_ns.saturating_add(end_ns))).into(),
            ),
            ("duration_s", duration_ns.map(|duration_ns| duration_ns as f64 / 1e9).into()),
            ("analysis_window", Value::Null),
            ("meta", meta),
            ("run_context", object([])),
            ("primary_diagnosis", Value::Null),
            ("system", unknown_section("node_rank")),
            ("process", unknown_section("global_rank")),
            ("step_time", time_section(&ranks)),
            ("step_memory", memory_section(&ranks, issues)),
            ("text", text.into()),
        ]);
        Ok(write_json(&summary, out)?)
    }
}

/// The number of each run's rank. Where they are unknown, the runs are numbered in their order.
fn rank_numbers(job: &mut ExportJob) -> Vec<u64> {
    let traces = &job.report.traces;
    let known: BTreeSet<u64> = traces.iter().filter_map(|info| info.rank).collect();
    if known.len() == traces.len() {
        return traces.iter().filter_map(|info| info.rank).collect();
    }
    if traces.len() > 1 {
        job.notes.push("the traces have no distinct ranks; they are numbered in the given order".to_owned());
    }
    (0..traces.len() as u64).collect()
}

/// The steps of one run on its main device.
fn rank_steps(job: &mut ExportJob, trace: usize, rank: u64) -> anyhow::Result<RankSteps> {
    let info = &job.report.traces[trace];
    let with_torch = job.report.devices.iter().filter(|device| device.trace == trace);
    let mut devices: Vec<_> =
        with_torch.filter_map(|device| Some((device.peak.live_bytes?, device.device))).collect();
    devices.sort_by_key(|(peak_bytes, ordinal)| (std::cmp::Reverse(*peak_bytes), *ordinal));
    for (_, ordinal) in devices.iter().skip(1) {
        let name = &info.path;
        job.notes
            .push(format!("{name}: GPU {ordinal} is left out; a TraceML summary has one GPU per process"));
    }
    let device = devices.first().and_then(|(_, ordinal)| u8::try_from(*ordinal).ok());
    let run = &mut job.runs[trace];
    let steps: Vec<_> = match device {
        Some(device) => read_steps(run, device)?.into(),
        None => Vec::new(),
    };
    if steps.len() == MAX_STEPS {
        let steps = format_number(MAX_STEPS as u64);
        job.notes.push(format!("{}: the means are of the last {steps} steps", info.path));
    }
    let known = device.map(|device| KnownSeries::of_device(&run.history, device)).unwrap_or_default();
    Ok(RankSteps {
        rank,
        host: info.host.clone(),
        world_size: info.world_size,
        latest_step: steps.last().map(|step| step.number),
        steps,
        knows_live: known.live,
        knows_reserved: known.reserved,
    })
}

/// Leaks of GPU memory in TraceML's words; without any, what the assessment allows to claim.
fn memory_issues(job: &ExportJob) -> Vec<Value> {
    let report = &job.report;
    let leaks = report.leaks.iter().flatten().filter(|leak| leak.kind != LeakKind::PinnedHost);
    let issues: Vec<Value> = leaks
        .map(|leak| {
            let label = label_leak(leak.kind, leak.grows_by, leak.is_regular);
            let summary = format!("{label}: {} at {}", format_rate(leak), format_site(&leak.site));
            let mut issue = diagnosis("CREEP_CONFIRMED", "MEMORY CREEP", "warn", &summary);
            issue["metric"] = match leak.kind {
                LeakKind::Tensors => "peak_allocated_bytes".into(),
                LeakKind::Reserved => "peak_reserved_bytes".into(),
                LeakKind::Device | LeakKind::PinnedHost => Value::Null,
            };
            issue["ranks"] =
                Value::Array(report.traces[leak.trace].rank.map(Value::from).into_iter().collect());
            issue
        })
        .collect();
    if !issues.is_empty() {
        return issues;
    }
    let assessments = || (0..report.traces.len()).filter_map(|trace| find_assessment(report, trace));
    if let Some(limited) = assessments().find(|assessment| assessment.status != AssessmentStatus::Assessed) {
        let summary = describe_assessment(limited, "");
        return vec![diagnosis("NOT_ASSESSED", "NOT ASSESSED", "info", &summary)];
    }
    let assessed = assessments().next().map(|assessment| describe_assessment(assessment, ""));
    assessed.map(|summary| diagnosis("BALANCED", "BALANCED", "info", &summary)).into_iter().collect()
}

/// What `traceml view` prints.
fn summary_text(report: &Report, ranks: &[RankSteps], issues: &[Value]) -> String {
    let mut text = format!("gpumemtrace: {}", file_name(&report.traces[0].path));
    if ranks.len() > 1 {
        let _ = write!(text, " and {} more", format_count(ranks.len() as u64 - 1, "rank"));
    }
    let steps = ranks.first().map_or(0, |rank| rank.steps.len() as u64);
    let _ = write!(text, ", {} analysed", format_count(steps, "step"));
    for device in &report.devices {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        let peak = &device.peak;
        let rank = report.traces[device.trace].rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        let _ = write!(
            text,
            "\n  {rank}GPU {}: peak allocated {}, reserved {}",
            device.device,
            bytes(peak.live_bytes),
            bytes(peak.reserved_bytes)
        );
    }
    for issue in issues {
        let _ = write!(text, "\n  {}", issue["summary"].as_str().unwrap_or_default());
    }
    text
}

/// The name of a trace without its folder.
fn file_name(path: &str) -> String {
    Path::new(path).file_name().map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
}
