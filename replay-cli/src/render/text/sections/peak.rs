//! `--peak`: what filled the device when it was fullest.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{LeftOut, SiteShare};
use gpumemtrace_replay::sections::size;

use super::categories;
use crate::render::text::sites::{Sites, short};
use crate::render::text::{HANG, beyond, column, count, duration, percent, put, thousands};
use crate::terminal::style::Style;

/// Most sites listed.
const MAX_SITES: usize = 15;
/// Sites whose stack is shown.
const WITH_STACK: usize = 3;

pub(in crate::render::text) fn write(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut Sites,
) {
    let peaks: Vec<_> = report.peak.iter().flatten().filter(|peak| peak.trace == trace).collect();
    if peaks.is_empty() {
        put(out, format_args!("{}", style.bold("Peak")));
        put(out, format_args!("  No GPU memory was allocated."));
    }
    for peak in peaks {
        let step = peak.step.map(|step| format!(", step {}", thousands(step))).unwrap_or_default();
        let source = report.traces[trace].words().source;
        let what = if peak.layer == "torch" {
            "held by tensors".to_owned()
        } else {
            format!("allocated from {source}")
        };
        let title = format!(
            "Peak of device {}: {} {what} ({} bytes), {} in{step}",
            peak.device,
            size(peak.live_bytes),
            thousands(peak.live_bytes),
            duration(peak.time_ns)
        );
        put(out, format_args!("{}", style.bold(&title)));
        categories::write(out, peak);
        if peak.live_bytes > 0 {
            put(out, format_args!("  By line:"));
        }
        let most = style.most(MAX_SITES);
        table(out, &peak.sites, (peak.live_bytes, peak.left_out), most);
        categories::write_since(out, peak, style);
        let with_stack = if sites.full_stacks { most } else { WITH_STACK.min(most) };
        for share in peak.sites.iter().take(with_stack).filter(|share| !share.site.stack.is_empty()) {
            out.push('\n');
            put(out, format_args!("  {HANG}{}", short(&share.site)));
            if let Some(source) = sites.source_line(&share.site) {
                put(out, format_args!("      {source}"));
            }
            sites.write_stack(out, &share.site, "    ", style);
        }
        categories::write_blocks(out, peak);
    }
}

/// Sites with their bytes, largest first; what is not listed, or was left out before, is summed. `total` is of them all.
pub(in crate::render::text) fn table(
    out: &mut String,
    sites: &[SiteShare],
    (total, left_out): (u64, Option<LeftOut>),
    most: usize,
) {
    let part = |bytes: u64| if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
    for share in sites.iter().take(most) {
        put(
            out,
            format_args!(
                "  {}  {:>5}  {:>14}  {HANG}{}",
                column(share.bytes),
                percent(part(share.bytes)),
                count(share.blocks, "block"),
                short(&share.site)
            ),
        );
    }
    let (lines, bytes) = beyond(sites, most, left_out, |share| share.bytes);
    if lines == 0 {
        return;
    }
    // How many blocks the lines had that were left out before, nobody has said.
    let rest = sites.get(most..).unwrap_or_default();
    let blocks = rest.iter().fold(0u64, |sum, share| sum.saturating_add(share.blocks));
    let blocks = if left_out.is_some() { String::new() } else { count(blocks, "block") };
    put(
        out,
        format_args!(
            "  {}  {:>5}  {blocks:>14}  {HANG}{}",
            column(bytes),
            percent(part(bytes)),
            count(lines, "other line")
        ),
    );
}
