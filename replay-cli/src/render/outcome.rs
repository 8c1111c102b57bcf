//! Phrases about a checked budget for every output: limits, measured values, contributors.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use gpumemtrace_multirun::BudgetChecks;
use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit, ValueShare};
use gpumemtrace_replay::report::AmountUnit;

use super::wording::contributor_name;
use super::wording::ranks::format_ranks;
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
    let first = if count(CheckState::Unknown) > 0 { format!("{first}, {unknown} unknown") } else { first };
    match &check.possible_leaks[..] {
        [] => first,
        several => format!("{first}; {}", describe_possible_leaks(several)),
    }
}

/// `4.22 GiB at train.py:41 in evaluate() may be a leak`, of several the largest.
fn describe_possible_leaks(several: &[ValueShare]) -> String {
    let largest = &several[0];
    let site = largest.site.as_ref().map(|site| format!(" at {}", short_site(site))).unwrap_or_default();
    let others = match several.len() as u64 {
        1 => String::new(),
        all => format!(" (the largest of {})", format_number(all)),
    };
    format!("{}{site} may be a leak{others}", format_bytes(largest.amount))
}

/// `40 traces passed`, `38 of 40 traces passed, 2 failed`.
pub(in crate::render) fn summarize_checks(checks: &BudgetChecks) -> String {
    let all = format_count(checks.checks.len() as u64, "trace");
    let failed = checks.checks.iter().filter(|check| !check.passed).count();
    if failed == 0 {
        return format!("{all} passed");
    }
    let [passed, failed] = [checks.checks.len() - failed, failed].map(|number| format_number(number as u64));
    format!("{passed} of {all} passed, {failed} failed")
}

/// `rank 3 (run.rank3.trace)`, or the path alone.
pub(in crate::render) fn name_checked_trace(check: &BudgetCheck) -> String {
    let path = escape_text(&check.trace);
    match check.rank {
        Some(rank) => format!("rank {rank} ({path})"),
        None => path,
    }
}

/// `38 traces: ranks 0 to 19, 21 to 38`.
pub(in crate::render) fn list_checked_traces(checks: &[&BudgetCheck]) -> String {
    let count = format_count(checks.len() as u64, "trace");
    let ranks: BTreeSet<u64> = checks.iter().filter_map(|check| check.rank).collect();
    if ranks.is_empty() { count } else { format!("{count}: {}", format_ranks(&ranks)) }
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
