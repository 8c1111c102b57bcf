//! Growth that is not counted as a leak, by rule.

use std::collections::BTreeMap;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::display::format_bytes;

use crate::terminal::format::{format_count, put_line};

pub(super) fn render_benign_growth(out: &mut String, report: &Report, trace: usize) {
    let mut by_rule: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for growth in report.silent_growth.iter().flatten().filter(|growth| growth.trace == trace) {
        let (sites, bytes) = by_rule.entry(growth.rule).or_default();
        *sites += 1;
        *bytes = bytes.saturating_add(growth.bytes);
    }
    if by_rule.is_empty() {
        return;
    }
    let mut rows: Vec<(&str, (u64, u64))> = by_rule.into_iter().collect();
    rows.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    let clauses: Vec<String> = rows
        .iter()
        .map(|(rule, (sites, bytes))| {
            let count = format_count(*sites, "call site");
            format!("{} {} ({count})", format_bytes(*bytes), describe_rule(rule))
        })
        .collect();
    out.push('\n');
    put_line(out, format_args!("Not counted as leaks: {}.", clauses.join(", ")));
}

/// Behind a number of bytes.
fn describe_rule(rule: &str) -> &str {
    match rule {
        "warm_up" => "allocated in the first steps",
        "one_off" => "that grew only a few times",
        "saturating" => "in caches that fill up or slow down",
        "ratchet" => "in buffers that follow the longest batch so far",
        "optimizer_state" => "of optimizer state",
        "library_workspace" => "of cuBLAS workspaces",
        "too_early" => "that grew for too few steps to judge",
        other => other,
    }
}
