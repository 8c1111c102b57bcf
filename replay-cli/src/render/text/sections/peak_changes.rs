//! What is different from the peak of the previous step, and with `--blocks` every block.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::{Confidence, Peak, PeakBlockRow, SincePreviousStep};

use crate::render::wording::categories::label_category;
use crate::render::wording::comparison::format_change;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most changes listed without `--top`.
const MAX_CHANGES: usize = 8;

/// The changes from the peak of the previous step, by call site and category.
pub(super) fn render_changes(out: &mut String, peak: &Peak, style: Style) {
    let most = style.row_limit(MAX_CHANGES);
    let Some(since) = &peak.since_previous_step else { return };
    out.push('\n');
    let SincePreviousStep { step, live_bytes, rise_bytes, changes, .. } = since;
    let title = format!(
        "Change since the previous step: {} (peak of step {}: {})",
        format_change(*rise_bytes, true),
        format_number(*step),
        format_bytes(*live_bytes)
    );
    put_line(out, format_args!("  {}", style.bold(&title)));
    if changes.is_empty() {
        put_line(out, format_args!("    No call site changed."));
    }
    for change in changes.iter().take(most) {
        let label = label_category(change.category).split(" (").next().unwrap_or_default();
        put_line(
            out,
            format_args!(
                "  {:>12}  {HANG}{label}: {}",
                format_change(change.rise_bytes, true),
                short_site(&change.site)
            ),
        );
    }
    if changes.len() > most {
        let rest = &changes[most..];
        let bytes = rest.iter().fold(0i64, |sum, change| sum.saturating_add(change.rise_bytes));
        let others = format_count(rest.len() as u64, "other change");
        put_line(out, format_args!("  {:>12}  {others}", format_change(bytes, true)));
    }
}

/// Every block of the peak, if `--blocks` is given.
pub(super) fn render_blocks(out: &mut String, peak: &Peak) {
    let Some(blocks) = &peak.blocks else { return };
    out.push('\n');
    put_line(out, format_args!("  All blocks, in order of allocation:"));
    put_line(
        out,
        format_args!(
            "    {:<18} {:>15} {:>15} {:>7}  {:<15} {:<10} site",
            "address", "bytes", "requested", "step", "category", "confidence"
        ),
    );
    for block in blocks {
        let PeakBlockRow { addr, bytes, requested_bytes, step, category, confidence, site, .. } = block;
        let unknown = || "-".to_owned();
        put_line(
            out,
            format_args!(
                "    {:<18} {:>15} {:>15} {:>7}  {category:<15} {:<10} {site}",
                format!("{addr:#x}"),
                format_number(*bytes),
                requested_bytes.map_or_else(unknown, format_number),
                step.map_or_else(unknown, format_number),
                confidence.map_or("-", Confidence::name),
            ),
        );
    }
}
