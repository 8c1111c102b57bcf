//! A checked budget as text: a line per limit.

use std::path::Path;

use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit, ValueShare};

use crate::render::outcome::{
    ContributorText, MAX_CONTRIBUTORS, format_numbers, list_contributors, summarize_check,
};
use crate::render::text::header::{format_program, render_losses, trace_state};
use crate::render::wording::sites::short_site;
use crate::terminal::escape::{escape_path, escape_text};
use crate::terminal::format::{format_number, put_line};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// Columns of the first column: the state.
const STATE_WIDTH: usize = 9;
/// Most columns of the names of limits, if lines are not wrapped.
const MAX_NAME_WIDTH: usize = 60;
/// Columns of the names of limits, if the longest one leaves no space for numbers.
const SHORT_NAME_WIDTH: usize = 22;
/// The column where the amounts of contributors end.
const AMOUNT_END: usize = 24;
/// Most reasons why a written budget may be too low.
const MAX_REASONS: usize = 10;
/// Columns that the numbers of a limit need.
const NUMBERS_WIDTH: usize = 42;

/// The header, the summary, and the limits in the order of the budget file.
pub(super) fn render_check(check: &BudgetCheck, style: Style) -> String {
    let mut out = String::new();
    let program = style.bold(&format_program(&check.trace, check.command.as_deref(), style));
    put_line(&mut out, format_args!("{program}; {}", trace_state(check.complete, style)));
    render_losses(&mut out, &check.incomplete, style);
    out.push('\n');
    let summary = summarize_check(check);
    let summary = if check.passed { style.bold(&summary) } else { style.warn(&summary) };
    put_line(&mut out, format_args!("{summary} ({})", escape_text(&check.budget)));
    render_limits(&mut out, &check.budgets.iter().collect::<Vec<_>>(), MAX_CONTRIBUTORS, style);
    layout::finish_text(&out, style)
}

/// A line for each limit, and below those that fail their contributors.
pub(super) fn render_limits(
    out: &mut String,
    limits: &[&CheckedLimit],
    max_contributors: usize,
    style: Style,
) {
    let longest = limits.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0);
    let width = name_width(longest, style);
    for outcome in limits {
        let word = outcome_word(outcome);
        let padding = " ".repeat(STATE_WIDTH - word.len());
        let word = if outcome.fails { style.warn(word) } else { word.to_owned() };
        let name = escape_text(&outcome.name);
        let numbers = format_numbers(outcome);
        if style.wraps && name.chars().count() > width {
            put_line(out, format_args!("{word}{padding}{name}"));
            put_line(out, format_args!("{:STATE_WIDTH$}{:width$}  {HANG}{numbers}", "", ""));
        } else {
            put_line(out, format_args!("{word}{padding}{name:<width$}  {HANG}{numbers}"));
        }
        if outcome.fails {
            for ContributorText { amount, name } in
                list_contributors(outcome, style.row_limit(max_contributors))
            {
                put_line(out, format_args!("{amount:>AMOUNT_END$}  {HANG}{name}"));
            }
        }
    }
}

/// The columns of the names. On a terminal, longer names get a line of their own.
fn name_width(longest: usize, style: Style) -> usize {
    let is_fitting = STATE_WIDTH + longest + 2 + NUMBERS_WIDTH <= style.width;
    match (style.wraps, is_fitting) {
        (false, _) => longest.min(MAX_NAME_WIDTH),
        (true, true) => longest,
        (true, false) => longest.min(SHORT_NAME_WIDTH),
    }
}

/// The message of `check --write`, with the number of traces that the limits are of.
pub(crate) fn render_written_budget(
    path: &Path,
    runs: usize,
    leaks: &[ValueShare],
    incomplete: &[String],
    style: Style,
) -> String {
    let mut out = String::new();
    let path = escape_path(path);
    let values = match runs {
        1 => "this run's values".to_owned(),
        _ => format!("the largest values of {} traces", format_number(runs as u64)),
    };
    put_line(&mut out, format_args!("wrote {path} with {values} as limits; review them and the tolerance"));
    for leak in leaks.iter().take(MAX_REASONS) {
        let (site, bytes) =
            (leak.site.as_ref().map(short_site).unwrap_or_default(), format_bytes(leak.amount));
        put_line(
            &mut out,
            format_args!("  ! the limits include what is or may be a leak: {bytes} at {site}"),
        );
    }
    for reason in incomplete.iter().take(MAX_REASONS) {
        put_line(
            &mut out,
            format_args!("  ! the limits may be too low, the trace is incomplete: {}", escape_text(reason)),
        );
    }
    if let Some(more) = incomplete.len().checked_sub(MAX_REASONS).filter(|more| *more > 0) {
        put_line(&mut out, format_args!("  ! and {} more", format_number(more as u64)));
    }
    layout::finish_text(&out, style)
}

/// `FAIL` also for unknown values that the budget does not allow.
fn outcome_word(outcome: &CheckedLimit) -> &'static str {
    match (outcome.state, outcome.fails) {
        (CheckState::Kept, _) => "ok",
        (CheckState::Exceeded, _) | (CheckState::Unknown, true) => "FAIL",
        (CheckState::Unknown, false) => "unknown",
    }
}
