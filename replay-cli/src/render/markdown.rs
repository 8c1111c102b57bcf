//! A checked budget as Markdown, for a pull request.
//!
//! Names come from a trace and may hold Markdown. So each is in code quotes that are longer than
//! any quotes in it, and characters that end a table cell or a line are replaced.

use std::io::Write;

use gpumemtrace_multirun::{BudgetChecks, CheckDocument};
use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit};

use super::job_words::describe_missing_ranks;
use super::outcome::{
    MAX_CONTRIBUTORS, format_amount, format_limit, format_measured, list_checked_traces, list_contributors,
    summarize_check, summarize_checks,
};
use super::renderer::{OutputFormat, RenderContext, Renderer};
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, put_line};

/// Most failing limits of several traces without `--top`: a pull request shows a page of limited
/// length.
const MAX_ROWS: usize = 50;

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

impl Renderer<CheckDocument> for MarkdownRenderer {
    fn render(
        &self,
        document: &CheckDocument,
        context: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let page = match document {
            CheckDocument::One(check) => render_page(check),
            CheckDocument::Several(checks) => render_traces(checks, context.style.row_limit(MAX_ROWS)),
        };
        Ok(out.write_all(page.as_bytes())?)
    }
}

/// A row for the traces that pass, and one for each failing limit of the others.
fn render_traces(checks: &BudgetChecks, max_rows: usize) -> String {
    let mut out = String::new();
    let mark = if checks.passed { "✅" } else { "❌" };
    put_line(&mut out, format_args!("### {mark} GPU memory: {}", summarize_checks(checks)));
    out.push('\n');
    if !checks.unreadable.is_empty() {
        let count = format_count(checks.unreadable.len() as u64, "trace");
        let names: Vec<String> =
            checks.unreadable.iter().take(max_rows).map(|trace| quote_cell(&trace.path)).collect();
        put_line(&mut out, format_args!("> {count} cannot be read: {}", names.join(", ")));
        out.push('\n');
    }
    if let Some(missing) = describe_missing_ranks(&checks.missing_ranks) {
        put_line(&mut out, format_args!("> {missing}"));
        out.push('\n');
    }
    let incomplete: Vec<&BudgetCheck> = checks.checks.iter().filter(|check| !check.complete).collect();
    if !incomplete.is_empty() {
        let names = list_checked_traces(&incomplete);
        put_line(&mut out, format_args!("> INCOMPLETE, measured values are lower bounds: {names}"));
        out.push('\n');
    }
    put_line(&mut out, format_args!("| | trace | name | limit | measured | over by |"));
    put_line(&mut out, format_args!("|---|---|---|---:|---:|---:|"));
    let (passed, failed): (Vec<&BudgetCheck>, Vec<&BudgetCheck>) =
        checks.checks.iter().partition(|check| check.passed);
    if !passed.is_empty() {
        put_line(&mut out, format_args!("| ✅ | {} | | | | |", list_checked_traces(&passed)));
    }
    let rows = || {
        failed
            .iter()
            .flat_map(|check| check.budgets.iter().map(move |limit| (check, limit)))
            .filter(|(_, it)| it.fails)
    };
    for (check, outcome) in rows().take(max_rows) {
        let rank = check.rank.map(|rank| format!("rank {rank}, ")).unwrap_or_default();
        let over = outcome.over_by.map(|over| format_amount(outcome, over)).unwrap_or_default();
        put_line(
            &mut out,
            format_args!(
                "| {} | {rank}{} | {} | {} | {} | {over} |",
                outcome_mark(outcome),
                quote_cell(&check.trace),
                quote_cell(&outcome.name),
                format_limit(outcome),
                escape_cell(&format_measured(outcome))
            ),
        );
    }
    out.push('\n');
    if let Some(more) = rows().count().checked_sub(max_rows).filter(|more| *more > 0) {
        put_line(&mut out, format_args!("{} not shown.", format_count(more as u64, "more failed limit")));
        out.push('\n');
    }
    put_line(&mut out, format_args!("Against {}", quote_cell(&checks.budget)));
    out
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
                quote_cell(&outcome.name),
                format_limit(outcome),
                escape_cell(&format_measured(outcome))
            ),
        );
    }
    for outcome in check.budgets.iter().filter(|outcome| outcome.fails && !outcome.contributors.is_empty()) {
        out.push('\n');
        put_line(&mut out, format_args!("{}:", quote_cell(&outcome.name)));
        for part in list_contributors(outcome, MAX_CONTRIBUTORS) {
            put_line(&mut out, format_args!("- {}", quote_cell(&part.to_string())));
        }
    }
    out.push('\n');
    let command = check
        .command
        .as_ref()
        .map(|command| format!(" of {}", quote_cell(&command.join(" "))))
        .unwrap_or_default();
    put_line(
        &mut out,
        format_args!("{}{command}, against {}", quote_cell(&check.trace), quote_cell(&check.budget)),
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
pub(crate) fn quote_cell(text: &str) -> String {
    quote_code(&text.replace('|', "¦"))
}

/// Text in code quotes, on one line.
pub(crate) fn quote_code(text: &str) -> String {
    let text = escape_text(text);
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
        assert_eq!(quote_cell("train.py:3 in <module>"), "`train.py:3 in <module>`");
        assert_eq!(quote_cell("a|b\n`c``d"), "``` a¦b\\n`c``d ```");
        assert_eq!(quote_code("a | b"), "`a | b`");
        assert_eq!(escape_cell("<b>|"), "&lt;b>¦");
    }
}
