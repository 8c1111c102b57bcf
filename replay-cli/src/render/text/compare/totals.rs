//! Quantities of the whole run and of each GPU that differ.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::compare::{Comparison, TotalChange};
use gpumemtrace_replay::report::AmountUnit;

use crate::render::wording::comparison::format_change;
use crate::render::wording::{Vocabulary, name_total};
use crate::terminal::format::{format_number, put_line};
use crate::terminal::style::Style;

/// Columns of the row names.
const NAME_WIDTH: usize = 32;

pub(super) fn render_totals(out: &mut String, comparison: &Comparison, style: Style) {
    let mut sorted: Vec<&TotalChange> = comparison.totals.iter().collect();
    let words = comparison.runs.each_ref().map(Vocabulary::of_run);
    // Quantities are declared in the order of the table.
    sorted.sort_by(|a, b| (a.device, &a.name).cmp(&(b.device, &b.name)));
    for (at, total) in sorted.iter().enumerate() {
        if at == 0 || sorted[at - 1].device != total.device {
            if at > 0 {
                out.push('\n');
            }
            let title = total.device.map_or_else(|| "Run".to_owned(), |device| format!("GPU {device}"));
            let title = style.bold(&format!("{title:<NAME_WIDTH$}"));
            put_line(out, format_args!("{title}{:>14}{:>14}{:>14}", "before", "after", "change"));
        }
        let is_bytes = total.unit == AmountUnit::Bytes;
        let number = |value: Option<u64>| match value {
            None => "unknown".to_owned(),
            Some(value) if is_bytes => format_bytes(value),
            Some(value) => format_number(value),
        };
        let change = total.change.map(|change| format_change(change, is_bytes)).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "{:<NAME_WIDTH$}{:>14}{:>14}{change:>14}",
                format!("  {}", name_total(&total.name, &words)),
                number(total.before),
                number(total.after)
            ),
        );
    }
}
