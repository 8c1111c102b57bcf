//! `--peak`: what filled the device when it was fullest.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::MemoryLayer;
use gpumemtrace_replay::report::Omitted;
use gpumemtrace_replay::report::SiteShare;

use super::categories;
use crate::render::text::sites::{SiteFormatter, short_site};
use crate::render::text::sum_hidden_rows;
use crate::terminal::format::{
    format_count, format_duration, format_number, format_percent, put_line, size_column,
};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most sites listed.
const MAX_SITES: usize = 15;
/// Sites whose stack is shown.
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
        put_line(out, format_args!("  No GPU memory was allocated."));
    }
    for peak in peaks {
        let step = peak.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default();
        let source = crate::render::wording::Vocabulary::of_trace(&report.traces[trace]).source;
        let what = if peak.layer == MemoryLayer::Torch {
            "held by tensors".to_owned()
        } else {
            format!("allocated from {source}")
        };
        let title = format!(
            "Peak of device {}: {} {what} ({} bytes), {} in{step}",
            peak.device,
            format_bytes(peak.live_bytes),
            format_number(peak.live_bytes),
            format_duration(peak.time_ns)
        );
        put_line(out, format_args!("{}", style.bold(&title)));
        categories::render_categories(out, peak);
        if peak.live_bytes > 0 {
            put_line(out, format_args!("  By line:"));
        }
        let most = style.row_limit(MAX_SITES);
        render_site_table(out, &peak.sites, (peak.live_bytes, peak.omitted), most);
        categories::render_changes(out, peak, style);
        let with_stack = if sites.full_stacks { most } else { WITH_STACK.min(most) };
        for share in peak.sites.iter().take(with_stack).filter(|share| !share.site.stack.is_empty()) {
            out.push('\n');
            put_line(out, format_args!("  {HANG}{}", short_site(&share.site)));
            if let Some(source) = sites.source_line(&share.site) {
                put_line(out, format_args!("      {source}"));
            }
            sites.write_stack(out, &share.site, "    ", style);
        }
        categories::render_blocks(out, peak);
    }
}

/// Sites with their bytes, largest first; what is not listed, or was left out before, is summed. `total` is of them all.
pub(in crate::render::text) fn render_site_table(
    out: &mut String,
    sites: &[SiteShare],
    (total, omitted): (u64, Option<Omitted>),
    most: usize,
) {
    let part = |bytes: u64| if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    for share in sites.iter().take(most) {
        put_line(
            out,
            format_args!(
                "  {}  {:>5}  {:>14}  {HANG}{}",
                size_column(share.bytes),
                format_percent(part(share.bytes)),
                format_count(share.blocks, "block"),
                short_site(&share.site)
            ),
        );
    }
    let (lines, bytes) = sum_hidden_rows(sites, most, omitted, |share| share.bytes);
    if lines == 0 {
        return;
    }
    // How many blocks the lines had that were left out before, nobody has said.
    let rest = sites.get(most..).unwrap_or_default();
    let blocks = rest.iter().fold(0u64, |sum, share| sum.saturating_add(share.blocks));
    let blocks = if omitted.is_some() { String::new() } else { format_count(blocks, "block") };
    put_line(
        out,
        format_args!(
            "  {}  {:>5}  {blocks:>14}  {HANG}{}",
            size_column(bytes),
            format_percent(part(bytes)),
            format_count(lines, "other line")
        ),
    );
}
