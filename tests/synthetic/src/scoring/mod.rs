//! Compares the leak analysis with the truth of generated streams.
//!
//! The report is read as JSON, as a user's program would. A leak counts as found if a row of
//! `leaks` is at its planted line. All other rows are false findings.
#![allow(dead_code, unreachable_pub)] // Each user needs some of the functions.

pub mod counts;
pub mod failures;
pub mod goals;
pub mod tables;

use serde_json::Value;

use crate::analyse_bytes;
use crate::streams::ambiguous::AMBIGUOUS_FILE;
use crate::streams::leaks::{HELPER_FILE, LEAK_FILE};
use crate::streams::plan::{LeakPlace, LeakTiming, StepsBy, StreamClass, StreamPlan};
use crate::streams::{CutTrace, PlantedLeak, Stream};
use gpumemtrace_replay::{RingFile, report};

/// A row of `leaks` in a report.
#[derive(Clone, Debug)]
pub struct Finding {
    pub file: String,
    pub line: i64,
    pub kind: String,
    pub confidence: f64,
    pub bytes_per_step: Option<f64>,
    pub period: Option<u64>,
    /// The innermost line, if it is another one.
    pub leaf: Option<(String, i64)>,
    /// Earliest and latest step at which the device is full; the latest may be open.
    pub oom_steps: Option<(u64, Option<u64>)>,
    /// The expected step at which the device is full.
    pub oom_expected: Option<u64>,
    /// What decides whether it is true, for lists.
    pub evidence: String,
}

/// A row of `leak_assessment[].growth` in a report.
#[derive(Clone, Debug)]
pub struct GrowthRow {
    pub file: String,
    pub line: i64,
    pub class: String,
}

/// What a report says about leaks.
#[derive(Clone, Debug)]
pub struct LeakReport {
    pub findings: Vec<Finding>,
    /// `status` of the assessment; `None` in reports without one.
    pub status: Option<String>,
    pub growth: Vec<GrowthRow>,
    pub step_source: Option<String>,
    pub steps: Option<u64>,
    /// Rules of `benign_growth` with their places, for lists.
    pub benign: Vec<String>,
}

fn place(site: &Value) -> (String, i64) {
    (site["file"].as_str().unwrap_or("?").to_owned(), site["line"].as_i64().unwrap_or(-1))
}

fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

impl LeakReport {
    /// Replays a trace and reads the report.
    pub fn of_trace(trace: &[u8]) -> Self {
        let analysis = analyse_bytes(trace, RingFile::Absent);
        Self::parse(&serde_json::to_value(report(&[analysis], &[])).expect("JSON"))
    }

    /// Reads a report. Sections that it lacks are empty.
    pub fn parse(report: &Value) -> Self {
        let findings = rows(&report["leaks"]).map(|row| {
            let (file, line) = place(&row["site"]);
            let oom = &row["oom_step"];
            let evidence = &row["evidence"];
            Finding {
                file,
                line,
                kind: text(&row["kind"]),
                confidence: row["confidence"].as_f64().unwrap_or(0.0),
                bytes_per_step: row["bytes_per_step"].as_f64(),
                period: row["period_steps"].as_u64(),
                leaf: row["leaf"].is_object().then(|| place(&row["leaf"])),
                oom_expected: oom["expected"].as_u64(),
                oom_steps: oom["earliest"].as_u64().map(|earliest| (earliest, oom["latest"].as_u64())),
                evidence: format!(
                    "{} by {}, period {}, growth steps {}, regularity {}, tau {:.3}, blocks {}",
                    text(&row["shape"]),
                    text(&row["grows_by"]),
                    row["period_steps"],
                    evidence["growth_steps"],
                    evidence["regularity"],
                    evidence["kendall_tau"].as_f64().unwrap_or(0.0),
                    row["blocks"],
                ),
            }
        });
        let assessment = &report["leak_assessment"];
        let growth = rows(assessment).flat_map(|of_trace| rows(&of_trace["growth"])).map(|row| {
            let (file, line) = place(&row["site"]);
            GrowthRow { file, line, class: text(&row["class"]) }
        });
        let benign = rows(&report["benign_growth"]).map(|row| {
            let (file, line) = place(&row["site"]);
            format!("{file}:{line} {}", text(&row["rule"]))
        });
        Self {
            findings: findings.collect(),
            status: assessment[0]["status"].as_str().map(str::to_owned),
            growth: growth.collect(),
            step_source: report["steps"]["source"].as_str().map(str::to_owned),
            steps: report["steps"]["count"].as_u64(),
            benign: benign.collect(),
        }
    }

    /// True if the report lets a user believe that there is no leak beyond its findings.
    pub fn claims_health(&self) -> bool {
        self.status.as_deref().is_none_or(|status| status == "assessed")
    }
}

/// How the report treats a planted leak.
#[derive(Clone, Debug)]
pub struct LeakScore {
    pub planted: PlantedLeak,
    pub is_found: bool,
    /// Class of the growth row at its line, if it is not found.
    pub growth_class: Option<String>,
    /// The report says that leaks were assessed, and nothing about this line.
    pub is_denied: bool,
    /// Reported rate over the true one, minus 1: the nearest of [`PlantedLeak::rate_range`].
    pub rate_error: Option<f64>,
    /// Whether period and innermost line are right. `None` if it is not found, has no period, or
    /// steps are unknown.
    pub has_right_details: Option<bool>,
}

/// A forecast of the step in which the device is full.
#[derive(Clone, Debug)]
pub struct ForecastScore {
    pub percent: u64,
    /// Steps of the cut trace.
    pub at: u64,
    /// The true step, counted as the report counts.
    pub full_at: u64,
    /// `None` if the leak is not found or has no forecast.
    pub interval: Option<(u64, Option<u64>)>,
    pub expected: Option<u64>,
}

