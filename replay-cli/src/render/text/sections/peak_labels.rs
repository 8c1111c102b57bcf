//! The labels of blocks in a trace, compared with the categories of the report.

use gpumemtrace_replay::report::{Category, LabelDifference, LabelPair, Peak, PeakLabels};

use crate::render::wording::categories::label_category;
use crate::render::wording::sites::short_site;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// Most rows of a table without `--top`.
const MAX_ROWS: usize = 12;

/// Each label with the categories of its blocks, how much of them agrees, and what differs.
pub(super) fn render_labels(out: &mut String, peak: &Peak, style: Style) {
    let Some(labels) = &peak.labels else { return };
    let most = style.row_limit(MAX_ROWS);
    put_line(out, format_args!("  By label in the file (PyTorch's category or user_metadata) and category:"));
    for pair in labels.pairs.iter().take(most) {
        let row = (pair.bytes, peak.live_bytes, pair.blocks);
        put_row(out, row, &describe_pair(pair));
    }
    if labels.pairs.len() > most {
        let others = format_count((labels.pairs.len() - most) as u64, "other pair");
        put_line(out, format_args!("  {others}"));
    }
    put_line(out, format_args!("  {HANG}{}", describe_agreement(labels)));
    if labels.differences.is_empty() {
        return;
    }
    put_line(out, format_args!("  Where they differ:"));
    for LabelDifference { site, label, category, bytes, blocks } in labels.differences.iter().take(most) {
        let what = format!("{}: {}, here {}", short_site(site), escape_text(label), short_name(*category));
        put_row(out, (*bytes, peak.live_bytes, *blocks), &what);
    }
    if labels.differences.len() > most {
        let others = format_count((labels.differences.len() - most) as u64, "other difference");
        put_line(out, format_args!("  {others}"));
    }
}

fn put_row(out: &mut String, (bytes, total, blocks): (u64, u64, u64), what: &str) {
    let share = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    let blocks = format_count(blocks, "block");
    put_line(
        out,
        format_args!("  {}  {:>5}  {blocks:>14}  {HANG}{what}", size_column(bytes), format_percent(share)),
    );
}

fn describe_pair(pair: &LabelPair) -> String {
    let label = pair.label.as_deref().map_or_else(|| "no label".to_owned(), escape_text);
    let differs = if pair.agrees == Some(false) { " (differs)" } else { "" };
    format!("{label}: {}{differs}", short_name(pair.category))
}

fn describe_agreement(labels: &PeakLabels) -> String {
    match labels.agreeing_share {
        Some(share) => format!(
            "Label and report both name a category for {}, and {} of that agrees.",
            format_bytes(labels.compared_bytes),
            format_percent(share)
        ),
        None => "No label names a category of this report, so they are not compared.".to_owned(),
    }
}

/// The name of a category without its explanation.
fn short_name(category: Category) -> &'static str {
    label_category(category).split(" (").next().unwrap_or_default()
}
