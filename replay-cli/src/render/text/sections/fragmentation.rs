//! `--fragmentation`: reserved bytes that no tensor uses, and who keeps them.

use crate::render::wording::Vocabulary;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Cause;
use gpumemtrace_replay::report::CauseKind;
use gpumemtrace_replay::report::Fragmentation;
use gpumemtrace_replay::report::GapReason;

use super::cause_rows;
use crate::render::text::sites::{SiteFormatter, short_site};
use crate::render::text::sum_hidden_rows;
use crate::terminal::format::{format_duration, format_percent, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most culprits listed.
const MAX_CULPRITS: usize = 8;

pub(super) fn render_fragmentation(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    _sites: &mut SiteFormatter,
) {
    let words = Vocabulary::of_trace(&report.traces[trace]);
    let moments: Vec<_> =
        report.fragmentation.iter().flatten().filter(|moment| moment.trace == trace).collect();
    let driver_pools: Vec<_> =
        report.async_pools.iter().flatten().filter(|pool| pool.trace == trace).collect();
    let heading = format!("Reserved by {} and used by no tensor", words.reserver);
    put_line(out, format_args!("{}", style.bold(&heading)));
    if moments.is_empty() && driver_pools.is_empty() {
        let why = match report.traces[trace].stream {
            Some(stream) if !stream.is_reserved_known => {
                "Not known of this stream alone: PyTorch's tracker did not tell all segments."
            }
            _ if words.is_metal => "No buffer in a heap was seen in this trace.",
            _ => "PyTorch's allocator was not seen in this trace.",
        };
        put_line(out, format_args!("  {why}"));
    }
    for pool in driver_pools {
        cause_rows::render_async_pool(out, pool);
    }
    for moment in moments {
        out.push('\n');
        render_snapshot_gap(out, moment, &words, style);
    }
    for course in report.fragmentation_over_time.iter().flatten().filter(|course| course.trace == trace) {
        cause_rows::render_gap_over_time(out, course, style);
    }
}

/// One moment.
pub(in crate::render::text) fn render_snapshot_gap(
    out: &mut String,
    moment: &Fragmentation,
    words: &Vocabulary,
    style: Style,
) {
    let when = match moment.at.why {
        GapReason::PeakReserved => "when most was reserved",
        GapReason::Oom => "when memory ran out",
        GapReason::At => "at the moment asked for",
        GapReason::End => "at the end",
    };
    let share = moment.gap_bytes as f64 / moment.reserved_bytes.max(1) as f64;
    put_line(
        out,
        format_args!(
            "  Device {}, {when} ({} in): {} of {} reserved ({})",
            moment.device,
            format_duration(moment.at.time_ns),
            style.bold(&format_bytes(moment.gap_bytes)),
            format_bytes(moment.reserved_bytes),
            format_percent(share)
        ),
    );
    for cause in &moment.causes {
        let meaning = describe_cause(cause, words);
        let colon = if cause.culprits.is_empty() { "" } else { ", by their lines:" };
        put_line(out, format_args!("  {}  {HANG}{meaning}{colon}", size_column(cause.bytes)));
        let most = style.row_limit(MAX_CULPRITS);
        for culprit in cause.culprits.iter().take(most) {
            put_line(
                out,
                format_args!("      {}  {HANG}{}", size_column(culprit.bytes), short_site(&culprit.site)),
            );
        }
        let (lines, rest) = sum_hidden_rows(&cause.culprits, most, cause.omitted, |culprit| culprit.bytes);
        if lines > 0 && rest > 0 {
            put_line(out, format_args!("      {}  {HANG}other lines", size_column(rest)));
        }
    }
    cause_rows::render_pools(out, &moment.pools, words, style);
    cause_rows::render_usable(out, moment, words);
}

/// What a cause means to whoever has never heard its name.
pub(in crate::render::text) fn describe_cause(cause: &Cause, words: &Vocabulary) -> String {
    let Vocabulary { segment, block, empty_cache, .. } = words;
    match cause.cause {
        CauseKind::Pinned => format!("free, but cannot be given back: in {segment}s that live {block}s keep"),
        CauseKind::Cache => format!("in {segment}s without a live {block}: {empty_cache} would give it back"),
        CauseKind::Rounding => "lost to rounding".to_owned(),
        CauseKind::PendingFree => "given back, but another stream still uses it".to_owned(),
        CauseKind::StrandedStream => {
            format!("free, but kept for another stream: in {segment}s that live {block}s keep")
        }
        CauseKind::StrandedPool => {
            "free, but kept for another pool (small blocks, a graph, a MemPool)".to_owned()
        }
        CauseKind::Unexplained if words.is_metal => {
            "unexplained: where buffers lie in their heaps is not known".to_owned()
        }
        CauseKind::Unexplained => "unexplained: the allocator's segments are not known".to_owned(),
    }
}
