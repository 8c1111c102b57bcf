//! The causes of unused reserved memory, and its moments, as phrases.

use std::fmt::Write as _;

use gpumemtrace_replay::report::{
    Cause, CauseKind, GapMoment, GapReason, PoolBlocks, PoolBytes, PoolInfo, SettingEffects,
};

use super::Vocabulary;
use crate::terminal::format::format_percent;
use crate::terminal::units::format_bytes;

/// A cause, and what returns the memory.
pub(crate) fn describe_cause(cause: &Cause, words: &Vocabulary) -> String {
    let Vocabulary { segment, block, empty_cache, .. } = words;
    match cause.cause {
        CauseKind::Pinned if cause.pools.is_empty() => {
            format!("free, but in {segment}s pinned by live {block}s")
        }
        CauseKind::Pinned => format!(
            "free in the pool of the request, in pieces that are too small; live {block}s or the pool itself pin the {segment}s"
        ),
        CauseKind::Cache => format!("cached in fully free {segment}s; {empty_cache} returns it"),
        CauseKind::Rounding => format!("rounding: {block}s are larger than requested"),
        CauseKind::PendingFree => "freed, waiting for another stream (record_stream)".to_owned(),
        CauseKind::StrandedStream => {
            format!("free, but only for other streams: in {segment}s pinned by live {block}s there")
        }
        CauseKind::StrandedPool => describe_stranded_pools(&cause.pools, words),
        CauseKind::Unexplained if words.is_metal => {
            "unexplained: the positions of buffers in their heaps are unknown".to_owned()
        }
        CauseKind::Unexplained => "unexplained: the allocator's segments are unknown".to_owned(),
    }
}

/// `large blocks`, `small blocks, stream 0x7f..., pool 0:1`.
pub(crate) fn name_pool(key: &PoolInfo) -> String {
    let mut text = format!("{} blocks", key.blocks.name());
    if key.stream != 0 {
        let _ = write!(text, ", {}", name_stream(key.stream));
    }
    match key.pool {
        Some([0, 0]) | None => {}
        Some([first, second]) => {
            let _ = write!(text, ", pool {first}:{second}");
        }
    }
    text
}

/// `default stream`, `stream 0x7f...`.
pub(crate) fn name_stream(stream: u64) -> String {
    if stream == 0 { "default stream".to_owned() } else { format!("stream {stream:#x}") }
}

/// The pools in which memory is stranded, and what returns it.
fn describe_stranded_pools(pools: &[PoolBytes], words: &Vocabulary) -> String {
    let kinds = [
        "CUDA graphs".to_owned(),
        "MemPools or shared graph pools".to_owned(),
        format!("small {}s (up to 1 MiB)", words.block),
        format!("large {}s (above 1 MiB)", words.block),
    ];
    let kind_of = |key: &PoolInfo| match (key.is_graph(), key.is_private(), key.blocks) {
        (true, ..) => 0,
        (_, true, _) => 1,
        (_, _, PoolBlocks::Small) => 2,
        (_, _, PoolBlocks::Large) => 3,
    };
    let mut bytes = [0u64; 4];
    for pool in pools {
        let sum = &mut bytes[kind_of(&pool.key)];
        *sum = sum.saturating_add(pool.bytes);
    }
    let found: Vec<(&String, u64)> = kinds.iter().zip(bytes).filter(|(_, bytes)| *bytes > 0).collect();
    // The default pool's memory is in use, and nothing deletes it.
    let owners = match (bytes[0], bytes[1]) {
        (0, 0) => None,
        (_, 0) => Some("the CUDA graphs"),
        (0, _) => Some("these pools"),
        (..) => Some("these graphs and pools"),
    };
    let returned = if found.len() > 1 { "their memory" } else { "it" };
    let advice = owners.map_or_else(String::new, |owners| {
        format!("; delete {owners}, then {} returns {returned}", words.empty_cache)
    });
    match found.as_slice() {
        [] => "free, but only for another pool".to_owned(),
        [(kind, _)] => format!("free, but only for {kind}{advice}"),
        several => {
            let named: Vec<String> =
                several.iter().map(|(kind, bytes)| format!("{kind}: {}", format_bytes(*bytes))).collect();
            format!("free, but only for other pools ({}){advice}", named.join(", "))
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
        CauseKind::StrandedPool => "in separate pools".to_owned(),
        CauseKind::Unexplained => "unexplained".to_owned(),
    }
}

/// A setting that saves less than this part of the reserved memory is not named.
const LEAST_SAVING: f64 = 0.01;

/// Which setting of PyTorch's allocator would have reserved less, from predictions.
pub(crate) fn describe_setting_effects(effects: &SettingEffects, words: &Vocabulary) -> String {
    let Vocabulary { alloc_conf, .. } = words;
    if effects.is_over_limit {
        return "There are too many requests to try other settings here; gpumemtrace whatif tries them."
            .to_owned();
    }
    let recorded = format_bytes(effects.recorded_peak_bytes);
    let more = "gpumemtrace whatif compares more settings.";
    let most_bytes = effects.recorded_peak_bytes as f64 * (1.0 - LEAST_SAVING);
    let best = effects.settings.first().filter(|best| (best.peak_reserved_bytes as f64) < most_bytes);
    let Some(best) = best else {
        let tried: Vec<String> =
            effects.settings.iter().map(|effect| name_setting(&effect.setting).to_owned()).collect();
        return format!(
            "The run reserved at most {recorded}. No setting that was tried would have saved more than {}: \
             {}. {more}",
            format_percent(LEAST_SAVING),
            tried.join(", ")
        );
    };
    let certainty = match &best.reason {
        None => "The prediction is exact.".to_owned(),
        Some(reason) => format!("The prediction may be wrong, because {reason}."),
    };
    let setting = match best.setting.as_str() {
        "" => format!("With PyTorch's defaults ({alloc_conf} unset)"),
        setting => format!("With {alloc_conf}={setting}"),
    };
    let peak = format_bytes(best.peak_reserved_bytes);
    format!("{setting}, the run would have reserved at most {peak} instead of {recorded}. {certainty} {more}")
}

/// A setting in a list.
pub(crate) fn name_setting(setting: &str) -> &str {
    if setting.is_empty() { "PyTorch's defaults" } else { setting }
}

/// What the allocator needs when no free memory fits.
pub(crate) fn name_new_segment(words: &Vocabulary) -> &'static str {
    if words.is_metal { "a new Metal heap" } else { "a new cudaMalloc" }
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
        (GapReason::End, _) => "when the program finished",
    };
    text.to_owned()
}

/// The same without the call, inside a sentence.
pub(crate) fn name_gap_moment(why: GapReason) -> String {
    describe_gap_moment(&GapMoment { time_ns: 0, step: None, why, call: None })
}
