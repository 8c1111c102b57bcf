//! A run held against its budgets, for a pull request.
//!
//! Constraint: names come from a trace, and the page shows what they make of it. Consequence: each stands in code quotes that are
//! longer than any in it, with what would end a cell or a line taken out.

use gpumemtrace_replay::budget::{Check, Outcome, State};

use crate::render::text::check::{MAX_PARTS, conclusion, limit, measured, parts};
use crate::render::text::put;
use crate::terminal::layout::printable;

/// The whole page.
pub(crate) fn render(check: &Check) -> String {
    let mut out = String::new();
    let mark = if check.passed { "✅" } else { "❌" };
    put(&mut out, format_args!("### {mark} GPU memory: {}", conclusion(check)));
    out.push('\n');
    if !check.complete {
        put(&mut out, format_args!("> The trace is incomplete: what was measured are lower bounds."));
        out.push('\n');
    }
    put(&mut out, format_args!("| | budget | limit | measured | over by |"));
    put(&mut out, format_args!("|---|---|---:|---:|---:|"));
    for outcome in &check.budgets {
        let over =
            outcome.over_by.map(|over| crate::render::text::check::amount(outcome, over)).unwrap_or_default();
        put(
            &mut out,
            format_args!(
                "| {} | {} | {} | {} | {over} |",
                mark_of(outcome),
                code(&outcome.name),
                limit(outcome),
                text(&measured(outcome))
            ),
        );
    }
    for outcome in check.budgets.iter().filter(|outcome| outcome.fails && !outcome.of.is_empty()) {
        out.push('\n');
        put(&mut out, format_args!("{}:", code(&outcome.name)));
        for part in parts(outcome, MAX_PARTS) {
            put(&mut out, format_args!("- {}", code(&part)));
        }
    }
    out.push('\n');
    let command =
        check.command.as_ref().map(|command| format!(" of {}", code(&command.join(" ")))).unwrap_or_default();
    put(&mut out, format_args!("{}{command}, against {}", code(&check.trace), code(&check.budget)));
    out
}

fn mark_of(outcome: &Outcome) -> &'static str {
    match (outcome.state, outcome.fails) {
        (State::Kept, _) => "✅",
        (State::Exceeded, _) => "❌",
        (State::Unknown, true) => "❓❌",
        (State::Unknown, false) => "❓",
    }
}

/// In code quotes, also in a cell.
fn code(text: &str) -> String {
    let text = printable(text).replace('|', "¦");
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let quotes = "`".repeat(longest + 1);
    let space = if longest > 0 { " " } else { "" };
    format!("{quotes}{space}{text}{space}{quotes}")
}

/// Our own words, in a cell.
fn text(text: &str) -> String {
    printable(text).replace('|', "¦").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_quotes_or_their_cell() {
        assert_eq!(code("train.py:3 in <module>"), "`train.py:3 in <module>`");
        assert_eq!(code("a|b\n`c``d"), "``` a¦b `c``d ```");
        assert_eq!(text("<b>|"), "&lt;b>¦");
    }
}
