//! A checked budget as Markdown, for a pull request.
//!
//! Names come from a trace and may hold Markdown. So each is in code quotes that are longer than
//! any quotes in it, and characters that end a table cell or a line are replaced.

use std::io::Write;

use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit};

use super::outcome::{
    MAX_CONTRIBUTORS, format_amount, format_limit, format_measured, list_contributors, summarize_check,
};
use super::{OutputFormat, RenderContext, Renderer};
use crate::terminal::escape::escape_text;
use crate::terminal::format::put_line;

/// The format `markdown`, for `check` only.
pub(crate) struct MarkdownRenderer;

impl OutputFormat for MarkdownRenderer {
    fn name(&self) -> &'static str {
        "markdown"
    }

    fn help(&self) -> &'static str {
        "A summary for a pull request"
    }
}

impl Renderer<BudgetCheck> for MarkdownRenderer {
    fn render(&self, check: &BudgetCheck, _: &RenderContext<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        Ok(out.write_all(render_page(check).as_bytes())?)
    }
}

fn render_page(check: &BudgetCheck) -> String {
    let mut out = String::new();
    let mark = if check.passed { "✅" } else { "❌" };
    put_line(&mut out, format_args!("### {mark} GPU memory: {}", summarize_check(check)));
    out.push('\n');
    if !check.complete {
        put_line(&mut out, format_args!("> The trace is INCOMPLETE: measured values are lower bounds."));
        out.push('\n');
    }
    put_line(&mut out, format_args!("| | name | limit | measured | over by |"));
    put_line(&mut out, format_args!("|---|---|---:|---:|---:|"));
    for outcome in &check.budgets {
        let over = outcome.over_by.map(|over| format_amount(outcome, over)).unwrap_or_default();
        put_line(
            &mut out,
            format_args!(
                "| {} | {} | {} | {} | {over} |",
                outcome_mark(outcome),
                quote_code(&outcome.name),
                format_limit(outcome),
                escape_cell(&format_measured(outcome))
            ),
        );
    }
    for outcome in check.budgets.iter().filter(|outcome| outcome.fails && !outcome.contributors.is_empty()) {
        out.push('\n');
        put_line(&mut out, format_args!("{}:", quote_code(&outcome.name)));
        for part in list_contributors(outcome, MAX_CONTRIBUTORS) {
            put_line(&mut out, format_args!("- {}", quote_code(&part.to_string())));
        }
    }
    out.push('\n');
    let command = check
        .command
        .as_ref()
        .map(|command| format!(" of {}", quote_code(&command.join(" "))))
        .unwrap_or_default();
    put_line(
        &mut out,
        format_args!("{}{command}, against {}", quote_code(&check.trace), quote_code(&check.budget)),
    );
    out
}

fn outcome_mark(outcome: &CheckedLimit) -> &'static str {
    match (outcome.state, outcome.fails) {
        (CheckState::Kept, _) => "✅",
        (CheckState::Exceeded, _) => "❌",
        (CheckState::Unknown, true) => "❓❌",
        (CheckState::Unknown, false) => "❓",
    }
}

/// Text in code quotes, safe in a table cell.
fn quote_code(text: &str) -> String {
    let text = escape_text(text).replace('|', "¦");
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

/// Text without quotes, safe in a table cell.
fn escape_cell(text: &str) -> String {
    escape_text(text).replace('|', "¦").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_their_quotes_and_cell() {
        assert_eq!(quote_code("train.py:3 in <module>"), "`train.py:3 in <module>`");
        assert_eq!(quote_code("a|b\n`c``d"), "``` a¦b\\n`c``d ```");
        assert_eq!(escape_cell("<b>|"), "&lt;b>¦");
    }
}
