//! What limits the numbers of a report, one sentence each.
//!
//! Sources are the notes of the trace, the state of PyTorch's allocator tracker, filters, counters
//! of the recorder, and native addresses without names.

use gpumemtrace_replay::report::{Naming, TraceInfo};
use gpumemtrace_replay::{Report, StreamId};

use crate::render::wording::moment::format_step;
use crate::render::wording::recording::{describe_tracker, explain_unnamed};
use crate::render::wording::{Vocabulary, is_caveat};
use crate::terminal::format::{format_count, format_duration, format_number};
use crate::terminal::paths::straighten_path;
use crate::terminal::units::format_bytes;

/// Most modules named as the reason for addresses without a name.
const MAX_REASONS: usize = 4;

/// Every caveat of a trace as a phrase without a full stop, filters first.
pub(super) fn list_caveats(report: &Report, info: &TraceInfo) -> Vec<String> {
    let mut caveats = describe_filters(report, info);
    let tracker = info.torch_tracker.and_then(|state| describe_tracker(state, info.pluggable));
    caveats.extend(tracker.map(str::to_owned));
    let notes = info.notes.iter().filter(|note| is_caveat(&note.fact));
    caveats.extend(notes.map(|note| note.message.trim_end_matches('.').to_owned()));
    caveats.extend(describe_counters(info));
    caveats.extend(info.symbols.iter().flat_map(describe_naming));
    caveats
}

/// What the report leaves out on request.
fn describe_filters(report: &Report, info: &TraceInfo) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(since) = info.since {
        let moment = format!("{}{}", format_duration(since.time_ns), format_step(" (step ", since.step));
        let end = if since.step.is_some() { ")" } else { "" };
        parts.push(format!("only from {moment}{end} on (--since). Blocks that were live then still count"));
    }
    if let Some(stream) = info.stream {
        let reserved = if stream.is_reserved_known {
            "Reserved counts the segments of this stream"
        } else {
            "Its reserved memory is unknown"
        };
        parts.push(format!(
            "only blocks of stream {} (--stream). {reserved}. Driver memory and out-of-memory errors \
             belong to no stream",
            StreamId(stream.stream)
        ));
        if stream.unknown_blocks > 0 {
            parts.push(format!(
                "{} ({}) are not counted, because their stream is unknown",
                format_count(stream.unknown_blocks, "block"),
                format_bytes(stream.unknown_bytes)
            ));
        }
    }
    let Some(filters) = &report.filters else { return parts };
    if !filters.devices.is_empty() {
        let devices: Vec<String> = filters.devices.iter().map(u32::to_string).collect();
        parts.push(format!("only GPU {} (--gpu)", devices.join(", ")));
    }
    if let Some(site) = &filters.site {
        parts.push(format!("only call sites that match {site:?} (--site). The others are summed up"));
    }
    parts
}

/// What the recorder counted instead of recording it.
fn describe_counters(info: &TraceInfo) -> Vec<String> {
    let losses = &info.losses;
    let uncovered = if Vocabulary::of_trace(info).is_metal {
        ("method or object of Metal was", "methods or objects of Metal were")
    } else {
        ("call of an allocating driver function was", "calls of allocating driver functions were")
    };
    let counters = [
        (losses.truncated_stacks, ("stack was", "stacks were"), "cut at the maximum depth"),
        (losses.unresolved_frames, ("stack frame has", "stack frames have"), "no name"),
        (losses.uncovered_calls, uncovered, "not recorded; that memory is not in this report"),
    ];
    let counted = counters.into_iter().filter(|(number, ..)| *number > 0);
    counted
        .map(|(number, (one, many), rest)| {
            format!("{} {} {rest}", format_number(number), if number == 1 { one } else { many })
        })
        .collect()
}

/// Native addresses that are printed without a name, and uncertain orders of frames. Neither is a
/// loss: the trace has the addresses.
fn describe_naming(naming: &Naming) -> Vec<String> {
    let mut notes = Vec::new();
    if naming.unresolved > 0 {
        let reasons = naming.reasons.iter().take(MAX_REASONS).map(|reason| {
            let module = reason.module.as_deref().map_or_else(|| "no module".to_owned(), straighten_path);
            format!("{} in {module} ({})", format_number(reason.addresses), explain_unnamed(reason.why))
        });
        let mut reasons: Vec<String> = reasons.collect();
        if naming.reasons.len() > MAX_REASONS {
            let more = format_count((naming.reasons.len() - MAX_REASONS) as u64, "more module");
            reasons.push(format!("and in {more} (see --json)"));
        }
        notes.push(format!(
            "no name for {} of {} native addresses, shown as module+offset: {}",
            format_number(naming.unresolved),
            format_number(naming.addresses),
            reasons.join("; ")
        ));
    }
    if naming.approximate_stacks > 0 {
        notes.push(format!(
            "in {}, the order of Python and native frames is approximate",
            format_count(naming.approximate_stacks, "stack")
        ));
    }
    notes
}
