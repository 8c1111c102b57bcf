//! Growth that is not counted as a leak, by rule.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::BenignRule;

use super::describe_benign_rule;
use crate::terminal::format::format_count;
use crate::terminal::units::format_bytes;

/// `43.50 MiB of optimizer state (1 call site)`, most bytes first; `None` without such growth.
pub(crate) fn describe_benign_growth(report: &Report, trace: usize) -> Option<String> {
    let mut by_rule: BTreeMap<BenignRule, (u64, u64)> = BTreeMap::new();
    for growth in report.benign_growth.iter().flatten().filter(|growth| growth.trace == trace) {
        let (sites, bytes) = by_rule.entry(growth.rule).or_default();
        *sites += 1;
        *bytes = bytes.saturating_add(growth.bytes);
    }
    let mut rows: Vec<(BenignRule, (u64, u64))> = by_rule.into_iter().collect();
    rows.sort_by_key(|(_, (_, bytes))| Reverse(*bytes));
    let clauses = rows.iter().map(|(rule, (sites, bytes))| {
        let count = format_count(*sites, "call site");
        format!("{} {} ({count})", format_bytes(*bytes), describe_benign_rule(*rule))
    });
    let clauses: Vec<String> = clauses.collect();
    (!clauses.is_empty()).then(|| clauses.join(", "))
}
