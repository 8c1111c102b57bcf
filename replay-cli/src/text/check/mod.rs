//! A run held against its budgets: a line for each.

pub(crate) mod junit;
pub(crate) mod markdown;

use std::path::Path;

use gpumemtrace_replay::budget::BudgetCheck;
use gpumemtrace_replay::budget::CheckState;
use gpumemtrace_replay::budget::CheckedLimit;
use gpumemtrace_replay::budget::ValueShare;
use gpumemtrace_replay::report::display::format_bytes;

use super::head::printable;
use super::sites::short;
use super::{HANG, count, layout, put, thousands};
use crate::output::Style;

/// Most parts of a measured value that are shown.
const MAX_PARTS: usize = 10;

/// Longest name that the others are lined up with.
const MAX_NAME: usize = 60;

/// The whole text.
pub(crate) fn render(check: &BudgetCheck, style: Style) -> String {
    let mut out = String::new();
    let command =
        check.command.as_ref().map_or_else(|| "unknown command".to_owned(), |command| command.join(" "));
    put(&mut out, format_args!("{}", style.bold(&format!("{}: {}", check.trace, printable(&command)))));
    if !check.complete {
        put(&mut out, format_args!("  {}", style.warn("Incomplete; what was measured are lower bounds:")));
    }
    for reason in &check.incomplete {
        put(&mut out, format_args!("  - {}", printable(reason)));
    }
    put(&mut out, format_args!("  {}: {}", check.budget, conclusion(check)));
    out.push('\n');
    let width =
        check.budgets.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0).min(MAX_NAME);
    for outcome in &check.budgets {
        let word = word(outcome);
        let padding = " ".repeat(8usize.saturating_sub(word.len()));
        let word = if outcome.fails { style.warn(word) } else { word.to_owned() };
        put(
            &mut out,
            format_args!("{word}{padding} {:<width$}  {HANG}{}", printable(&outcome.name), numbers(outcome)),
        );
        if outcome.fails {
            for part in parts(outcome, style.most(MAX_PARTS)) {
                put(&mut out, format_args!("             {HANG}{part}"));
            }
        }
    }
    layout::finish(&out, style)
}

/// What is said when a budget file was made.
pub(crate) fn written(path: &Path, incomplete: &[String], style: Style) -> String {
    let mut out = String::new();
    let path = path.display();
    put(
        &mut out,
        format_args!("{path} has what this run needs as limits; look at them, and at the tolerance."),
    );
    for reason in incomplete {
        put(
            &mut out,
            format_args!("  The trace is incomplete, the limits may be too low: {}", printable(reason)),
        );
    }
    layout::finish(&out, style)
}

/// In one phrase.
fn conclusion(check: &BudgetCheck) -> String {
    let all = check.budgets.len() as u64;
    let number = |which: fn(&CheckedLimit) -> bool| {
        check.budgets.iter().filter(|outcome| which(outcome)).count() as u64
    };
    let exceeded = number(|outcome| outcome.state == CheckState::Exceeded);
    let unknown = number(|outcome| outcome.state == CheckState::Unknown);
    let mut parts = Vec::new();
    if exceeded > 0 {
        parts.push(format!("{} of {} exceeded", thousands(exceeded), count(all, "budget")));
    }
    if unknown > 0 {
        parts.push(format!("{} of {} unknown", thousands(unknown), count(all, "budget")));
    }
    if parts.is_empty() { format!("{}, all kept", count(all, "budget")) } else { parts.join(", ") }
}

fn word(outcome: &CheckedLimit) -> &'static str {
    match (outcome.state, outcome.fails) {
        (CheckState::Kept, _) => "ok",
        (CheckState::Exceeded, _) => "FAILED",
        (CheckState::Unknown, true) => "UNKNOWN",
        (CheckState::Unknown, false) => "unknown",
    }
}

fn amount(outcome: &CheckedLimit, value: u64) -> String {
    if outcome.unit == "bytes" { format_bytes(value) } else { thousands(value) }
}

/// `1.00 GiB + 10.24 MiB`.
fn limit(outcome: &CheckedLimit) -> String {
    let tolerance = outcome.allowed - outcome.limit;
    let more = if tolerance > 0 { format!(" + {}", amount(outcome, tolerance)) } else { String::new() };
    format!("{}{more}", amount(outcome, outcome.limit))
}

/// What was measured, or why not.
fn measured(outcome: &CheckedLimit) -> String {
    match (&outcome.why, outcome.measured) {
        (Some(why), _) => format!("not known: {}", printable(why)),
        (None, Some(value)) => amount(outcome, value),
        (None, None) => "not known".to_owned(),
    }
}

fn numbers(outcome: &CheckedLimit) -> String {
    let over = outcome.over_by.map(|over| format!(", over by {}", amount(outcome, over))).unwrap_or_default();
    let measured = measured(outcome);
    let measured = if outcome.measured.is_some() { format!("measured {measured}") } else { measured };
    format!("limit {}, {measured}{over}", limit(outcome))
}

/// What the measured value is made of, a line each.
fn parts(outcome: &CheckedLimit, most: usize) -> Vec<String> {
    let is_leak = outcome.name.starts_with("leaks.");
    let text = |part: &ValueShare| {
        let name = match &part.site {
            Some(site) => short(site),
            None => part.name.clone().unwrap_or_default(),
        };
        let amount = if is_leak {
            format!("{} per step", format_bytes(part.amount))
        } else {
            amount(outcome, part.amount)
        };
        format!("{amount}  {}", printable(&name))
    };
    let mut parts: Vec<String> = outcome.of.iter().take(most).map(text).collect();
    if outcome.of.len() > most {
        parts.push(format!("and {} more", thousands((outcome.of.len() - most) as u64)));
    }
    parts
}
