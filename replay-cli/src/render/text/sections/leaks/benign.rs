//! Growth that is not counted as a leak, by rule.

use std::collections::BTreeMap;

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::BenignRule;

use crate::render::wording::leaks::describe_benign_rule;
use crate::terminal::format::{format_count, put_line};

pub(super) fn render_benign_growth(out: &mut String, report: &Report, trace: usize) {
    let mut by_rule: BTreeMap<BenignRule, (u64, u64)> = BTreeMap::new();
    for growth in report.benign_growth.iter().flatten().filter(|growth| growth.trace == trace) {
        let (sites, bytes) = by_rule.entry(growth.rule).or_default();
        *sites += 1;
        *bytes = bytes.saturating_add(growth.bytes);
    }
    if by_rule.is_empty() {
        return;
    }
    let mut rows: Vec<(BenignRule, (u64, u64))> = by_rule.into_iter().collect();
    rows.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let clauses: Vec<String> = rows
        .iter()
        .map(|(rule, (sites, bytes))| {
            let count = format_count(*sites, "call site");
            format!("{} {} ({count})", format_bytes(*bytes), describe_benign_rule(*rule))
        })
        .collect();
    out.push('\n');
    put_line(out, format_args!("Not counted as leaks: {}.", clauses.join(", ")));
}
