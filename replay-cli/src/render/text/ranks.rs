//! Ranks side by side, below all traces.

use crate::render::wording::sites::format_rank;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;

use crate::render::text::sites::short_site;
use crate::terminal::format::{format_count, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most units listed, the fullest first.
const MOST: usize = 32;

pub(super) fn render_ranks(out: &mut String, report: &Report, style: Style) {
    let Some(ranks) = &report.ranks else { return };
    // What one process has on its devices is above.
    if report.traces.len() < 2 {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Side by side")));
    put_line(
        out,
        format_args!(
            "  {:<26}{:>12}{:>12}{:>12}{:>9}  {}",
            "", "peak", "reserved", "end", "steps", "grows by"
        ),
    );
    let mut rows: Vec<_> = ranks.rows.iter().collect();
    let most = style.row_limit(MOST);
    if rows.len() > most {
        rows.sort_by_key(|row| std::cmp::Reverse(row.peak_live_bytes));
    }
    for row in rows.iter().take(most) {
        let steps = row.steps.map_or_else(|| "unknown".to_owned(), format_number);
        let grows = row
            .bytes_per_step
            .map(|rate| format!("{} a step", format_bytes(rate.0 as u64)))
            .unwrap_or_default();
        put_line(
            out,
            format_args!(
                "  {:<26}{:>12}{:>12}{:>12}{steps:>9}  {grows}",
                format_rank(row, &ranks.rows),
                format_bytes(row.peak_live_bytes),
                format_bytes(row.peak_reserved_bytes),
                format_bytes(row.end_live_bytes)
            ),
        );
    }
    if rows.len() > most {
        put_line(
            out,
            format_args!(
                "  {} more with lower peaks (--json has all)",
                format_count((rows.len() - most) as u64, "unit")
            ),
        );
    }
    if let Some(missing) = ranks.missing_ranks.filter(|missing| *missing > 0) {
        put_line(
            out,
            format_args!(
                "  {}",
                style.warn(&format!("Of {} there is no trace here.", format_count(missing, "rank")))
            ),
        );
    }
    if let Some(first) = &ranks.first_cause {
        let row = &ranks.rows[first.row as usize];
        let lead = match first.lead_steps {
            None => "no other grows".to_owned(),
            Some(0) => "others in the same step".to_owned(),
            Some(steps) => format!("{} before any other", format_count(steps, "step")),
        };
        put_line(
            out,
            format_args!(
                "  Growth began in {}, step {}, at {} ({lead}; confidence: {})",
                format_rank(row, &ranks.rows),
                format_number(first.step),
                short_site(&first.site),
                first.confidence.name()
            ),
        );
    } else if ranks.aligned_by.is_none() {
        put_line(
            out,
            format_args!("  Steps are not told alike in all of them, so nothing is said of who was first."),
        );
    }
    if !ranks.more_by_site.is_empty() {
        let worst = &ranks.rows[ranks.worst as usize];
        put_line(
            out,
            format_args!("  {} held more at its peak than others, by", format_rank(worst, &ranks.rows)),
        );
        for more in &ranks.more_by_site {
            put_line(out, format_args!("  {}  {HANG}{}", size_column(more.bytes), short_site(&more.site)));
        }
    }
}
