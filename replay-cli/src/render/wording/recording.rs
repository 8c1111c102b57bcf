//! What ran and how it ended, what its allocator tracker reported, and why native addresses have
//! no name.

use gpumemtrace_format::TrackerState;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{EndMoment, Ending, PluggableMode, TraceInfo, UnnamedReason};

use super::steps::count_steps;
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_duration};

/// How the process of a trace ended, as far as is known.
pub(crate) fn describe_end(info: &TraceInfo) -> String {
    if info.end_is_known {
        describe_ending(info.end, info.end_detail.as_deref())
    } else {
        "end unknown: the trace was cut, or its .ring file is missing".to_owned()
    }
}

/// `exited normally`, `exited with code 1`, `killed (signal 9)`. Without a known exit code,
/// `exited`: the recorder sees that the process runs its exit handlers, not with which code.
fn describe_ending(ending: Ending, detail: Option<&str>) -> String {
    let detail = detail.map(escape_text);
    let detail = detail.as_deref();
    let reason = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    match ending {
        Ending::Exit => match (detail.and_then(exit_code), detail) {
            (Some("0"), _) => "exited normally".to_owned(),
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(_)) => format!("exited{reason}"),
            (None, None) => "exited".to_owned(),
        },
        Ending::Killed if detail.is_none() => {
            "ended without closing the trace (killed, crashed, or replaced by exec)".to_owned()
        }
        Ending::Killed => format!("killed{reason}"),
        Ending::Crashed => format!("crashed{reason}"),
        Ending::Running => format!("still running{reason}"),
    }
}

/// Which moment the end of a program is.
pub(crate) fn describe_end_moment(moment: EndMoment) -> &'static str {
    match moment {
        EndMoment::BeforeTeardown => "before interpreter teardown",
        EndMoment::BeforeLastFrees => "before the last frees",
        EndMoment::LastEvent => "after the last event",
    }
}

/// The code in `exit 1` (from the parent process) or `_exit(1)` (from the process itself).
fn exit_code(detail: &str) -> Option<&str> {
    detail.strip_prefix("exit ").or_else(|| detail.strip_prefix("_exit(")?.strip_suffix(')'))
}

/// ` (PyTorch 2.15.0, CUDA 13, rank 3 of 8)`; empty if nothing is known.
pub(crate) fn format_versions(info: &TraceInfo) -> String {
    let mut facts = Vec::new();
    facts.extend(name_torch(info));
    facts.extend(info.cuda_runtime.as_ref().map(|version| format!("CUDA {version}")));
    facts.extend(info.python.as_ref().map(|version| format!("Python {version}")));
    if let (Some(rank), Some(size)) = (info.rank, info.world_size) {
        facts.push(format!("rank {rank} of {size}"));
    }
    if facts.is_empty() { String::new() } else { format!(" ({})", escape_text(&facts.join(", "))) }
}

/// `PyTorch 2.15.0`; `None` if the version is unknown.
pub(crate) fn name_torch(info: &TraceInfo) -> Option<String> {
    info.torch.as_deref().map(|version| format!("PyTorch {}", short_version(version)))
}

/// `2.15.0` of `2.15.0+cu132`: the CUDA version has a place of its own.
fn short_version(version: &str) -> &str {
    version.split_once("+cu").map_or(version, |(release, _)| release)
}

/// `12 steps in 343 us`; `None` if neither steps nor the duration are known.
pub(crate) fn format_extent(report: &Report, trace: usize) -> Option<String> {
    let steps = count_steps(report, trace).map(|steps| format_count(steps, "step"));
    let duration = report.traces[trace].duration_ns.map(format_duration);
    match (steps, duration) {
        (Some(steps), Some(duration)) => Some(format!("{steps} in {duration}")),
        (steps, duration) => steps.or(duration),
    }
}

/// What is unknown about PyTorch's allocator and why; `None` if its tracker was attached. Blocks
/// and totals are exact in any case.
pub(crate) fn describe_tracker(
    state: TrackerState,
    pluggable: Option<PluggableMode>,
) -> Option<&'static str> {
    match pluggable {
        Some(PluggableMode::Segments) => {
            return Some("gpumemtrace allocated the segments of a torch.cuda.MemPool");
        }
        // A note of the trace says so.
        Some(PluggableMode::Uncached) => return None,
        Some(PluggableMode::Caching) | None => {}
    }
    match state {
        TrackerState::Attached | TrackerState::OwnAllocator => None,
        TrackerState::NotWanted => Some(
            "requested sizes, streams and pools are unknown: the allocator tracker was off \
             (GPUMEMTRACE_TORCH_DETAILS=off)",
        ),
        TrackerState::UnknownVersion => Some(
            "requested sizes, streams and pools are unknown: this gpumemtrace does not know the \
             allocator tracker of this PyTorch version",
        ),
        TrackerState::NoTracker => Some(
            "requested sizes, streams and pools are unknown: this PyTorch version has no \
             allocator tracker",
        ),
        TrackerState::Unreadable => {
            Some("requested sizes, streams and pools are unknown: PyTorch's library could not be read")
        }
        TrackerState::Disagreed => Some(
            "requested sizes, streams and pools are unknown: the allocator tracker did not report \
             what the allocator did",
        ),
        TrackerState::OtherAllocator => Some(
            "PyTorch did not use its native caching allocator, so its blocks are driver allocations; those in a \
                 pool of another library are not recorded",
        ),
        TrackerState::CacheOff => Some(
            "PyTorch's caching allocator was off (PYTORCH_NO_CUDA_MEMORY_CACHING), so its blocks \
             are driver allocations",
        ),
    }
}

/// Why an address has no name, and what to do about it.
pub(crate) fn explain_unnamed(why: UnnamedReason) -> &'static str {
    match why {
        UnnamedReason::FileMissing => {
            "the file is not on this machine; run `gpumemtrace symbolize` on the machine that has it"
        }
        UnnamedReason::OtherBuild => {
            "the file on this machine is another build; run `gpumemtrace symbolize` on the machine \
             with the traced build"
        }
        UnnamedReason::NoBuildId => {
            "linked without a build id (ld --build-id), so no file can be matched to it"
        }
        UnnamedReason::NoSymbols => "the file has no symbols; install its debug symbols",
        UnnamedReason::Unreadable => "the file cannot be read or is not an ELF file; Mach-O is not supported",
        UnnamedReason::NoModule => "generated at run time, or the library was unloaded",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_exit_needs_a_known_code_of_zero() {
        for (ending, detail, text) in [
            (Ending::Exit, Some("exit 0"), "exited normally"),
            (Ending::Exit, Some("_exit(0)"), "exited normally"),
            (Ending::Exit, Some("exit 7"), "exited with code 7"),
            (Ending::Exit, None, "exited"),
            (
                Ending::Exit,
                Some("recording stopped before the program did"),
                "exited (recording stopped before the program did)",
            ),
            (Ending::Killed, Some("signal 9"), "killed (signal 9)"),
            (Ending::Killed, None, "ended without closing the trace (killed, crashed, or replaced by exec)"),
            (Ending::Crashed, Some("signal 11"), "crashed (signal 11)"),
            (Ending::Running, None, "still running"),
        ] {
            assert_eq!(describe_ending(ending, detail), text);
        }
    }
}
