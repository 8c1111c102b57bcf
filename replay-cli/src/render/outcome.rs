//! Phrases about a checked budget for every output: limits, measured values, contributors.

use std::fmt::{self, Display, Formatter};

use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit, ValueShare};
use gpumemtrace_replay::report::AmountUnit;

use super::wording::contributor_name;
use super::wording::sites::short_site;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// Most contributors listed of a measured value.
pub(in crate::render) const MAX_CONTRIBUTORS: usize = 10;

/// `10 of 10 limits met`, `8 of 10 limits exceeded, 1 unknown`.
pub(in crate::render) fn summarize_check(check: &BudgetCheck) -> String {
    let count =
        |state: CheckState| check.budgets.iter().filter(|outcome| outcome.state == state).count() as u64;
    let all = format_count(check.budgets.len() as u64, "limit");
    let [met, exceeded, unknown] = [CheckState::Kept, CheckState::Exceeded, CheckState::Unknown]
        .map(|state| format_number(count(state)));
    let first = if count(CheckState::Exceeded) > 0 {
        format!("{exceeded} of {all} exceeded")
    } else {
        format!("{met} of {all} met")
    };
    if count(CheckState::Unknown) > 0 { format!("{first}, {unknown} unknown") } else { first }
}

pub(in crate::render) fn format_amount(outcome: &CheckedLimit, value: u64) -> String {
    format_in_unit(outcome.unit, value)
}

fn format_in_unit(unit: AmountUnit, value: u64) -> String {
    match unit {
        AmountUnit::Bytes => format_bytes(value),
        AmountUnit::BytesPerStep => format!("{}/step", format_bytes(value)),
        AmountUnit::Blocks | AmountUnit::Count => format_number(value),
    }
}

/// The limit and its tolerance: `1.00 GiB + 10.24 MiB`.
pub(in crate::render) fn format_limit(outcome: &CheckedLimit) -> String {
    let tolerance = outcome.allowed - outcome.limit;
    let more =
        if tolerance > 0 { format!(" + {}", format_amount(outcome, tolerance)) } else { String::new() };
    format!("{}{more}", format_amount(outcome, outcome.limit))
}

/// The measured value, or why it is unknown.
pub(in crate::render) fn format_measured(outcome: &CheckedLimit) -> String {
    match (&outcome.why, outcome.measured) {
        (Some(why), _) => format!("unknown: {}", escape_text(&why.message)),
        (None, Some(value)) => format_amount(outcome, value),
        (None, None) => "unknown".to_owned(),
    }
}

/// `1.50 GiB, over by 512.00 MiB (limit 1.00 GiB)`.
pub(in crate::render) fn format_numbers(outcome: &CheckedLimit) -> String {
    let over =
        outcome.over_by.map(|over| format!(", over by {}", format_amount(outcome, over))).unwrap_or_default();
    format!("{}{over} (limit {})", format_measured(outcome), format_limit(outcome))
}

/// A contributor of a measured value; without an amount, a note about those not listed.
pub(in crate::render) struct ContributorText {
    pub(in crate::render) amount: String,
    pub(in crate::render) name: String,
}

impl Display for ContributorText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let gap = if self.amount.is_empty() { "" } else { "  " };
        write!(f, "{}{gap}{}", self.amount, self.name)
    }
}

/// The contributors of a measured value, largest first.
pub(in crate::render) fn list_contributors(outcome: &CheckedLimit, most: usize) -> Vec<ContributorText> {
    let text = |part: &ValueShare| {
        let name = match &part.site {
            Some(site) => short_site(site),
            None => part.name.as_ref().map(contributor_name).unwrap_or_default(),
        };
        ContributorText {
            amount: format_in_unit(outcome.contributor_unit, part.amount),
            name: escape_text(&name),
        }
    };
    let mut parts: Vec<ContributorText> = outcome.contributors.iter().take(most).map(text).collect();
    if outcome.contributors.len() > most {
        let more = format_number((outcome.contributors.len() - most) as u64);
        parts.push(ContributorText { amount: String::new(), name: format!("and {more} more") });
    }
    parts
}
