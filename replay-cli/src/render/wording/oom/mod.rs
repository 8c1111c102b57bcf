//! Why a request failed, and what to try, without a full stop.

pub(crate) mod groups;
pub(crate) mod growth;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{
    Oom, OomCause, OomGrowth, OomGrowthPattern, Remedy, RemedyKind, Verdict, VerdictEvidence,
};

use super::Vocabulary;
use super::sites::format_site;
use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// Instead of "No out-of-memory errors.", if calls of the driver failed: a library may have failed
/// with them.
pub(crate) const NONE_OF_PYTORCH: &str = "PyTorch had no out-of-memory error.";

/// The verdict on calls of the driver that failed for lack of memory, or may have.
pub(crate) fn find_refused_calls(report: &Report, trace: usize) -> Option<&Verdict> {
    report.verdicts.iter().flatten().find(|verdict| match verdict.evidence {
        VerdictEvidence::FailedCalls { out_of_memory, .. } => {
            verdict.trace == trace && out_of_memory != Some(0)
        }
        _ => false,
    })
}

/// Why a request failed, in one sentence.
pub(super) fn explain_oom(oom: &Oom, words: &Vocabulary) -> String {
    let requested = format_bytes(oom.requested_bytes);
    let unused_bytes = oom.reserved_bytes.saturating_sub(oom.live_bytes);
    let (live, unused, reserver) = (format_bytes(oom.live_bytes), format_bytes(unused_bytes), words.reserver);
    match oom.cause {
        OomCause::ExceedsDevice => {
            let total = format_bytes(oom.device_total_bytes.unwrap_or(0));
            format!("The request of {requested} exceeds the GPU's {total}")
        }
        OomCause::NoFittingBlock => {
            let largest = oom
                .largest_free_block_bytes
                .map(|bytes| format!(" (largest free block {})", format_bytes(bytes)));
            let driver = oom.driver_free_bytes.map(|free| {
                format!(", and the driver had {} free{}", format_bytes(free), describe_shortfall(oom))
            });
            format!(
                "No free block fits {requested}: {reserver} had {unused} unused{}{}",
                largest.unwrap_or_default(),
                driver.unwrap_or_default()
            )
        }
        OomCause::DeviceFull => {
            let free = oom.driver_free_bytes.unwrap_or(0);
            format!(
                "The GPU was too full for {requested}: {live} were allocated, {} were free ({unused} in {reserver}, {} not reserved{})",
                format_bytes(unused_bytes.saturating_add(free)),
                format_bytes(free),
                describe_shortfall(oom)
            )
        }
        OomCause::OtherLimit => format!(
            "The request of {requested} failed although recorded calls had left {} of the GPU: contexts or other processes used it, or set_per_process_memory_fraction() applied",
            format_bytes(oom.device_free_bytes.unwrap_or(0))
        ),
        OomCause::Unknown => {
            let unknown = if words.is_metal { "which limit applied is" } else { "the size of the GPU is" };
            format!(
                "The request of {requested} failed with {live} allocated and {unused} unused in {reserver}; {unknown} unknown"
            )
        }
    }
}

/// `, 174.00 MiB less than the segment needs`; empty if it is unknown what was missing.
fn describe_shortfall(oom: &Oom) -> String {
    let what = oom.segment_bytes.map_or("request", |_| "segment");
    let missing =
        oom.shortfall_bytes.map(|bytes| format!(", {} less than the {what} needs", format_bytes(bytes)));
    missing.unwrap_or_default()
}

/// How full the step of the error was, compared with earlier ones; `None` without earlier steps.
pub(crate) fn compare_with_earlier_steps(oom: &Oom) -> Option<String> {
    let (step, earlier) = (oom.step?, oom.earlier_peak?);
    Some(format!(
        "Step {} had {} allocated at the request; earlier steps had at most {} (step {}).",
        format_number(step),
        format_bytes(oom.live_bytes),
        format_bytes(earlier.live_bytes),
        format_number(earlier.step)
    ))
}

