//! `--peak`: what filled the GPU when most memory was allocated.

use crate::render::wording::Vocabulary;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{MemoryLayer, Omitted, Peak, SiteShare};

use super::{categories, peak_changes, peak_labels};
use crate::render::text::sites::SiteFormatter;
use crate::render::text::sum_hidden_rows;
use crate::render::wording::moment::format_moment;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_number, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most call sites listed.
const MAX_SITES: usize = 15;
/// Call sites printed with their stack.
const WITH_STACK: usize = 3;

pub(super) fn render_peak(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let peaks: Vec<_> = report.peak.iter().flatten().filter(|peak| peak.trace == trace).collect();
    if peaks.is_empty() {
        put_line(out, format_args!("{}", style.bold("Peak")));
        put_line(out, format_args!("  No GPU memory is in the trace."));
    }
    let words = Vocabulary::of_trace(&report.traces[trace]);
    for (number, peak) in peaks.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let title = format!(
            "Peak of GPU {}: {} {} ({} bytes), {}",
            peak.device,
            format_bytes(peak.live_bytes),
            describe_layer(peak.layer, &words),
            format_number(peak.live_bytes),
            format_moment(&words, peak.time_ns, peak.step)
        );
        put_line(out, format_args!("{}", style.bold(&title)));
        render_lists(out, peak, style, sites);
    }
}

fn render_lists(out: &mut String, peak: &Peak, style: Style, sites: &mut SiteFormatter) {
    categories::render_categories(out, peak);
    peak_labels::render_labels(out, peak, style);
    if peak.live_bytes > 0 {
        put_line(out, format_args!("  By call site:"));
    }
    let most = style.row_limit(MAX_SITES);
    render_site_table(out, &peak.sites, (peak.live_bytes, peak.omitted), most);
    peak_changes::render_changes(out, peak, style);
    let with_stack = if sites.full_stacks { most } else { WITH_STACK.min(most) };
    for share in peak.sites.iter().take(with_stack).filter(|share| !share.site.stack.is_empty()) {
        out.push('\n');
        put_line(out, format_args!("  {HANG}{}", short_site(&share.site)));
        if let Some(source) = sites.source_line(&share.site) {
            put_line(out, format_args!("      {source}"));
        }
        sites.write_stack(out, &share.site, "    ", style);
    }
    peak_changes::render_blocks(out, peak);
}

/// `allocated`, or for a program without PyTorch `from the driver`.
pub(in crate::render::text) fn describe_layer(layer: MemoryLayer, words: &Vocabulary) -> String {
    match layer {
        MemoryLayer::Torch => "allocated".to_owned(),
        MemoryLayer::Device => format!("from {}", words.source),
    }
}

/// Call sites with their bytes, largest first. The last row sums up those beyond `most` and those
/// that a filter removed. `total` is the sum of all.
pub(in crate::render::text) fn render_site_table(
    out: &mut String,
    sites: &[SiteShare],
    (total, omitted): (u64, Option<Omitted>),
    most: usize,
) {
    let share_of = |bytes: u64| if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    for share in sites.iter().take(most) {
        put_line(
            out,
            format_args!(
                "  {}  {:>5}  {:>14}  {HANG}{}",
                size_column(share.bytes),
                format_percent(share_of(share.bytes)),
                format_count(share.blocks, "block"),
                short_site(&share.site)
            ),
        );
    }
    let (others, bytes) = sum_hidden_rows(sites, most, omitted, |share| share.bytes);
    if others == 0 {
        return;
    }
    // The number of blocks is unknown for rows that a filter removed.
    let rest = sites.get(most..).unwrap_or_default();
    let blocks = rest.iter().fold(0u64, |sum, share| sum.saturating_add(share.blocks));
    let blocks = if omitted.is_some() { String::new() } else { format_count(blocks, "block") };
    put_line(
        out,
        format_args!(
            "  {}  {:>5}  {blocks:>14}  {HANG}{}",
            size_column(bytes),
            format_percent(share_of(bytes)),
            format_count(others, "other call site")
        ),
    );
}
