//! What went wrong in a stream, for lists.

use std::fmt::Write;

use super::StreamScore;
use super::counts::RATE_TOLERANCE;
use crate::streams::plan::StreamClass;

/// What the report gets wrong about a stream; empty if all is right.
pub fn reasons(score: &StreamScore) -> Vec<String> {
    let mut reasons = Vec::new();
    for leak in score.leaks.iter().filter(|_| score.plan.class == StreamClass::Leaky) {
        let (line, events) = (leak.planted.plan.line, leak.planted.events);
        if !leak.is_found {
            let named = leak.growth_class.as_deref().map(|class| format!(", named as growth: {class}"));
            let denied = if leak.is_denied { ", health claimed" } else { "" };
            reasons.push(format!("missed line {line}, {events} events{}{denied}", named.unwrap_or_default()));
        }
        if let Some(error) = leak.rate_error.filter(|error| error.abs() > RATE_TOLERANCE) {
            reasons.push(format!("rate of line {line}, {events} events: {:+.1}%", error * 100.0));
        }
    }
    for finding in score.false_findings() {
        reasons.push(format!("false finding {}:{}", finding.file, finding.line));
    }
    if score.plan.class == StreamClass::Leaky && score.is_true.first() == Some(&false) {
        reasons.push("first finding is false".to_owned());
    }
    for forecast in &score.forecasts {
        match forecast.is_covered() {
            Some(true) => {}
            Some(false) => reasons.push(format!(
                "forecast at {}% (step {}): {:?}, but {}",
                forecast.percent, forecast.at, forecast.interval, forecast.full_at
            )),
            None => reasons.push(format!("no forecast at {}% (step {})", forecast.percent, forecast.at)),
        }
    }
    reasons
}

/// The parameters of a stream, and what its report says.
pub fn describe(score: &StreamScore) -> String {
    let report = &score.report;
    let mut out = format!("seed {}: {}", score.seed, reasons(score).join("; "));
    let _ = write!(out, "\n  {:?}, {} events, parts {:?}", score.plan, score.events, score.parts);
    for leak in &score.leaks {
        let planted = &leak.planted;
        let rate = planted.bytes_per_step(score.plan.steps);
        let (events, first, last) = (planted.events, planted.first_step, planted.last_step);
        let _ = write!(
            out,
            "\n  planted: {:?}, {events} events in steps {first} to {last}, {rate:.0} bytes a step",
            planted.plan
        );
    }
    let status = report.status.as_deref().unwrap_or("-");
    let _ = write!(out, "\n  report: status {status}, {:?} steps by {:?}", report.steps, report.step_source);
    for finding in &report.findings {
        let _ = write!(
            out,
            "\n  leak: {}:{} {}, confidence {}, {:?} bytes a step, full in {:?}; {}",
            finding.file,
            finding.line,
            finding.kind,
            finding.confidence,
            finding.bytes_per_step,
            finding.oom_steps,
            finding.evidence
        );
    }
    for row in &report.growth {
        let _ = write!(out, "\n  growth: {}:{} {}", row.file, row.line, row.class);
    }
    if !report.benign.is_empty() {
        let _ = write!(out, "\n  benign: {}", report.benign.join(", "));
    }
    out
}
