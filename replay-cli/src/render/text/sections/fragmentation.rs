//! `--fragmentation`: reserved bytes that no tensor uses, and who keeps them.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Cause, Fragmentation};
use gpumemtrace_replay::sections::size;
use gpumemtrace_replay::words::Words;

use super::cause_rows as gap_rows;
use crate::render::text::sites::{Sites, short};
use crate::render::text::{HANG, beyond, column, duration, percent, put};
use crate::terminal::style::Style;

/// Most culprits listed.
const MAX_CULPRITS: usize = 8;

pub(in crate::render::text) fn write(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    _sites: &mut Sites,
) {
    let words = report.traces[trace].words();
    let moments: Vec<_> =
        report.fragmentation.iter().flatten().filter(|moment| moment.trace == trace).collect();
    let driver_pools: Vec<_> =
        report.async_pools.iter().flatten().filter(|pool| pool.trace == trace).collect();
    let heading = format!("Reserved by {} and used by no tensor", words.reserver);
    put(out, format_args!("{}", style.bold(&heading)));
    if moments.is_empty() && driver_pools.is_empty() {
        let why = match report.traces[trace].stream {
            Some(stream) if !stream.reserved_is_known => {
                "Not known of this stream alone: PyTorch's tracker did not tell all segments."
            }
            _ if words.is_metal => "No buffer in a heap was seen in this trace.",
            _ => "PyTorch's allocator was not seen in this trace.",
        };
        put(out, format_args!("  {why}"));
    }
    for pool in driver_pools {
        gap_rows::async_pool(out, pool);
    }
    for moment in moments {
        out.push('\n');
        one(out, moment, &words, style);
    }
    for course in report.gap_over_time.iter().flatten().filter(|course| course.trace == trace) {
        gap_rows::over_time(out, course, style);
    }
}

/// One moment.
pub(in crate::render::text) fn one(out: &mut String, moment: &Fragmentation, words: &Words, style: Style) {
    let when = match moment.at.why {
        "peak_reserved" => "when most was reserved",
        "oom" => "when memory ran out",
        "at" => "at the moment asked for",
        _ => "at the end",
    };
    let share = moment.gap_bytes as f64 / moment.reserved_bytes.max(1) as f64;
    put(
        out,
        format_args!(
            "  Device {}, {when} ({} in): {} of {} reserved ({})",
            moment.device,
            duration(moment.at.time_ns),
            style.bold(&size(moment.gap_bytes)),
            size(moment.reserved_bytes),
            percent(share)
        ),
    );
    for cause in &moment.causes {
        let meaning = in_words(cause, words);
        let colon = if cause.culprits.is_empty() { "" } else { ", by their lines:" };
        put(out, format_args!("  {}  {HANG}{meaning}{colon}", column(cause.bytes)));
        let most = style.most(MAX_CULPRITS);
        for culprit in cause.culprits.iter().take(most) {
            put(out, format_args!("      {}  {HANG}{}", column(culprit.bytes), short(&culprit.site)));
        }
        let (lines, rest) = beyond(&cause.culprits, most, cause.left_out, |culprit| culprit.bytes);
        if lines > 0 && rest > 0 {
            put(out, format_args!("      {}  {HANG}other lines", column(rest)));
        }
    }
    gap_rows::pools(out, &moment.pools, words, style);
    gap_rows::usable(out, moment, words);
}

/// What a cause means to whoever has never heard its name.
pub(in crate::render::text) fn in_words(cause: &Cause, words: &Words) -> String {
    let Words { segment, block, empty_cache, .. } = words;
    match cause.cause {
        "pinned" => format!("free, but cannot be given back: in {segment}s that live {block}s keep"),
        "cache" => format!("in {segment}s without a live {block}: {empty_cache} would give it back"),
        "rounding" => "lost to rounding".to_owned(),
        "pending_free" => "given back, but another stream still uses it".to_owned(),
        "stranded_stream" => {
            format!("free, but kept for another stream: in {segment}s that live {block}s keep")
        }
        "stranded_pool" => "free, but kept for another pool (small blocks, a graph, a MemPool)".to_owned(),
        "unexplained" if words.is_metal => {
            "unexplained: where buffers lie in their heaps is not known".to_owned()
        }
        "unexplained" => "unexplained: the allocator's segments are not known".to_owned(),
        other => other.to_owned(),
    }
}
