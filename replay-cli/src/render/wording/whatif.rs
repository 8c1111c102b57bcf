//! Why predictions are not exact, and why memory is unused, in words.

use gpumemtrace_replay::report::CauseKind;
use gpumemtrace_whatif::{Doubt, UnusedByCause};

use super::fragmentation::name_cause;
use super::vocabulary::Vocabulary;
use crate::terminal::format::format_count;
use crate::terminal::units::format_bytes;

/// Why a row is not exact; `None` if it is.
pub(crate) fn describe_doubts(doubts: &[Doubt]) -> Option<String> {
    let all: Vec<String> = doubts.iter().map(describe_doubt).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn describe_doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::ModelDiffers { predicted_bytes, recorded_bytes } => format!(
            "with the recorded settings the model reserves {} where the run reserved {}",
            format_bytes(*predicted_bytes),
            format_bytes(*recorded_bytes)
        ),
        Doubt::Incomplete => "the recording began after the first allocation, or it lost events".to_owned(),
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
        Doubt::Survived => {
            "the run failed at a request that gets memory here, and what follows is unknown".to_owned()
        }
        Doubt::AddressOrder => "the result depends on the addresses that the driver chooses".to_owned(),
        Doubt::UnknownRelease => {
            "it is unknown whether the run emptied the whole cache or that of one private pool".to_owned()
        }
        Doubt::OutsideUnknown => "it is unknown how much of the card is used outside PyTorch".to_owned(),
        Doubt::NotModelled { settings } => format!("the model does not know {}", settings.join(", ")),
    }
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
