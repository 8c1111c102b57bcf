//! What every output says of a checked budget, in words: limits, measured values, and what those are made of.

use gpumemtrace_replay::budget::check::Part;
use gpumemtrace_replay::budget::{Check, Outcome, State};
use gpumemtrace_replay::sections::size;

use super::text::short_site;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::marks::sanitize;

/// Most parts of a measured value that are shown.
pub(in crate::render) const MAX_CONTRIBUTORS: usize = 10;

/// In one phrase.
pub(in crate::render) fn summarize_check(check: &Check) -> String {
    let all = check.budgets.len() as u64;
    let number =
        |which: fn(&Outcome) -> bool| check.budgets.iter().filter(|outcome| which(outcome)).count() as u64;
    let exceeded = number(|outcome| outcome.state == State::Exceeded);
    let unknown = number(|outcome| outcome.state == State::Unknown);
    let mut parts = Vec::new();
    if exceeded > 0 {
        parts.push(format!("{} of {} exceeded", format_number(exceeded), format_count(all, "budget")));
    }
    if unknown > 0 {
        parts.push(format!("{} of {} unknown", format_number(unknown), format_count(all, "budget")));
    }
    if parts.is_empty() { format!("{}, all kept", format_count(all, "budget")) } else { parts.join(", ") }
}

pub(in crate::render) fn format_amount(outcome: &Outcome, value: u64) -> String {
    if outcome.unit == "bytes" { size(value) } else { format_number(value) }
}

/// `1.00 GiB + 10.24 MiB`.
pub(in crate::render) fn format_limit(outcome: &Outcome) -> String {
    let tolerance = outcome.allowed - outcome.limit;
    let more =
        if tolerance > 0 { format!(" + {}", format_amount(outcome, tolerance)) } else { String::new() };
    format!("{}{more}", format_amount(outcome, outcome.limit))
}

/// What was measured, or why not.
pub(in crate::render) fn format_measured(outcome: &Outcome) -> String {
    match (&outcome.why, outcome.measured) {
        (Some(why), _) => format!("not known: {}", sanitize(why)),
        (None, Some(value)) => format_amount(outcome, value),
        (None, None) => "not known".to_owned(),
    }
}

pub(in crate::render) fn format_numbers(outcome: &Outcome) -> String {
    let over =
        outcome.over_by.map(|over| format!(", over by {}", format_amount(outcome, over))).unwrap_or_default();
    let measured = format_measured(outcome);
    let measured = if outcome.measured.is_some() { format!("measured {measured}") } else { measured };
    format!("limit {}, {measured}{over}", format_limit(outcome))
}

/// What the measured value is made of, a line each.
pub(in crate::render) fn list_contributors(outcome: &Outcome, most: usize) -> Vec<String> {
    let is_leak = outcome.name.starts_with("leaks.");
    let text = |part: &Part| {
        let name = match &part.site {
            Some(site) => short_site(site),
            None => part.name.clone().unwrap_or_default(),
        };
        let amount = if is_leak {
            format!("{} per step", size(part.amount))
        } else {
            format_amount(outcome, part.amount)
        };
        format!("{amount}  {}", sanitize(&name))
    };
    let mut parts: Vec<String> = outcome.of.iter().take(most).map(text).collect();
    if outcome.of.len() > most {
        parts.push(format!("and {} more", format_number((outcome.of.len() - most) as u64)));
    }
    parts
}
