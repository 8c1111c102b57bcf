//! Ranks or GPUs side by side, below the reports of all traces. The table fits 80 columns.

use crate::terminal::units::{chosen_units, format_bytes};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{FirstCause, RankRow, Ranks};

use crate::render::wording::ranks::{describe_first_cause, describe_unaligned};
use crate::render::wording::sites::{format_rank, short_site};
use crate::terminal::format::{format_count, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most rows; those with the highest peaks are kept.
const MAX_ROWS: usize = 32;

pub(super) fn render_ranks(out: &mut String, report: &Report, style: Style) {
    let Some(ranks) = &report.ranks else { return };
    // The GPUs of a single process are in its own report.
    if report.traces.len() < 2 {
        return;
    }
    out.push('\n');
    render_table(out, ranks, style);
    if let Some(missing) = ranks.missing_ranks.filter(|missing| *missing > 0) {
        let missing = format!("! {} without a trace", format_count(missing, "rank"));
        put_line(out, format_args!("  {}", style.warn(&missing)));
    }
    if let Some(first) = &ranks.first_cause {
        render_first_cause(out, first, &ranks.rows);
    } else if ranks.aligned_by.is_none() {
        put_line(out, format_args!("  {HANG}{}", describe_unaligned(&ranks.rows)));
    }
    if !ranks.more_by_site.is_empty() {
        let worst = format_rank(&ranks.rows[ranks.worst as usize], &ranks.rows);
        put_line(out, format_args!("  At its peak, {worst} had more than the others:"));
        for more in &ranks.more_by_site {
            put_line(out, format_args!("  {}  {HANG}{}", size_column(more.bytes), short_site(&more.site)));
        }
    }
}

fn render_table(out: &mut String, ranks: &Ranks, style: Style) {
    let mut rows: Vec<_> = ranks.rows.iter().collect();
    let most = style.row_limit(MAX_ROWS);
    if rows.len() > most {
        rows.sort_by_key(|row| std::cmp::Reverse(row.peak_live_bytes));
    }
    let title = "Side by side";
    let names: Vec<String> = rows.iter().take(most).map(|row| format_rank(row, &ranks.rows)).collect();
    let longest = names.iter().map(|name| name.chars().count() + 2).max().unwrap_or(0);
    let (name_width, width) = (longest.max(title.len()), chosen_units().columns() + 1);
    put_line(
        out,
        format_args!(
            "{}{}{:>width$}{:>width$}{:>width$}{:>7}{:>width$}",
            style.bold(title),
            " ".repeat(name_width - title.len()),
            "peak",
            "reserved",
            "at end",
            "steps",
            "growth/step"
        ),
    );
    for (row, name) in rows.iter().zip(&names) {
        let steps = row.steps.map_or_else(|| "unknown".to_owned(), format_number);
        let rate = row.bytes_per_step.map(|rate| format_bytes(rate.0 as u64)).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "{:<name_width$}{:>width$}{:>width$}{:>width$}{steps:>7}{rate:>width$}",
                format!("  {name}"),
                format_bytes(row.peak_live_bytes),
                format_bytes(row.peak_reserved_bytes),
                format_bytes(row.end_live_bytes)
            ),
        );
    }
    if rows.len() > most {
        let hidden = format_count((rows.len() - most) as u64, "row");
        put_line(out, format_args!("  {hidden} with lower peaks hidden (--json has all)"));
    }
}

fn render_first_cause(out: &mut String, first: &FirstCause, rows: &[RankRow]) {
    let (began, lead) = describe_first_cause(first, rows);
    put_line(out, format_args!("  {began} at {} ({lead})", short_site(&first.site)));
}
