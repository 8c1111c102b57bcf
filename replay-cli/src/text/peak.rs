//! `--peak`: what filled the device when it was fullest.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::SiteShare;
use gpumemtrace_replay::sections::size;

use super::sites::{Sites, short};
use super::{categories, count, duration, percent, put, thousands};
use crate::output::Style;

/// Most sites listed.
const MAX_SITES: usize = 15;
/// Sites whose stack is shown.
const WITH_STACK: usize = 3;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut Sites) {
    let peaks: Vec<_> = report.peak.iter().flatten().filter(|peak| peak.trace == trace).collect();
    if peaks.is_empty() {
        put(out, format_args!("{}", style.bold("Peak")));
        put(out, format_args!("  No GPU memory was allocated."));
    }
    for peak in peaks {
        let step = peak.step.map(|step| format!(", step {}", thousands(step))).unwrap_or_default();
        let what = if peak.layer == "torch" { "held by tensors" } else { "allocated from the driver" };
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
        table(out, &peak.sites, peak.live_bytes, MAX_SITES);
        categories::write_since(out, peak, style);
        let with_stack = if sites.full_stacks { MAX_SITES } else { WITH_STACK };
        for share in peak.sites.iter().take(with_stack).filter(|share| !share.site.stack.is_empty()) {
            out.push('\n');
            put(out, format_args!("  {}", short(&share.site)));
            if let Some(source) = sites.source_line(&share.site) {
                put(out, format_args!("      {source}"));
            }
            sites.write_stack(out, &share.site, "    ", style);
        }
        categories::write_blocks(out, peak);
    }
}

/// Sites with their bytes, largest first; what is not listed is summed.
pub(super) fn table(out: &mut String, sites: &[SiteShare], total: u64, most: usize) {
    for share in sites.iter().take(most) {
        let part = if total == 0 { 0.0 } else { share.bytes as f64 / total as f64 };
        put(
            out,
            format_args!(
                "  {:>11}  {:>5}  {:>14}  {}",
                size(share.bytes),
                percent(part),
                count(share.blocks, "block"),
                short(&share.site)
            ),
        );
    }
    if sites.len() > most {
        let rest = &sites[most..];
        let (bytes, blocks) =
            rest.iter().fold((0, 0), |(bytes, blocks), s| (bytes + s.bytes, blocks + s.blocks));
        let part = if total == 0 { 0.0 } else { bytes as f64 / total as f64 };
        put(
            out,
            format_args!(
                "  {:>11}  {:>5}  {:>14}  {} more",
                size(bytes),
                percent(part),
                count(blocks, "block"),
                count(rest.len() as u64, "line")
            ),
        );
    }
}
