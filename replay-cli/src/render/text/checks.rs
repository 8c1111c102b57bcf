//! The checks of several traces as text: one line for those that pass, and each that fails.

use gpumemtrace_multirun::BudgetChecks;
use gpumemtrace_replay::budget::{BudgetCheck, CheckedLimit};

use super::check::render_limits;
use crate::render::job_words::describe_missing_ranks;
use crate::render::outcome::{list_checked_traces, name_checked_trace, summarize_check, summarize_checks};
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, put_line};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most traces of each kind without `--top`.
const MAX_TRACES: usize = 10;
/// Most contributors of a limit without `--top`.
const MAX_CONTRIBUTORS: usize = 3;

pub(super) fn render_checks(checks: &BudgetChecks, style: Style) -> String {
    let mut out = String::new();
    let summary = summarize_checks(checks);
    let summary = if checks.passed { style.bold(&summary) } else { style.warn(&summary) };
    put_line(&mut out, format_args!("{summary} ({})", escape_text(&checks.budget)));
    render_gaps(&mut out, checks, style);
    let (passed, failed): (Vec<&BudgetCheck>, Vec<&BudgetCheck>) =
        checks.checks.iter().partition(|check| check.passed);
    if !passed.is_empty() {
        put_line(&mut out, format_args!("ok       {HANG}{}", list_checked_traces(&passed)));
    }
    let most = style.row_limit(MAX_TRACES);
    for check in failed.iter().take(most) {
        out.push('\n');
        let name = style.warn(&name_checked_trace(check));
        put_line(&mut out, format_args!("{HANG}{name}: {}", summarize_check(check)));
        let limits: Vec<&CheckedLimit> = check.budgets.iter().filter(|limit| limit.fails).collect();
        render_limits(&mut out, &limits, MAX_CONTRIBUTORS, style);
    }
    if let Some(more) = failed.get(most..).filter(|more| !more.is_empty()) {
        out.push('\n');
        put_line(&mut out, format_args!("FAIL     {HANG}also {}", list_checked_traces(more)));
    }
    layout::finish_text(&out, style)
}

/// What was not checked, or not fully.
fn render_gaps(out: &mut String, checks: &BudgetChecks, style: Style) {
    let mut warn = |text: String| put_line(out, format_args!("  {HANG}{}", style.warn(&format!("! {text}"))));
    if !checks.unreadable.is_empty() {
        warn(format!("{} cannot be read", format_count(checks.unreadable.len() as u64, "trace")));
    }
    if let Some(missing) = describe_missing_ranks(&checks.missing_ranks) {
        warn(missing);
    }
    let incomplete: Vec<&BudgetCheck> = checks.checks.iter().filter(|check| !check.complete).collect();
    if !incomplete.is_empty() {
        warn(format!(
            "incomplete, so that measured values are lower bounds: {}",
            list_checked_traces(&incomplete)
        ));
    }
    for check in incomplete.iter().take(style.row_limit(MAX_TRACES)) {
        let losses: Vec<&str> = check.incomplete.iter().map(|loss| &*loss.message).collect();
        warn(format!("{}: {}", name_checked_trace(check), escape_text(&losses.join("; "))));
    }
}
