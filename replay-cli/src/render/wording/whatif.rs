//! Why predictions are not exact, and why memory is unused, in words.

use gpumemtrace_replay::report::CauseKind;
use gpumemtrace_whatif::{Doubt, MoreNeeded, ReservedRange, UnusedByCause};

use super::fragmentation::name_cause;
use super::vocabulary::Vocabulary;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// Why a row is not exact; `None` if it is.
pub(crate) fn describe_doubts(doubts: &[Doubt]) -> Option<String> {
    let all: Vec<String> = doubts.iter().map(describe_doubt).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn describe_doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::ModelDiffers { predicted_bytes, recorded_bytes } => format!(
            "with the recorded settings the allocator model reserves {} where the run reserved {}",
            format_bytes(*predicted_bytes),
            format_bytes(*recorded_bytes)
        ),
        Doubt::Incomplete => "the recording began after the first allocation, or it lost events".to_owned(),
        Doubt::NoHistory => "the recording has no allocation history: it shows only the blocks that were live at its end".to_owned(),
        Doubt::StartedLate(start) => format!(
            "the recording begins with {} ({}) in {} of segments; their layout is kept",
            format_count(start.blocks, "block"),
            format_bytes(start.allocated_bytes),
            format_bytes(start.reserved_bytes)
        ),
        Doubt::ReleaseUnknown { oldest, newest } => format!(
            "the file fits PyTorch {oldest} to {newest}, and their rules differ here; name the release with --torch"
        ),
        Doubt::WithoutDetail { blocks } => {
            format!("the requested size of {} is unknown", format_count(*blocks, "block"))
        }
        Doubt::MemoryQueries { calls } => format!(
            "the program asked for free memory ({}) and may have acted on it",
            format_count(*calls, "call")
        ),
        Doubt::Ooms { errors } => {
            format!("the run reacted to {}", format_count(*errors, "out-of-memory error"))
        }
        Doubt::CacheEmptied { .. } => {
            "the program emptied the cache after memory was short, and may do so at other times here".to_owned()
        }
        Doubt::OtherVersion { recorded } => {
            format!("PyTorch {recorded} was recorded, and another release may make other requests")
        }
        Doubt::OtherModel => {
            "the card may be another model, for which libraries may make other requests".to_owned()
        }
        Doubt::PoolRefused => "the first attempt at a request for a private pool failed, and it is unknown whether \
                               a graph was being captured"
            .to_owned(),
        Doubt::Survived => {
            "the run failed at a request that gets memory here, and what follows is unknown".to_owned()
        }
        Doubt::AddressOrder => {
            "the addresses that the driver chooses decided between free blocks of equal size".to_owned()
        }
        Doubt::FreedInUse { blocks } => format!(
            "another stream used {} when freed, and when they are free again depends on the GPU's speed",
            format_count(*blocks, "block")
        ),
        Doubt::UnknownRelease => {
            "it is unknown whether the run emptied the whole cache or that of one private pool".to_owned()
        }
        Doubt::OutsideUnknown => "it is unknown how much of the card is used outside PyTorch".to_owned(),
        Doubt::LimitUnknown => {
            "the memory of the card, on which the limit depends, is unknown; name it with --card".to_owned()
        }
        Doubt::CardUnknown { refused } => format!(
            "the driver refused memory for {}, and the memory of the card is unknown; name it with --card",
            format_count(*refused, "request")
        ),
        Doubt::Slept => "the program returned the memory of segments (sleep mode), which may have other sizes here".to_owned(),
        Doubt::FractionUnknown => {
            "PyTorch collects garbage only under a memory limit, and set_per_process_memory_fraction() leaves no event".to_owned()
        }
        Doubt::SettingRefused { why } => why.clone(),
        Doubt::StopsPyTorch => {
            "this release stops with an internal error when it releases oversize blocks of expandable segments"
                .to_owned()
        }
        Doubt::MemoryShared => "the run shared memory with other processes, which this release cannot do with \
                                expandable segments"
            .to_owned(),
        Doubt::NotModelled { settings } => format!("the allocator model does not support {}", settings.join(", ")),
    }
}

/// Why a run may need more memory than predicted.
pub(crate) fn describe_more(more: MoreNeeded) -> &'static str {
    match more {
        MoreNeeded::NoHistory => "the recording has no allocation history",
        MoreNeeded::StartedLate => "what it needed before the recording began is unknown",
        MoreNeeded::Incomplete => "events are missing",
        MoreNeeded::OutsideUnknown => {
            "what contexts, libraries and other processes use is not in the recording"
        }
    }
}

/// The peak of reserved memory over orders of addresses.
pub(crate) fn describe_range(range: &ReservedRange) -> String {
    let orders = format_count(u64::from(range.orders), "order");
    let (least, most) = (format_bytes(range.least_bytes), format_bytes(range.most_bytes));
    let peak = if range.least_bytes == range.most_bytes { least } else { format!("{least} to {most}") };
    let failing = match range.failing_orders {
        0 => String::new(),
        failing => format!("; out of memory with {}", format_number(u64::from(failing))),
    };
    format!("{peak} over {orders} of segment addresses{failing}")
}

/// The causes of unused memory with their bytes, the largest first.
pub(crate) fn describe_unused(unused: &UnusedByCause) -> String {
    let mut causes = [
        (unused.pinned_bytes, CauseKind::Pinned),
        (unused.cached_bytes, CauseKind::Cache),
        (unused.rounding_bytes, CauseKind::Rounding),
        (unused.pending_free_bytes, CauseKind::PendingFree),
    ];
    causes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let shown = causes.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> = shown
        .map(|(bytes, cause)| format!("{} {}", format_bytes(*bytes), name_cause(*cause, &Vocabulary::CUDA)))
        .collect();
    parts.join(", ")
}
