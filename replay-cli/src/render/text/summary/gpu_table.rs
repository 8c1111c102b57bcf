//! The table of a GPU: allocated, reserved and driver memory, each at its own highest, and at the
//! end of the program. A program that frees most of its memory before its end, as one with a
//! `main()` does, has the end of its last step instead.

use crate::render::wording::Vocabulary;
use crate::terminal::escape::escape_text;
use crate::terminal::units::{chosen_units, format_bytes};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Device, Fragmentation, GapReason};

use crate::render::text::sections::fragmentation;
use crate::render::wording::end_levels::EndLevels;
use crate::terminal::format::{format_percent, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Columns of the row names.
const NAME_WIDTH: usize = 24;

pub(super) fn render_gpu_tables(out: &mut String, report: &Report, trace: usize, style: Style) {
    let words = Vocabulary::of_trace(&report.traces[trace]);
    for device in report.devices.iter().filter(|device| device.trace == trace) {
        out.push('\n');
        let gaps = report.fragmentation.iter().flatten();
        let gaps: Vec<_> = gaps.filter(|gap| (gap.trace, gap.device) == (trace, device.device)).collect();
        render_gpu_table(out, device, &gaps, &words, style);
    }
}

fn render_gpu_table(
    out: &mut String,
    device: &Device,
    gaps: &[&Fragmentation],
    words: &Vocabulary,
    style: Style,
) {
    let width = chosen_units().columns() + 1;
    let title = format_title(device, words);
    let padding = NAME_WIDTH.checked_sub(title.chars().count());
    let title = style.bold(&title);
    if padding.is_none() {
        put_line(out, format_args!("{title}"));
    }
    let (title, padding) = padding.map_or(("", NAME_WIDTH), |padding| (&*title, padding));
    let padding = " ".repeat(padding);
    let (peak, end) = (&device.peak, EndLevels::of_device(device));
    let (column, moment) = (end.title, &end.moment);
    put_line(out, format_args!("{title}{padding}{:>width$} {column:>width$}  {HANG}({moment})", "highest"));
    let mut render_row = |name: &str, (peak, end): (Option<u64>, Option<u64>), remark: &str| {
        let remark = if remark.is_empty() { String::new() } else { format!("  {HANG}{remark}") };
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        put_line(
            out,
            format_args!(
                "{:<NAME_WIDTH$}{:>width$} {:>width$}{remark}",
                format!("  {name}"),
                known(peak),
                known(end)
            ),
        );
    };
    let share = |bytes: u64| describe_share(device, bytes, words);
    if let Some(sleep) = &device.sleep {
        render_row("allocated", (peak.live_bytes, end.live_bytes), "as PyTorch counts it");
        let (asleep, full) = (format_bytes(sleep.most_asleep_bytes), share(sleep.peak_backed_bytes));
        let remark: Vec<String> =
            full.into_iter().chain([format!("up to {asleep} unmapped (sleep mode)")]).collect();
        let backed = (Some(sleep.peak_backed_bytes), Some(sleep.end_backed_bytes));
        render_row("  of it mapped", backed, &remark.join("; "));
    } else {
        let full = peak.live_bytes.and_then(share).unwrap_or_default();
        render_row("allocated", (peak.live_bytes, end.live_bytes), &full);
    }
    render_row(words.reserved_row, (peak.reserved_bytes, end.reserved_bytes), "");
    let gap_at = |why| gaps.iter().find(|gap| gap.at.why == why);
    if let Some(gap) = gap_at(GapReason::PeakReserved) {
        let cause = fragmentation::summarize_causes(gap, words).unwrap_or_default();
        let at_end = gap_at(end.gap).map(|gap| gap.gap_bytes);
        // Of the highest reserved memory, and of that at the end.
        render_row("  of it unused", (Some(gap.gap_bytes), at_end), &cause);
    }
    render_row(words.source_short, (peak.device_bytes, end.device_bytes), "");
}

/// `GPU 0 (24.00 GiB)`, `GPU 0 (NVIDIA H100 80GB HBM3, 79.10 GiB)`.
fn format_title(device: &Device, words: &Vocabulary) -> String {
    let total = device.total_bytes.map(|bytes| {
        let recommended = if words.is_metal { " recommended" } else { "" };
        format!("{}{recommended}", format_bytes(bytes))
    });
    let facts: Vec<String> = device.name.as_deref().map(escape_text).into_iter().chain(total).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    format!("GPU {}{facts}", device.device)
}

/// `peak 85% of GPU 0`.
fn describe_share(device: &Device, bytes: u64, words: &Vocabulary) -> Option<String> {
    let total = device.total_bytes.filter(|total| *total > 0)?;
    let share = format_percent(bytes as f64 / total as f64);
    let whole = if words.is_metal { "that size".to_owned() } else { format!("GPU {}", device.device) };
    Some(format!("peak {share} of {whole}"))
}
