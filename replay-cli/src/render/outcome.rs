//! What every output says of a checked budget, in words: limits, measured values, and what those are made of.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::budget::BudgetCheck;
use gpumemtrace_replay::budget::CheckState;
use gpumemtrace_replay::budget::CheckedLimit;
use gpumemtrace_replay::budget::ValueShare;
use gpumemtrace_replay::report::AmountUnit;

use super::text::short_site;
use super::wording::contributor_name;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::marks::sanitize;

/// Most parts of a measured value that are shown.
pub(in crate::render) const MAX_CONTRIBUTORS: usize = 10;

/// In one phrase.
pub(in crate::render) fn summarize_check(check: &BudgetCheck) -> String {
    let all = check.budgets.len() as u64;
    let number = |which: fn(&CheckedLimit) -> bool| {
        check.budgets.iter().filter(|outcome| which(outcome)).count() as u64
    };
    let exceeded = number(|outcome| outcome.state == CheckState::Exceeded);
    let unknown = number(|outcome| outcome.state == CheckState::Unknown);
    let mut parts = Vec::new();
    if exceeded > 0 {
        parts.push(format!("{} of {} exceeded", format_number(exceeded), format_count(all, "budget")));
    }
    if unknown > 0 {
        parts.push(format!("{} of {} unknown", format_number(unknown), format_count(all, "budget")));
    }
    if parts.is_empty() { format!("{}, all kept", format_count(all, "budget")) } else { parts.join(", ") }
}

pub(in crate::render) fn format_amount(outcome: &CheckedLimit, value: u64) -> String {
    format_in_unit(outcome.unit, value)
}

fn format_in_unit(unit: AmountUnit, value: u64) -> String {
    match unit {
        AmountUnit::Bytes => format_bytes(value),
        AmountUnit::BytesPerStep => format!("{} per step", format_bytes(value)),
        AmountUnit::Blocks | AmountUnit::Count => format_number(value),
    }
}

/// `1.00 GiB + 10.24 MiB`.
pub(in crate::render) fn format_limit(outcome: &CheckedLimit) -> String {
    let tolerance = outcome.allowed - outcome.limit;
    let more =
        if tolerance > 0 { format!(" + {}", format_amount(outcome, tolerance)) } else { String::new() };
    format!("{}{more}", format_amount(outcome, outcome.limit))
}

/// What was measured, or why not.
pub(in crate::render) fn format_measured(outcome: &CheckedLimit) -> String {
    match (&outcome.why, outcome.measured) {
        (Some(why), _) => format!("not known: {}", sanitize(&why.message)),
        (None, Some(value)) => format_amount(outcome, value),
        (None, None) => "not known".to_owned(),
    }
}

pub(in crate::render) fn format_numbers(outcome: &CheckedLimit) -> String {
    let over =
        outcome.over_by.map(|over| format!(", over by {}", format_amount(outcome, over))).unwrap_or_default();
    let measured = format_measured(outcome);
    let measured = if outcome.measured.is_some() { format!("measured {measured}") } else { measured };
    format!("limit {}, {measured}{over}", format_limit(outcome))
}

/// What the measured value is made of, a line each.
pub(in crate::render) fn list_contributors(outcome: &CheckedLimit, most: usize) -> Vec<String> {
    let text = |part: &ValueShare| {
        let name = match &part.site {
            Some(site) => short_site(site),
            None => part.name.as_ref().map(contributor_name).unwrap_or_default(),
        };
        let amount = format_in_unit(outcome.contributor_unit, part.amount);
        format!("{amount}  {}", sanitize(&name))
    };
    let mut parts: Vec<String> = outcome.contributors.iter().take(most).map(text).collect();
    if outcome.contributors.len() > most {
        parts.push(format!("and {} more", format_number((outcome.contributors.len() - most) as u64)));
    }
    parts
}
