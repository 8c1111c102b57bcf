//! Notes on a recording, as phrases without a full stop.

use gpumemtrace_replay::report::{Accelerator, PluggableMode, TraceNote};

use super::Vocabulary;
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// One note as a phrase.
pub(super) fn describe_note(note: &TraceNote, words: &Vocabulary) -> String {
    match note {
        TraceNote::Recorder { text } => text.clone(),
        TraceNote::BackwardAtForwardLine { events, all_events } => {
            let share = format_percent(*events as f64 / (*all_events).max(1) as f64);
            format!("{share} of the events are of autograd threads, shown at their forward line with \"(backward)\"")
        }
        TraceNote::BackwardAtCall { events, all_events } => {
            let share = format_percent(*events as f64 / (*all_events).max(1) as f64);
            format!("{share} of the events are of autograd threads, shown at backward(): their forward line is unknown")
        }
        TraceNote::UncoveredFunctions { functions } => {
            format!("the program called driver functions that are not intercepted: {}", functions.join(", "))
        }
        TraceNote::StartedByProgram if words.is_metal => {
            "the program started the recording (gpumemtrace.start()); earlier events and memory are missing".to_owned()
        }
        TraceNote::StartedByProgram => {
            "the program started the recording (gpumemtrace.start()); earlier events are missing, \
             and earlier memory is shown at that line"
                .to_owned()
        }
        TraceNote::AttachedLate => {
            "the recording attached after the driver was loaded; calls through older function pointers are missing"
                .to_owned()
        }
        TraceNote::Metal => {
            "recorded from Metal: allocated means buffers and textures in heaps, reserved means the heaps; \
             PyTorch reuses buffers without a call of Metal"
                .to_owned()
        }
        TraceNote::PluggableAllocator { mode: PluggableMode::Uncached } => {
            "gpumemtrace_malloc served each tensor with a driver call; nothing is known about PyTorch's allocator"
                .to_owned()
        }
        TraceNote::PluggableAllocator { mode: PluggableMode::Caching | PluggableMode::Segments } => {
            "gpumemtrace's caching allocator served the tensors; reserved memory and fragmentation are its own, \
             not PyTorch's"
                .to_owned()
        }
        TraceNote::ManagedMemory { peak_bytes, reserved_bytes, prefetches, prefetched_bytes } => {
            let reserved = match reserved_bytes {
                0 => String::new(),
                bytes => format!("; PyTorch counts up to {} of it as reserved", format_bytes(*bytes)),
            };
            let moved = match prefetches {
                0 => String::new(),
                calls => format!(
                    "; {} moved {} of it to GPUs ahead of use",
                    format_count(*calls, "call"),
                    format_bytes(*prefetched_bytes)
                ),
            };
            let peak = format_bytes(*peak_bytes);
            format!("managed memory (up to {peak}) is not counted, because its location is unknown{reserved}{moved}")
        }
        TraceNote::HostPools { peak_bytes } => format!(
            "memory from host pools (up to {}) is not counted, because it is not GPU memory",
            format_bytes(*peak_bytes)
        ),
        TraceNote::ForeignMemory { peak_bytes } => format!(
            "mapped memory of other processes or APIs (up to {}) is not counted",
            format_bytes(*peak_bytes)
        ),
        TraceNote::TorchSnapshot { events: 0, .. } => {
            "this is a PyTorch snapshot without a history: it shows the blocks that were allocated then, and \
             no driver memory. Record a history with torch.cuda.memory._record_memory_history()"
                .to_owned()
        }
        TraceNote::TorchSnapshot { events, earlier_blocks, earlier_bytes } => {
            let before = match earlier_blocks {
                0 => String::new(),
                blocks => format!(
                    "; {} ({}) existed before the first",
                    format_count(*blocks, "block"),
                    format_bytes(*earlier_bytes)
                ),
            };
            format!(
                "this is a PyTorch snapshot with the allocator's last {}{before}. Peak and growth are those of \
                 this history; memory outside PyTorch's allocator is unknown",
                format_count(*events, "event")
            )
        }
        TraceNote::OtherAccelerator { accelerator, padding_bytes } => {
            let device = describe_accelerator(*accelerator);
            let rules = match padding_bytes {
                0 => "sizes of freed blocks are computed by CUDA's rules, which may differ".to_owned(),
                bytes => format!(
                    "sizes of freed blocks are computed by CUDA's rules, after adding {} to each request",
                    format_bytes(*bytes)
                ),
            };
            format!("the snapshot is from {device}: {rules}. whatif and fit cannot predict its allocator")
        }
        TraceNote::SnapshotWithoutSegments => {
            "the snapshot has no segments, so its end is what its events leave: blocks from before the first \
             event, and sizes that only the segments show, are missing"
                .to_owned()
        }
        TraceNote::SnapshotContradictions { count: 1 } => {
            "1 event of the snapshot contradicts another one or the blocks at the end; the history has a hole"
                .to_owned()
        }
        TraceNote::SnapshotContradictions { count } => format!(
            "{} of the snapshot contradict each other or its blocks at the end; the history has holes",
            format_count(*count, "event")
        ),
        TraceNote::SnapshotSizes { checked, wrong } => format!(
            "sizes of freed blocks are computed by PyTorch's rules, which gave a wrong size for {} of {} with a \
             known size",
            format_number(*wrong),
            format_count(*checked, "block")
        ),
        TraceNote::SnapshotPassedOver { entries, keys } => format!(
            "the snapshot has {} and {} that this version of gpumemtrace does not know; they are not counted",
            format_count(*entries, "item"),
            format_count(*keys, "key")
        ),
        TraceNote::SnapshotHostMemory { events } => {
            format!("pinned host memory in the snapshot is not counted ({})", format_count(*events, "event"))
        }
        TraceNote::UnreachedSnapshot { when } => format!("this trace ends before --at {when}"),
        TraceNote::CallsInFlight { calls, is_running } => {
            let (verb, outcome) =
                if *calls == 1 { ("was", "its outcome is") } else { ("were", "their outcome is") };
            let moment = if *is_running { "when the trace was read" } else { "at exit" };
            let calls = format_count(*calls, if words.is_metal { "Metal call" } else { "driver call" });
            format!("{calls} {verb} in flight {moment}; {outcome} unknown")
        }
        TraceNote::UnlistedMarks { marks } => {
            format!("{} not listed", format_count(*marks, "further mark"))
        }
        TraceNote::TrackerMismatches { blocks } => format!(
            "PyTorch's trace tracker and its allocator disagreed on {}; their requested sizes are unknown",
            format_count(*blocks, "block")
        ),
    }
}

