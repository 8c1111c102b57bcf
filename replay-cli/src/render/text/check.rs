//! A run held against its budgets: a line for each.

use std::path::Path;

use gpumemtrace_replay::budget::check::Part;
use gpumemtrace_replay::budget::{Check, Outcome, State};
use gpumemtrace_replay::sections::size;

use super::{HANG, count, put, thousands};
use crate::render::text::sites::short;
use crate::terminal::layout;
use crate::terminal::layout::printable;
use crate::terminal::style::Style;

/// Most parts of a measured value that are shown.
pub(in crate::render) const MAX_PARTS: usize = 10;

/// Longest name that the others are lined up with.
const MAX_NAME: usize = 60;

/// The whole text.
pub(crate) fn render(check: &Check, style: Style) -> String {
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
pub(in crate::render) fn conclusion(check: &Check) -> String {
    let all = check.budgets.len() as u64;
    let number =
        |which: fn(&Outcome) -> bool| check.budgets.iter().filter(|outcome| which(outcome)).count() as u64;
    let exceeded = number(|outcome| outcome.state == State::Exceeded);
    let unknown = number(|outcome| outcome.state == State::Unknown);
    let mut parts = Vec::new();
    if exceeded > 0 {
        parts.push(format!("{} of {} exceeded", thousands(exceeded), count(all, "budget")));
    }
    if unknown > 0 {
        parts.push(format!("{} of {} unknown", thousands(unknown), count(all, "budget")));
    }
    if parts.is_empty() { format!("{}, all kept", count(all, "budget")) } else { parts.join(", ") }
}

fn word(outcome: &Outcome) -> &'static str {
    match (outcome.state, outcome.fails) {
        (State::Kept, _) => "ok",
        (State::Exceeded, _) => "FAILED",
        (State::Unknown, true) => "UNKNOWN",
        (State::Unknown, false) => "unknown",
    }
}

pub(in crate::render) fn amount(outcome: &Outcome, value: u64) -> String {
    if outcome.unit == "bytes" { size(value) } else { thousands(value) }
}

/// `1.00 GiB + 10.24 MiB`.
pub(in crate::render) fn limit(outcome: &Outcome) -> String {
    let tolerance = outcome.allowed - outcome.limit;
    let more = if tolerance > 0 { format!(" + {}", amount(outcome, tolerance)) } else { String::new() };
    format!("{}{more}", amount(outcome, outcome.limit))
}

/// What was measured, or why not.
pub(in crate::render) fn measured(outcome: &Outcome) -> String {
    match (&outcome.why, outcome.measured) {
        (Some(why), _) => format!("not known: {}", printable(why)),
        (None, Some(value)) => amount(outcome, value),
        (None, None) => "not known".to_owned(),
    }
}

pub(in crate::render) fn numbers(outcome: &Outcome) -> String {
    let over = outcome.over_by.map(|over| format!(", over by {}", amount(outcome, over))).unwrap_or_default();
    let measured = measured(outcome);
    let measured = if outcome.measured.is_some() { format!("measured {measured}") } else { measured };
    format!("limit {}, {measured}{over}", limit(outcome))
}

/// What the measured value is made of, a line each.
pub(in crate::render) fn parts(outcome: &Outcome, most: usize) -> Vec<String> {
    let is_leak = outcome.name.starts_with("leaks.");
    let text = |part: &Part| {
        let name = match &part.site {
            Some(site) => short(site),
            None => part.name.clone().unwrap_or_default(),
        };
        let amount =
            if is_leak { format!("{} per step", size(part.amount)) } else { amount(outcome, part.amount) };
        format!("{amount}  {}", printable(&name))
    };
    let mut parts: Vec<String> = outcome.of.iter().take(most).map(text).collect();
    if outcome.of.len() > most {
        parts.push(format!("and {} more", thousands((outcome.of.len() - most) as u64)));
    }
    parts
}
