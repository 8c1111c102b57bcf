//! What was traced, how it ended, and what is missing: before any number.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::StreamId;
use gpumemtrace_replay::report::Ending;
use gpumemtrace_replay::report::Naming;
use gpumemtrace_replay::report::TraceInfo;
use gpumemtrace_replay::report::display::format_bytes;

use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::marks::sanitize;
use crate::terminal::paths::straighten_path;
use crate::terminal::style::Style;

/// Most reasons told for addresses without a name.
const MAX_REASONS: usize = 4;

pub(in crate::render::text) fn render_header(out: &mut String, report: &Report, trace: usize, style: Style) {
    let info = &report.traces[trace];
    let command =
        info.command.as_ref().map_or_else(|| "unknown command".to_owned(), |command| command.join(" "));
    put_line(out, format_args!("{}", style.bold(&format!("{}: {}", info.path, sanitize(&command)))));
    put_line(out, format_args!("  {}", environment_facts(info).join(", ")));
    put_line(out, format_args!("  {}", describe_ending(info)));
    if info.complete {
        put_line(
            out,
            format_args!("  Nothing lost: {} recorded.", format_count(info.events.values().sum(), "event")),
        );
    } else {
        put_line(
            out,
            format_args!("  {}", style.warn("Incomplete; read the numbers below as lower bounds:")),
        );
    }
    for part in partial_view_notes(report, info) {
        put_line(out, format_args!("  {}", style.warn(&part)));
    }
    for defect in recording_defects(info) {
        put_line(out, format_args!("  - {defect}"));
    }
    for line in info.symbols.iter().flat_map(unnamed_address_notes) {
        put_line(out, format_args!("  - {}", sanitize(&line)));
    }
    for note in &info.notes {
        put_line(out, format_args!("  - {}", sanitize(note)));
    }
}

/// What of the run is told, where it is not all.
fn partial_view_notes(report: &Report, info: &TraceInfo) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(since) = info.since {
        let step = since.step.map(|step| format!(" (step {})", format_number(step))).unwrap_or_default();
        parts.push(format!(
            "Only a part of the run is told: from {} on{step}. What was held by then counts as held.",
            format_duration(since.time_ns)
        ));
    }
    if let Some(stream) = info.stream {
        let reserved = if stream.reserved_is_known {
            "Reserved is what the segments of this stream have"
        } else {
            "What is reserved for it is not known"
        };
        parts.push(format!(
            "Only stream {} is told: all totals are of its blocks alone. {reserved}; what the driver gave out, and running out of memory, are of no stream.",
            StreamId(stream.stream)
        ));
        if stream.unknown_blocks > 0 {
            parts.push(format!(
                "The stream of {} ({}) is not known; they are left out.",
                format_count(stream.unknown_blocks, "block"),
                format_bytes(stream.unknown_bytes)
            ));
        }
    }
    let Some(filters) = &report.filters else { return parts };
    let list = |numbers: &[String]| numbers.join(", ");
    if !filters.devices.is_empty() {
        let devices: Vec<String> = filters.devices.iter().map(u32::to_string).collect();
        parts.push(format!("Only device {} is told.", list(&devices)));
    }
    if let Some(site) = &filters.site {
        parts.push(format!("Only lines that fit {site:?} are told; others are summed up."));
    }
    parts
}

fn environment_facts(info: &TraceInfo) -> Vec<String> {
    let mut facts = Vec::new();
    let torch = info.torch.as_deref().unwrap_or("unknown");
    facts.push(format!("PyTorch {torch}{}", tracker_note(info)));
    if info.pluggable.as_deref() == Some("segments") {
        facts.push("segments of a torch.cuda.MemPool through gpumemtrace".to_owned());
    }
    facts.push(
        info.python.as_ref().map_or_else(|| "Python unknown".to_owned(), |python| format!("Python {python}")),
    );
    facts.extend(info.cuda_runtime.iter().map(|version| format!("CUDA {version}")));
    facts.extend(info.pid.map(|pid| format!("process {pid}")));
    facts.extend(info.host.iter().map(|host| format!("on {host}")));
    if let (Some(rank), Some(size)) = (info.rank, info.world_size) {
        facts.push(format!("rank {rank} of {size}"));
    }
    facts
}

