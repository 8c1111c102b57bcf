//! Ranks side by side, below all traces.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::ranks::name;
use gpumemtrace_replay::sections::size;

use super::{HANG, column, count, put, thousands};
use crate::render::text::sites::short;
use crate::terminal::style::Style;

/// Most units listed, the fullest first.
const MOST: usize = 32;

pub(super) fn write(out: &mut String, report: &Report, style: Style) {
    let Some(ranks) = &report.ranks else { return };
    // What one process has on its devices is above.
    if report.traces.len() < 2 {
        return;
    }
    out.push('\n');
    put(out, format_args!("{}", style.bold("Side by side")));
    put(
        out,
        format_args!(
            "  {:<26}{:>12}{:>12}{:>12}{:>9}  {}",
            "", "peak", "reserved", "end", "steps", "grows by"
        ),
    );
    let mut rows: Vec<_> = ranks.rows.iter().collect();
    let most = style.most(MOST);
    if rows.len() > most {
        rows.sort_by_key(|row| std::cmp::Reverse(row.peak_live_bytes));
    }
    for row in rows.iter().take(most) {
        let steps = row.steps.map_or_else(|| "unknown".to_owned(), thousands);
        let grows =
            row.bytes_per_step.map(|rate| format!("{} a step", size(rate.0 as u64))).unwrap_or_default();
        put(
            out,
            format_args!(
                "  {:<26}{:>12}{:>12}{:>12}{steps:>9}  {grows}",
                name(row, &ranks.rows),
                size(row.peak_live_bytes),
                size(row.peak_reserved_bytes),
                size(row.end_live_bytes)
            ),
        );
    }
    if rows.len() > most {
        put(
            out,
            format_args!(
                "  {} more with lower peaks (--json has all)",
                count((rows.len() - most) as u64, "unit")
            ),
        );
    }
    if let Some(missing) = ranks.missing_ranks.filter(|missing| *missing > 0) {
        put(
            out,
            format_args!(
                "  {}",
                style.warn(&format!("Of {} there is no trace here.", count(missing, "rank")))
            ),
        );
    }
    if let Some(first) = &ranks.first_cause {
        let row = &ranks.rows[first.row as usize];
        let lead = match first.lead_steps {
            None => "no other grows".to_owned(),
            Some(0) => "others in the same step".to_owned(),
            Some(steps) => format!("{} before any other", count(steps, "step")),
        };
        put(
            out,
            format_args!(
                "  Growth began in {}, step {}, at {} ({lead}; confidence: {})",
                name(row, &ranks.rows),
                thousands(first.step),
                short(&first.site),
                first.confidence
            ),
        );
    } else if ranks.aligned_by.is_none() {
        put(
            out,
            format_args!("  Steps are not told alike in all of them, so nothing is said of who was first."),
        );
    }
    if !ranks.more_by_site.is_empty() {
        let worst = &ranks.rows[ranks.worst as usize];
        put(out, format_args!("  {} held more at its peak than others, by", name(worst, &ranks.rows)));
        for more in &ranks.more_by_site {
            put(out, format_args!("  {}  {HANG}{}", column(more.bytes), short(&more.site)));
        }
    }
}