/// What to try, as an imperative.
pub(super) fn describe_remedy(remedy: &Remedy, words: &Vocabulary) -> String {
    match &remedy.kind {
        RemedyKind::FixLeak { site, bytes } => {
            format!("free what {} retains ({} by then)", format_site(site), format_bytes(*bytes))
        }
        RemedyKind::UseTorchAllocator => {
            format!("use PyTorch's own allocator with {}=expandable_segments:True", words.alloc_conf)
        }
        RemedyKind::RaiseMpsLimit => {
            "raise PYTORCH_MPS_HIGH_WATERMARK_RATIO (the system may then run out of memory)".to_owned()
        }
        RemedyKind::AllocatorSetting { setting, is_over_limit } => {
            let note = match (remedy.works, is_over_limit) {
                (Some(true), _) => " (predicted for this request; a later one may still fail)",
                (None, _) | (_, true) => " (to predict it: gpumemtrace whatif TRACE)",
                _ => "",
            };
            format!("{}{note}", advise_setting(setting, words))
        }
        RemedyKind::AllocatorSettings { settings } => {
            format!("set {} to any setting that was tried: {}", words.alloc_conf, list_settings(settings))
        }
        RemedyKind::UseOneStream { bytes } => format!(
            "allocate on one stream, or free memory before another stream needs it ({} are cached for other streams)",
            format_bytes(*bytes)
        ),
        RemedyKind::ReleasePools { bytes } => {
            format!("release CUDA graphs or memory pools ({} are free in other pools)", format_bytes(*bytes))
        }
        RemedyKind::EmptyCache => {
            let why = match remedy.works {
                Some(false) => ": nothing was left that it could release",
                Some(true) | None => "",
            };
            format!("call {} before the request{why}", words.empty_cache)
        }
        RemedyKind::RequestLess => "request less: the GPU cannot hold it even when empty".to_owned(),
        RemedyKind::HoldLess { bytes } => {
            format!("free at least {} before the request", format_bytes(*bytes))
        }
        RemedyKind::FreeSegments { bytes } => {
            format!("free all blocks in segments that total at least {}", format_bytes(*bytes))
        }
        RemedyKind::LargerGpu { bytes } => {
            format!("use a GPU with {} more memory (to compare: gpumemtrace fit TRACE)", format_bytes(*bytes))
        }
    }
}

/// The imperative for a value of `PYTORCH_ALLOC_CONF`.
fn advise_setting(setting: &str, words: &Vocabulary) -> String {
    match setting {
        "" => format!("unset {}", words.alloc_conf),
        setting => format!("set {}={setting}", words.alloc_conf),
    }
}

/// The settings, with all values of one option together.
fn list_settings(settings: &[String]) -> String {
    let mut listed: Vec<String> = Vec::new();
    let mut previous = "";
    for setting in settings {
        let option = setting.split_once(':').filter(|_| !setting.contains(','));
        match (option, listed.last_mut()) {
            (Some((name, value)), Some(last)) if name == previous => {
                last.push_str(", ");
                last.push_str(value);
            }
            _ if setting.is_empty() => listed.push("the defaults".to_owned()),
            _ => listed.push(setting.clone()),
        }
        previous = option.map_or("", |(name, _)| name);
    }
    listed.join("; ")
}

/// Those that help first, those that do not last.
pub(crate) fn sort_remedies(remedies: &[Remedy]) -> Vec<&Remedy> {
    let mut sorted: Vec<&Remedy> = remedies.iter().collect();
    sorted.sort_by_key(|remedy| match remedy.works {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    });
    sorted
}

/// Whether a remedy was tested, and helps.
pub(crate) fn remedy_state(remedy: &Remedy) -> &'static str {
    match remedy.works {
        Some(true) => "helps",
        Some(false) => "does not help",
        None => "untested",
    }
}

/// What a line's growth is called, in front of its bytes.
pub(crate) fn label_growth(pattern: OomGrowthPattern) -> &'static str {
    match pattern {
        OomGrowthPattern::Repeated | OomGrowthPattern::Replaced | OomGrowthPattern::Once => {
            "Grew before the error: "
        }
        OomGrowthPattern::EachStep => "In use in this step: ",
    }
}

/// How the blocks of a line came, behind their number.
pub(crate) fn describe_pattern(line: &OomGrowth) -> String {
    let since = line.first_step.map(|step| format!(" since step {}", format_number(step)));
    let since = since.unwrap_or_default();
    match line.pattern {
        OomGrowthPattern::Repeated => {
            format!(", allocated {}{since}", format_count(line.moments, "time"))
        }
        OomGrowthPattern::Replaced => format!("{since}, while older ones were freed"),
        OomGrowthPattern::Once => {
            let step = line.first_step.map(|step| format!(" in step {}", format_number(step)));
            format!(", allocated together{}", step.unwrap_or_default())
        }
        OomGrowthPattern::EachStep => "; earlier steps freed theirs".to_owned(),
    }
}

/// What the program did after an error; `None` if the trace does not show it.
pub(crate) fn describe_recovery(recovered: Option<bool>) -> Option<&'static str> {
    match recovered {
        Some(true) => Some("the program went on"),
        Some(false) => Some("the run ended"),
        None => None,
    }
}
