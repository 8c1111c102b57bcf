//! `--oom`: why an allocation failed, and what would help.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::sections::size;

use super::sites::{Sites, short};
use super::{duration, fragmentation, peak, put, thousands};
use crate::output::Style;

/// Most out-of-memory events told in full.
const MAX_TOLD: usize = 5;
/// Most growing lines told with it.
const MAX_GROWN: usize = 5;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut Sites) {
    let ooms: Vec<_> = report.oom.iter().flatten().filter(|oom| oom.trace == trace).collect();
    put(out, format_args!("{}", style.bold("Out of memory")));
    if ooms.is_empty() {
        put(out, format_args!("  It never happened."));
        return;
    }
    for oom in ooms.iter().take(MAX_TOLD) {
        let step = oom.step.map(|step| format!(", step {}", thousands(step))).unwrap_or_default();
        put(out, format_args!(""));
        put(
            out,
            format_args!(
                "  Device {}, {} in{step}, at {}",
                oom.device,
                duration(oom.time_ns),
                style.bold(&short(&oom.site))
            ),
        );
        if let Some(source) = sites.source_line(&oom.site) {
            put(out, format_args!("      {source}"));
        }
        put(out, format_args!("  {}.", oom.why));
        put(
            out,
            format_args!(
                "  Tensors {}, reserved by PyTorch {}.",
                size(oom.live_bytes),
                size(oom.reserved_bytes)
            ),
        );
        put(out, format_args!("  What filled the device:"));
        peak::table(out, &oom.sites, oom.live_bytes, 10);
        if !oom.unused.is_empty() {
            put(out, format_args!("  What PyTorch held and no tensor used:"));
        }
        for cause in &oom.unused {
            put(out, format_args!("  {:>11}  {}", size(cause.bytes), fragmentation::in_words(cause)));
        }
        if !oom.growth.is_empty() {
            put(out, format_args!("  What had grown until then (--leaks tells how):"));
        }
        for grown in oom.growth.iter().take(MAX_GROWN) {
            put(out, format_args!("  {:>11}  {}", size(grown.bytes), short(&grown.site)));
        }
        for remedy in &oom.remedies {
            let works = match remedy.works {
                Some(true) => "would have worked",
                Some(false) => "would not have helped",
                None => "may help; the trace does not tell",
            };
            put(out, format_args!("  - {}: {works}", remedy.action));
        }
        if !oom.site.stack.is_empty() {
            put(out, format_args!("  Asked for at (own lines marked):"));
            sites.write_stack(out, &oom.site, "    ", style);
        }
    }
    let all = report.traces[trace].events.get("oom").copied().unwrap_or(0);
    if all > MAX_TOLD.min(ooms.len()) as u64 {
        put(out, format_args!(""));
        put(out, format_args!("  It happened {} times in all.", thousands(all)));
    }
}
