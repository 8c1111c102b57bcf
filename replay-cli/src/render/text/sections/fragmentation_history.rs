//! Unused reserved memory over the whole run, and the call sites that pinned it.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::FragmentationOverTime;

use super::pools::size_head;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most call sites listed.
const MAX_PINNING_SITES: usize = 8;

pub(super) fn render_history(out: &mut String, history: &FragmentationOverTime, style: Style) {
    if history.points.is_empty() {
        return;
    }
    out.push('\n');
    let sum: u128 = history.points.iter().map(|sample| u128::from(sample.gap_bytes)).sum();
    let mean = (sum / history.points.len() as u128) as u64;
    put_line(
        out,
        format_args!(
            "  GPU {} over the run ({}): unused reserved {} on average",
            history.device,
            format_count(history.observations, "sample"),
            format_bytes(mean)
        ),
    );
    if history.pinned_by.is_empty() {
        return;
    }
    put_line(out, format_args!("  Call sites with blocks that pinned free memory:"));
    let (mean, most) = (size_head("average"), size_head("at most"));
    put_line(out, format_args!("  {mean}  {most}  {:>11}", "of the time"));
    for site in history.pinned_by.iter().take(style.row_limit(MAX_PINNING_SITES)) {
        put_line(
            out,
            format_args!(
                "  {}  {}  {:>11}  {HANG}{}",
                size_column(site.mean_bytes),
                size_column(site.most_bytes),
                format_percent(site.share_of_time),
                short_site(&site.site)
            ),
        );
    }
}
