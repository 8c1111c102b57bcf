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
    put_line(
        out,
        format_args!(
            "  GPU {} over the run ({}): unused reserved {} on average",
            history.device,
            describe_samples(history),
            format_bytes(mean_gap_bytes(history))
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

/// The number of samples, and their distance.
fn describe_samples(history: &FragmentationOverTime) -> String {
    let samples = format_count(history.points.len() as u64, "sample");
    let distance = format_count(history.events_between_points, "event");
    let limit =
        if history.is_limited_by_blocks { "; fewer than usual, because many blocks were live" } else { "" };
    format!("{samples}, one every {distance}{limit}")
}

/// The mean over time: between two samples, the first is assumed to hold.
fn mean_gap_bytes(history: &FragmentationOverTime) -> u64 {
    let points = &history.points;
    let Some(first) = points.first() else { return 0 };
    let end_ns = first.time_ns.saturating_add(history.span_ns);
    let ends = points.iter().skip(1).map(|next| next.time_ns).chain([end_ns]);
    let spans = points.iter().zip(ends).map(|(point, end)| (point, end.saturating_sub(point.time_ns)));
    let (sum, span_ns) = spans.fold((0u128, 0u128), |(sum, all_ns), (point, ns)| {
        (sum + u128::from(point.gap_bytes) * u128::from(ns), all_ns + u128::from(ns))
    });
    sum.checked_div(span_ns).map_or(first.gap_bytes, |mean| mean as u64)
}
