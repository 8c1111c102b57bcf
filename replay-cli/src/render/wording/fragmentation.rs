//! The causes of unused reserved memory, and its moments, as phrases.

use gpumemtrace_replay::report::{Cause, CauseKind, GapMoment, GapReason, PoolBlocks, PoolBytes};

use super::Vocabulary;
use crate::terminal::units::format_bytes;

/// A cause, and what returns the memory.
pub(crate) fn describe_cause(cause: &Cause, words: &Vocabulary) -> String {
    let Vocabulary { segment, block, empty_cache, .. } = words;
    match cause.cause {
        CauseKind::Pinned => format!("free, but in {segment}s pinned by live {block}s"),
        CauseKind::Cache => format!("cached in fully free {segment}s; {empty_cache} returns it"),
        CauseKind::Rounding => format!("rounding: {block}s are larger than requested"),
        CauseKind::PendingFree => "freed, waiting for another stream (record_stream)".to_owned(),
        CauseKind::StrandedStream => {
            format!("free, but only for requests on other streams, whose live {block}s pin the {segment}s")
        }
        CauseKind::StrandedPool => describe_stranded_pools(&cause.pools, words),
        CauseKind::Unexplained if words.is_metal => {
            "unexplained: the positions of buffers in their heaps are unknown".to_owned()
        }
        CauseKind::Unexplained => "unexplained: the allocator's segments are unknown".to_owned(),
    }
}

/// The pools in which memory is stranded, and what returns it.
fn describe_stranded_pools(pools: &[PoolBytes], words: &Vocabulary) -> String {
    let sum = |of: &dyn Fn(&PoolBytes) -> bool| {
        pools.iter().filter(|pool| of(pool)).fold(0u64, |sum, pool| sum.saturating_add(pool.bytes))
    };
    let of_graphs = sum(&|one| one.key.is_private() && one.key.is_graph());
    let of_mem_pools = sum(&|one| one.key.is_private() && !one.key.is_graph());
    let small = sum(&|one| !one.key.is_private() && one.key.blocks == PoolBlocks::Small);
    let large = sum(&|one| !one.key.is_private() && one.key.blocks == PoolBlocks::Large);
    let empty_cache = words.empty_cache;
    let parts = [
        (of_graphs, format!("only for CUDA graphs; reset or delete them, then {empty_cache} returns it")),
        (of_mem_pools, format!("only for MemPools; delete them, then {empty_cache} returns it")),
        (small, format!("only for small {}s (up to 1 MiB)", words.block)),
        (large, format!("only for large {}s (above 1 MiB)", words.block)),
    ];
    let parts: Vec<&(u64, String)> = parts.iter().filter(|(bytes, _)| *bytes > 0).collect();
    match parts.as_slice() {
        [] => "free, but in another pool".to_owned(),
        [(_, only)] => format!("free, but {only}"),
        several => {
            let described: Vec<String> =
                several.iter().map(|(bytes, part)| format!("{} {part}", format_bytes(*bytes))).collect();
            format!("free, but in other pools: {}", described.join("; "))
        }
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

/// The moment that a gap describes, without its time.
pub(crate) fn describe_gap_moment(at: &GapMoment) -> String {
    let text = match (at.why, &at.call) {
        (GapReason::PeakReserved, _) => "when reserved memory was highest",
        (GapReason::LargestGap, _) => "when unused reserved memory was highest",
        (GapReason::LastStep, _) => "at the end of the last step",
        (GapReason::Oom, _) => "when memory ran out",
        (GapReason::FailedCall, Some(call)) => {
            let requested = format_bytes(call.requested_bytes);
            return format!("when the driver refused {requested} to {}", call.owner);
        }
        (GapReason::FailedCall, None) => "when the driver refused a request of another library",
        (GapReason::At, _) => "at the requested moment",
        (GapReason::End, _) => "at the end of the script",
    };
    text.to_owned()
}

/// The same without the call, inside a sentence.
pub(crate) fn name_gap_moment(why: GapReason) -> String {
    describe_gap_moment(&GapMoment { time_ns: 0, step: None, why, call: None })
}
