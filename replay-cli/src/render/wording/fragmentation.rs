//! The causes of unused reserved memory, as phrases.

use gpumemtrace_replay::report::{CauseKind, GapReason};

use super::Vocabulary;

/// A cause, and what returns the memory.
pub(crate) fn describe_cause(cause: CauseKind, words: &Vocabulary) -> String {
    let Vocabulary { segment, block, empty_cache, .. } = words;
    match cause {
        CauseKind::Pinned => format!("free, but in {segment}s pinned by live {block}s"),
        CauseKind::Cache => format!("cached in fully free {segment}s; {empty_cache} returns it"),
        CauseKind::Rounding => format!("rounding: {block}s are larger than requested"),
        CauseKind::PendingFree => "freed, waiting for another stream (record_stream)".to_owned(),
        CauseKind::StrandedStream => "free, but cached for another stream".to_owned(),
        CauseKind::StrandedPool => {
            "free, but in another pool (small blocks, a CUDA graph, a MemPool)".to_owned()
        }
        CauseKind::Unexplained if words.is_metal => {
            "unexplained: the positions of buffers in their heaps are unknown".to_owned()
        }
        CauseKind::Unexplained => "unexplained: the allocator's segments are unknown".to_owned(),
    }
}

/// A cause in a few words, for rows of tables.
pub(crate) fn name_cause(cause: CauseKind, words: &Vocabulary) -> String {
    let Vocabulary { segment, block, .. } = words;
    match cause {
        CauseKind::Pinned => format!("pinned by live {block}s"),
        CauseKind::Cache => format!("in fully free {segment}s"),
        CauseKind::Rounding => "rounding".to_owned(),
        CauseKind::PendingFree => "waiting for a stream".to_owned(),
        CauseKind::StrandedStream => "cached for other streams".to_owned(),
        CauseKind::StrandedPool => "in other pools".to_owned(),
        CauseKind::Unexplained => "unexplained".to_owned(),
    }
}

/// The moment that a gap describes.
pub(crate) fn describe_gap_moment(why: GapReason) -> &'static str {
    match why {
        GapReason::PeakReserved => "when reserved memory was highest",
        GapReason::Oom => "when memory ran out",
        GapReason::At => "at the requested moment",
        GapReason::End => "when the program finished",
    }
}
