//! Quantities of the whole run and of each GPU that differ.

use gpumemtrace_replay::compare::Comparison;
use gpumemtrace_replay::compare::TotalChange;
use gpumemtrace_replay::report::display::Vocabulary;
use gpumemtrace_replay::report::display::format_bytes;

use super::format_change;
use crate::terminal::format::{format_number, put_line};
use crate::terminal::style::Style;

/// Columns of the row names.
const NAME_WIDTH: usize = 32;

pub(super) fn render_totals(out: &mut String, comparison: &Comparison, style: Style) {
    let mut sorted: Vec<&TotalChange> = comparison.totals.iter().collect();
    let words = comparison.runs.each_ref().map(|run| run.words);
    sorted.sort_by_key(|total| (total.device, total_order(total)));
    for (at, total) in sorted.iter().enumerate() {
        if at == 0 || sorted[at - 1].device != total.device {
            if at > 0 {
                out.push('\n');
            }
            let title = total.device.map_or_else(|| "Run".to_owned(), |device| format!("GPU {device}"));
            let title = style.bold(&format!("{title:<NAME_WIDTH$}"));
            put_line(out, format_args!("{title}{:>14}{:>14}{:>14}", "before", "after", "change"));
        }
        let number = |value: Option<u64>| match (value, total.unit) {
            (None, _) => "unknown".to_owned(),
            (Some(value), "bytes") => format_bytes(value),
            (Some(value), _) => format_number(value),
        };
        let change =
            total.change.map(|change| format_change(change, total.unit == "bytes")).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "{:<NAME_WIDTH$}{:>14}{:>14}{change:>14}",
                format!("  {}", name_total(total, &words)),
                number(total.before),
                number(total.after)
            ),
        );
    }
}

/// The name of a quantity, with the words of the two runs' backends.
fn name_total(total: &TotalChange, runs: &[Vocabulary; 2]) -> String {
    let is_metal = runs.iter().any(|words| words.is_metal);
    let is_other = runs.iter().any(|words| !words.is_metal);
    let name = match &*total.name {
        "peak_live_bytes" if is_metal && is_other => "peak allocated, or in buffers",
        "peak_live_bytes" => "peak allocated",
        "peak_reserved_bytes" if is_metal && is_other => "peak reserved, or in heaps",
        "peak_reserved_bytes" if is_metal => "peak of Metal heaps",
        "peak_reserved_bytes" => "peak reserved",
        "peak_device_bytes" if is_metal && is_other => "peak of driver, or Metal",
        "peak_device_bytes" if is_metal => "peak of Metal",
        "peak_device_bytes" => "peak of driver",
        "gap_bytes" => "unused reserved",
        "retained_bytes" => "allocated at last step end",
        "peak_bytes_per_step" => "peak of a step",
        "bytes_per_step" => "allocated per step",
        "allocations_per_step" => "allocations per step",
        "ooms" => "out-of-memory errors",
        name => match name.split_once('.') {
            Some(("gap", cause)) => return format!("  {}", name_cause(cause)),
            Some(("held_by", owner)) => return format!("  {owner}"),
            _ => name,
        },
    };
    name.to_owned()
}

/// A cause of unused reserved memory.
fn name_cause(cause: &str) -> &str {
    match cause {
        "pinned" => "pinned by live blocks",
        "cache" => "in fully free segments",
        "pending_free" => "waiting for a stream",
        "stranded_stream" => "cached for other streams",
        "stranded_pool" => "in other pools",
        other => other,
    }
}

/// The order of rows: each quantity before its parts.
fn total_order(total: &TotalChange) -> usize {
    let order = [
        "steps",
        "ooms",
        "peak_live_bytes",
        "peak_reserved_bytes",
        "gap_bytes",
        "gap.",
        "peak_device_bytes",
        "held_by.",
        "retained_bytes",
        "peak_bytes_per_step",
        "bytes_per_step",
        "allocations_per_step",
    ];
    let is_match = |name: &str| total.name == name || name.ends_with('.') && total.name.starts_with(name);
    order.iter().position(|name| is_match(name)).unwrap_or(order.len())
}
