//! A run held against its budgets: a line for each.

use std::path::Path;

use gpumemtrace_replay::budget::BudgetCheck;
use gpumemtrace_replay::budget::CheckState;
use gpumemtrace_replay::budget::CheckedLimit;

use crate::render::outcome::{MAX_CONTRIBUTORS, format_numbers, list_contributors, summarize_check};
use crate::terminal::format::put_line;
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::marks::sanitize;
use crate::terminal::style::Style;

/// Longest name that the others are lined up with.
const MAX_NAME: usize = 60;

/// The whole text.
pub(super) fn render_check(check: &BudgetCheck, style: Style) -> String {
    let mut out = String::new();
    let command =
        check.command.as_ref().map_or_else(|| "unknown command".to_owned(), |command| command.join(" "));
    put_line(&mut out, format_args!("{}", style.bold(&format!("{}: {}", check.trace, sanitize(&command)))));
    if !check.complete {
        put_line(
            &mut out,
            format_args!("  {}", style.warn("Incomplete; what was measured are lower bounds:")),
        );
    }
    for reason in &check.incomplete {
        put_line(&mut out, format_args!("  - {}", sanitize(&reason.message)));
    }
    put_line(&mut out, format_args!("  {}: {}", check.budget, summarize_check(check)));
    out.push('\n');
    let width =
        check.budgets.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0).min(MAX_NAME);
    for outcome in &check.budgets {
        let word = outcome_word(outcome);
        let padding = " ".repeat(8usize.saturating_sub(word.len()));
        let word = if outcome.fails { style.warn(word) } else { word.to_owned() };
        put_line(
            &mut out,
            format_args!(
                "{word}{padding} {:<width$}  {HANG}{}",
                sanitize(&outcome.name),
                format_numbers(outcome)
            ),
        );
        if outcome.fails {
            for part in list_contributors(outcome, style.row_limit(MAX_CONTRIBUTORS)) {
                put_line(&mut out, format_args!("             {HANG}{part}"));
            }
        }
    }
    layout::finish_text(&out, style)
}

/// What is said when a budget file was made.
pub(crate) fn render_written_budget(path: &Path, incomplete: &[String], style: Style) -> String {
    let mut out = String::new();
    let path = path.display();
    put_line(
        &mut out,
        format_args!("{path} has what this run needs as limits; look at them, and at the tolerance."),
    );
    for reason in incomplete {
        put_line(
            &mut out,
            format_args!("  The trace is incomplete, the limits may be too low: {}", sanitize(reason)),
        );
    }
    layout::finish_text(&out, style)
}

fn outcome_word(outcome: &CheckedLimit) -> &'static str {
    match (outcome.state, outcome.fails) {
        (CheckState::Kept, _) => "ok",
        (CheckState::Exceeded, _) => "FAILED",
        (CheckState::Unknown, true) => "UNKNOWN",
        (CheckState::Unknown, false) => "unknown",
    }
}