/// What PyTorch's allocator told beside blocks and totals, which are exact in any case.
fn tracker_note(info: &TraceInfo) -> &'static str {
    match info.torch_tracker {
        _ if info.pluggable.as_deref() == Some("uncached") => {
            " (not its own allocator: tensors are driver calls)"
        }
        None => "",
        Some("own_allocator") => " (not its own allocator: gpumemtrace's caching one)",
        Some("attached") => " (allocator tracker on)",
        Some("unknown_version") => " (base hook only: this version's tracker is not known)",
        Some("not_wanted") => " (base hook only, as asked)",
        Some("no_tracker") => " (base hook only: this version has no tracker)",
        Some("unreadable") => " (base hook only: its library could not be read)",
        Some("other_allocator") => " (not its native allocator: tensors are driver calls)",
        Some("cache_off") => " (cache off: tensors are driver calls)",
        Some(_) => " (base hook only: its tracker did not say what its allocator did)",
    }
}

fn describe_ending(info: &TraceInfo) -> String {
    let after = info.duration_ns.map(|ns| format!(" after {}", format_duration(ns))).unwrap_or_default();
    let detail = info.end_detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    match info.end {
        Ending::Exit => format!("Ended by itself{after}{detail}."),
        Ending::Killed if info.end_detail.is_none() => {
            format!(
                "Ended{after} without a word: it was killed, it crashed, or it became another program (exec)."
            )
        }
        Ending::Killed => format!("Was killed{after}{detail}."),
        Ending::Crashed => format!("Crashed{after}{detail}."),
        Ending::Running => {
            let so_far =
                info.duration_ns.map(|ns| format!(", {} so far", format_duration(ns))).unwrap_or_default();
            format!("Still running{so_far}{detail}.")
        }
    }
}

/// What was recorded less well than it should be.
fn recording_defects(info: &TraceInfo) -> Vec<String> {
    let (losses, is_metal) = (&info.losses, info.vocabulary().is_metal);
    let all = [
        (
            losses.truncated_stacks,
            "stack was cut at the maximum depth",
            "stacks were cut at the maximum depth",
        ),
        (losses.unresolved_frames, "stack frame has no name", "stack frames have no name"),
        (
            losses.uncovered_calls.min(if is_metal { u64::MAX } else { 0 }),
            "method or object of Metal was not watched",
            "methods or objects of Metal were not watched",
        ),
        (
            losses.uncovered_calls.min(if is_metal { 0 } else { u64::MAX }),
            "call of a driver function that allocates went unrecorded",
            "calls of driver functions that allocate went unrecorded",
        ),
    ];
    let defects = all.into_iter().filter(|(number, ..)| *number > 0);
    defects
        .map(|(number, one, many)| {
            format!("{} {}", format_number(number), if number == 1 { one } else { many })
        })
        .collect()
}

/// Addresses that are shown without a name, and what to do about it. They are no loss: the trace has them.
fn unnamed_address_notes(naming: &Naming) -> Vec<String> {
    let mut lines = Vec::new();
    if naming.unresolved > 0 {
        let reasons = naming.reasons.iter().take(MAX_REASONS).map(|reason| {
            let module = reason.module.as_deref().map_or_else(|| "no module".to_owned(), straighten_path);
            format!("{} in {module} ({})", format_number(reason.addresses), explain_unnamed(reason.why))
        });
        let mut reasons: Vec<String> = reasons.collect();
        if naming.reasons.len() > MAX_REASONS {
            let more = format_count((naming.reasons.len() - MAX_REASONS) as u64, "module");
            reasons.push(format!("and in {more} more (--json names them)"));
        }
        lines.push(format!(
            "{} of the {} native addresses shown here have no name and read module+offset: {}",
            format_number(naming.unresolved),
            format_number(naming.addresses),
            reasons.join("; ")
        ));
    }
    if naming.approximate_stacks > 0 {
        let stacks = format_count(naming.approximate_stacks, "stack");
        lines
            .push(format!("in {stacks} it is not certain between which Python frames the native ones stand"));
    }
    lines
}

/// In words, with what to do.
pub(crate) fn explain_unnamed(why: &str) -> &str {
    match why {
        "file_missing" => "the file is not on this machine; run `gpumemtrace symbolize` where it is",
        "other_build" => {
            "the file here is another build than the one that was traced; run `gpumemtrace symbolize` where that one is"
        }
        "no_build_id" => "it was linked without a build id (ld --build-id), so no file is known to be it",
        "no_symbols" => "it has no symbols there; install its debug symbols",
        "unreadable" => {
            "the file cannot be read, or is no ELF file (names from Mach-O files are not looked up)"
        }
        "no_module" => "made at run time, or unloaded",
        other => other,
    }
}