/// The kind of a device, with its article.
pub(crate) fn describe_accelerator(accelerator: Accelerator) -> &'static str {
    match accelerator {
        Accelerator::Rocm => "an AMD GPU (ROCm)",
        Accelerator::Xpu => "an Intel GPU (XPU)",
        Accelerator::Npu => "an Ascend NPU (torch_npu)",
    }
}

/// True if the note limits what the report may claim.
pub(crate) fn is_caveat(note: &TraceNote) -> bool {
    match note {
        TraceNote::BackwardAtForwardLine { .. }
        | TraceNote::BackwardAtCall { .. }
        | TraceNote::UnlistedMarks { .. } => false,
        TraceNote::SnapshotPassedOver { entries, .. } => *entries > 0,
        TraceNote::Recorder { .. }
        | TraceNote::TorchSnapshot { .. }
        | TraceNote::OtherAccelerator { .. }
        | TraceNote::SnapshotWithoutSegments
        | TraceNote::SnapshotContradictions { .. }
        | TraceNote::SnapshotSizes { .. }
        | TraceNote::SnapshotHostMemory { .. }
        | TraceNote::StartedByProgram
        | TraceNote::AttachedLate
        | TraceNote::Metal
        | TraceNote::PluggableAllocator { .. }
        | TraceNote::ManagedMemory { .. }
        | TraceNote::HostPools { .. }
        | TraceNote::ForeignMemory { .. }
        | TraceNote::UncoveredFunctions { .. }
        | TraceNote::UnreachedSnapshot { .. }
        | TraceNote::CallsInFlight { .. }
        | TraceNote::TrackerMismatches { .. } => true,
    }
}
