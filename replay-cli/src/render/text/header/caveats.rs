//! What limits the numbers of a report, one sentence each.
//!
//! Sources are the notes of the trace, the state of PyTorch's allocator tracker, filters, counters
//! of the recorder, and native addresses without names.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::StreamId;
use gpumemtrace_replay::report::Naming;
use gpumemtrace_replay::report::TraceInfo;
use gpumemtrace_replay::report::display::format_bytes;

use crate::render::text::moment::format_step;
use crate::terminal::format::{format_count, format_duration, format_number};
use crate::terminal::paths::straighten_path;

/// Most modules named as the reason for addresses without a name.
const MAX_REASONS: usize = 4;

/// The notes of a trace by importance.
pub(super) struct SortedNotes {
    /// Parts that are missing from the trace.
    pub(super) losses: Vec<String>,
    /// Limits of what the numbers show.
    pub(super) caveats: Vec<String>,
    /// The rest, for `-v`.
    pub(super) details: Vec<String>,
}

pub(super) fn sort_notes(info: &TraceInfo) -> SortedNotes {
    let mut sorted = SortedNotes { losses: Vec::new(), caveats: Vec::new(), details: Vec::new() };
    for note in &info.notes {
        let is_detail = note.contains("of the events are of backward threads")
            || note.contains("marks of the program are not listed");
        if is_detail {
            sorted.details.push(note.clone());
        } else if info.complete {
            sorted.caveats.push(note.clone());
        } else {
            sorted.losses.push(note.clone());
        }
    }
    sorted
}

/// Every caveat of a trace, filters first.
pub(super) fn list_caveats(report: &Report, info: &TraceInfo, notes: &SortedNotes) -> Vec<String> {
    let mut caveats = describe_filters(report, info);
    caveats.extend(describe_tracker(info).map(str::to_owned));
    caveats.extend(notes.caveats.iter().cloned());
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
        parts.push(format!("only from {moment}{end} on (--since). Blocks that were live then still count."));
    }
    if let Some(stream) = info.stream {
        let reserved = if stream.reserved_is_known {
            "Reserved counts the segments of this stream"
        } else {
            "Its reserved memory is unknown"
        };
        parts.push(format!(
            "only blocks of stream {} (--stream). {reserved}. Driver memory and out-of-memory errors \
             belong to no stream.",
            StreamId(stream.stream)
        ));
        if stream.unknown_blocks > 0 {
            parts.push(format!(
                "{} ({}) are not counted, because their stream is unknown.",
                format_count(stream.unknown_blocks, "block"),
                format_bytes(stream.unknown_bytes)
            ));
        }
    }
    let Some(filters) = &report.filters else { return parts };
    if !filters.devices.is_empty() {
        let devices: Vec<String> = filters.devices.iter().map(u32::to_string).collect();
        parts.push(format!("only GPU {} (--device).", devices.join(", ")));
    }
    if let Some(site) = &filters.site {
        parts.push(format!("only call sites that match {site:?} (--site). The others are summed up."));
    }
    parts
}

/// What is unknown about PyTorch's allocator and why; `None` if its tracker was attached, or if
/// there was no PyTorch. Blocks and totals are exact in any case.
fn describe_tracker(info: &TraceInfo) -> Option<&'static str> {
    let pluggable = info.pluggable.as_deref();
    if pluggable == Some("segments") {
        return Some("gpumemtrace allocated the segments of a torch.cuda.MemPool.");
    }
    match info.torch_tracker? {
        // The notes of the trace say so.
        _ if pluggable == Some("uncached") => None,
        "attached" | "own_allocator" => None,
        "not_wanted" => Some(
            "requested sizes, streams and pools are unknown: the allocator tracker was off \
             (GPUMEMTRACE_TRACKER=off).",
        ),
        "unknown_version" => Some(
            "requested sizes, streams and pools are unknown: this gpumemtrace does not know the \
             allocator tracker of this PyTorch version.",
        ),
        "no_tracker" => Some(
            "requested sizes, streams and pools are unknown: this PyTorch version has no \
             allocator tracker.",
        ),
        "unreadable" => Some(
            "requested sizes, streams and pools are unknown: PyTorch's library could not be \
             read.",
        ),
        "other_allocator" => Some(
            "PyTorch did not use its native caching allocator, so its blocks are driver \
             allocations.",
        ),
        "cache_off" => Some(
            "PyTorch's caching allocator was off (PYTORCH_NO_CUDA_MEMORY_CACHING), so its blocks \
             are driver allocations.",
        ),
        _ => Some(
            "requested sizes, streams and pools are unknown: the allocator tracker did not \
             report what the allocator did.",
        ),
    }
}

/// What the recorder counted instead of recording it.
fn describe_counters(info: &TraceInfo) -> Vec<String> {
    let losses = &info.losses;
    let uncovered = if info.vocabulary().is_metal {
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
            format!("{} {} {rest}.", format_number(number), if number == 1 { one } else { many })
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
            "no name for {} of {} native addresses, shown as module+offset: {}.",
            format_number(naming.unresolved),
            format_number(naming.addresses),
            reasons.join("; ")
        ));
    }
    if naming.approximate_stacks > 0 {
        notes.push(format!(
            "in {}, the order of Python and native frames is approximate.",
            format_count(naming.approximate_stacks, "stack")
        ));
    }
    notes
}

/// Why an address has no name, and what to do about it.
pub(crate) fn explain_unnamed(why: &str) -> &str {
    match why {
        "file_missing" => {
            "the file is not on this machine; run `gpumemtrace symbolize` on the machine that has it"
        }
        "other_build" => {
            "the file on this machine is another build; run `gpumemtrace symbolize` on the machine \
             with the traced build"
        }
        "no_build_id" => "linked without a build id (ld --build-id), so no file can be matched to it",
        "no_symbols" => "the file has no symbols; install its debug symbols",
        "unreadable" => "the file cannot be read or is no ELF file; Mach-O is not supported",
        "no_module" => "generated at run time, or the library was unloaded",
        other => other,
    }
}