impl ForecastScore {
    /// Whether the expected step is within a tenth of the true one.
    pub fn is_near(&self) -> Option<bool> {
        Some(self.expected?.abs_diff(self.full_at) * 10 <= self.full_at)
    }

    /// Whether the interval has the true step. One step is allowed, since the leak may come at any
    /// time within a step.
    pub fn is_covered(&self) -> Option<bool> {
        let (earliest, latest) = self.interval?;
        Some(self.full_at + 1 >= earliest && latest.is_none_or(|latest| self.full_at <= latest + 1))
    }

    /// Width of the interval over the steps that were left.
    pub fn relative_width(&self) -> Option<f64> {
        let (earliest, latest) = self.interval?;
        Some(latest?.saturating_sub(earliest) as f64 / (self.full_at - self.at).max(1) as f64)
    }
}

/// How the report of a stream compares with its truth.
#[derive(Clone, Debug)]
pub struct StreamScore {
    pub seed: u64,
    pub plan: StreamPlan,
    pub parts: Vec<&'static str>,
    pub events: usize,
    pub report: LeakReport,
    pub leaks: Vec<LeakScore>,
    /// For each finding, whether it is at a planted line.
    pub is_true: Vec<bool>,
    pub forecasts: Vec<ForecastScore>,
}

impl StreamScore {
    /// Replays a stream and compares.
    pub fn of_stream(stream: &Stream) -> Self {
        Self::of_report(stream, LeakReport::of_trace(&stream.trace))
    }

    /// Compares a report of a stream's trace, and replays the cut traces of a run that fills its
    /// device.
    pub fn of_report(stream: &Stream, report: LeakReport) -> Self {
        let is_planted = |file: &str, line: i64, leak: &PlantedLeak| {
            file == LEAK_FILE && line == i64::from(leak.plan.line)
        };
        let leaks = stream.leaks.iter().map(|leak| score_leak(leak, &report, &stream.plan));
        let is_true = report
            .findings
            .iter()
            .map(|finding| stream.leaks.iter().any(|leak| is_planted(&finding.file, finding.line, leak)));
        let forecasts = stream
            .until_full
            .iter()
            .flat_map(|until_full| until_full.cuts.iter().map(|cut| score_forecast(cut, until_full.full_at)));
        Self {
            seed: stream.seed,
            plan: stream.plan,
            parts: stream.parts.clone(),
            events: stream.events,
            leaks: leaks.collect(),
            is_true: is_true.collect(),
            forecasts: forecasts.collect(),
            report,
        }
    }

    /// Findings that are at no planted line. In an ambiguous stream, those beside the ambiguous
    /// line.
    pub fn false_findings(&self) -> impl Iterator<Item = &Finding> {
        let is_ambiguous = self.plan.class == StreamClass::Ambiguous;
        let findings = self.report.findings.iter().zip(&self.is_true).filter(|(_, is_true)| !**is_true);
        findings
            .map(|(finding, _)| finding)
            .filter(move |finding| !is_ambiguous || finding.file != AMBIGUOUS_FILE)
    }

    /// Where the report puts the ambiguous memory: `leaks`, a class of growth, or nowhere.
    pub fn ambiguous_class(&self) -> String {
        if self.report.findings.iter().any(|finding| finding.file == AMBIGUOUS_FILE) {
            return "leaks".to_owned();
        }
        let growth = self.report.growth.iter().find(|row| row.file == AMBIGUOUS_FILE);
        growth.map_or_else(|| "none".to_owned(), |row| row.class.clone())
    }
}

fn score_leak(leak: &PlantedLeak, report: &LeakReport, plan: &StreamPlan) -> LeakScore {
    let is_at = |file: &str, line: i64| file == LEAK_FILE && line == i64::from(leak.plan.line);
    let finding = report.findings.iter().find(|finding| is_at(&finding.file, finding.line));
    let growth = report.growth.iter().find(|row| is_at(&row.file, row.line));
    let rate = finding.and_then(|finding| finding.bytes_per_step);
    LeakScore {
        planted: leak.clone(),
        is_found: finding.is_some(),
        growth_class: growth.filter(|_| finding.is_none()).map(|row| row.class.clone()),
        is_denied: finding.is_none() && growth.is_none() && report.claims_health(),
        rate_error: rate.map(|rate| {
            let [least, most] = leak.rate_range(plan.steps);
            rate / rate.clamp(least, most) - 1.0
        }),
        has_right_details: finding
            .filter(|_| leak.plan.timing == LeakTiming::Regular)
            .filter(|_| matches!(plan.steps_by, StepsBy::Marks | StepsBy::Optimizer))
            .map(|finding| finding.period == Some(leak.plan.period) && has_right_leaf(finding, leak)),
    }
}

/// Whether a finding in a shared function names it as the innermost line.
fn has_right_leaf(finding: &Finding, leak: &PlantedLeak) -> bool {
    match leak.plan.place {
        LeakPlace::SharedHelper => finding.leaf.as_ref().is_some_and(|(file, _)| file == HELPER_FILE),
        LeakPlace::RetainedGraph => true,
        _ => finding.leaf.is_none(),
    }
}

fn score_forecast(cut: &CutTrace, full_at: u64) -> ForecastScore {
    let report = LeakReport::of_trace(&cut.trace);
    let finding = report.findings.iter().find(|finding| finding.file == LEAK_FILE);
    let interval = finding.and_then(|finding| finding.oom_steps);
    let expected = finding.and_then(|finding| finding.oom_expected);
    ForecastScore { percent: cut.percent, at: cut.steps, full_at, interval, expected }
}
