//! Each verdict in one sentence, finding first, without a full stop.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{
    GrowthClass, HiddenOwner, PressureEvidence, Quantity, Ranks, ResidualSource, Site, SiteBytes, TraceInfo,
    Verdict, VerdictEvidence,
};

use super::assessment::{format_growth, label_growth};
use super::fragmentation::name_gap_moment;
use super::leaks::{label_leak, name_leaked_item};
use super::sites::{format_rank, format_site};
use super::{Vocabulary, describe_loss};
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// Most owners that a sentence names.
const MAX_OWNERS: usize = 3;

/// The sentence of a verdict of this report.
pub(super) fn summarize(verdict: &Verdict, report: &Report) -> String {
    let info = &report.traces[verdict.trace];
    let words = Vocabulary::of_trace(info);
    match &verdict.evidence {
        VerdictEvidence::Leak { site, kind, blocks, bytes, bytes_per_step, grows_by, is_regular, .. } => {
            let what = label_leak(*kind, *grows_by, *is_regular);
            let rate = bytes_per_step.map(format_rate).unwrap_or_default();
            let blocks = format_count(*blocks, name_leaked_item(*kind, &words));
            format!("{what}: {rate}{blocks}, {} at {}", format_bytes(*bytes), format_site(site))
        }
        VerdictEvidence::Growth { site, device, memory, class, grows_by, blocks, bytes } => {
            let label = label_growth(*class, *grows_by);
            let blocks = (*class != GrowthClass::GrowingSizes).then_some(*blocks);
            let what = format_growth((*memory, *device), *bytes, blocks);
            format!("{label}: {what} at {}", format_site(site))
        }
        VerdictEvidence::Oom { count, site, device, requested_bytes } => {
            describe_first_oom(*device, *requested_bytes, site, *count)
        }
        VerdictEvidence::Incomplete(_) => describe_losses(info),
        VerdictEvidence::TotalMismatch { device, events, first_seq, sum_bytes, torch_bytes } => format!(
            "GPU {device}: live blocks do not sum to PyTorch's total at {} (first at event {first_seq}: {} instead of {} bytes)",
            format_count(*events, "event"),
            format_number(*sum_bytes),
            format_number(*torch_bytes)
        ),
        VerdictEvidence::SegmentMismatch { device, events } => format!(
            "GPU {device}: the recorded segments do not sum to PyTorch's reserved bytes at {}",
            format_count(*events, "event")
        ),
        VerdictEvidence::UnmatchedBlocks { device, unmatched_frees, lost_frees } => format!(
            "GPU {device}: {} without a recorded allocation, {} of an address that was never freed",
            format_count(*unmatched_frees, "free"),
            format_count(*lost_frees, "allocation")
        ),
        VerdictEvidence::UncoveredCalls { entry_points } => describe_uncovered(*entry_points, &words),
        VerdictEvidence::FailedCalls { calls, out_of_memory, of_torch, .. }
            if *of_torch == *calls && *out_of_memory == Some(*calls) =>
        {
            describe_retries(*calls, count_ooms(info))
        }
        VerdictEvidence::FailedCalls { calls, out_of_memory, site, .. } => {
            describe_failed_calls(*calls, *out_of_memory, site.as_deref(), info)
        }
        VerdictEvidence::HighPressure(pressure) => describe_pressure(pressure),
        VerdictEvidence::CachePressure(pressure) => describe_cache_pressure(pressure),
        VerdictEvidence::FragmentationLike { device, reserved_bytes, unusable_bytes, oom, .. } => {
            let failed = if *oom { ", and an allocation failed for it" } else { "" };
            format!(
                "GPU {device} was fragmented: {} of {} reserved were free but unusable{failed} (see --fragmentation)",
                format_bytes(*unusable_bytes),
                format_bytes(*reserved_bytes)
            )
        }
        VerdictEvidence::StrandedMemory {
            device,
            at,
            reserved_bytes,
            stream_bytes,
            private_pool_bytes,
            graph_pools,
        } => {
            let moment = name_gap_moment(*at);
            let stranded = describe_stranded(*stream_bytes, *private_pool_bytes, *reserved_bytes);
            let advice = advise_on_stranded(*stream_bytes, *private_pool_bytes, *graph_pools);
            format!("GPU {device}: {moment}, {stranded}; {advice} (see --fragmentation)")
        }
        VerdictEvidence::ReservedOverhang { device, reserved_bytes, live_bytes, cache_bytes } => format!(
            "GPU {device}: {} were reserved for at most {} allocated; {} returns {}",
            format_bytes(*reserved_bytes),
            format_bytes(*live_bytes),
            words.empty_cache,
            format_bytes(*cache_bytes)
        ),
        VerdictEvidence::HiddenMemory { device, bytes, total_bytes, owners } => format!(
            "GPU {device}: {} ({}) were held outside PyTorch at the peak: {}",
            format_bytes(*bytes),
            format_percent(*bytes as f64 / (*total_bytes).max(1) as f64),
            owners.iter().take(MAX_OWNERS).map(describe_owner).collect::<Vec<_>>().join(", ")
        ),
        VerdictEvidence::TransientSpike { device, peak_bytes, usual_bytes, step, more_by_site } => {
            let step = step.map(|step| format!(" (step {})", format_number(step))).unwrap_or_default();
            format!(
                "GPU {device}: allocated memory peaked at {}{step}, but stayed below {} for 95% of the run{}",
                format_bytes(*peak_bytes),
                format_bytes(*usual_bytes),
                describe_more(more_by_site)
            )
        }
        VerdictEvidence::PersistentDrift { device, first_bytes, last_bytes, source, .. } => format!(
            "GPU {device}: memory outside recorded calls rose from {} to {}{}",
            format_bytes(*first_bytes),
            format_bytes(*last_bytes),
            name_processes(*source)
        ),
        VerdictEvidence::CreepConfirmed { device, bytes_per_step, findings, oom_step, .. } => {
            let expected = oom_step
                .map(|oom| format!("; out of memory expected near step {}", format_number(oom.expected)));
            format!(
                "GPU {device}: allocated memory grows by {}/step at {}{}",
                format_bytes(*bytes_per_step as u64),
                format_count(*findings as u64, "call site"),
                expected.unwrap_or_default()
            )
        }
        VerdictEvidence::Imbalance { peak_live_bytes, median_peak_live_bytes, excess, .. } => {
            describe_imbalance(*peak_live_bytes, *median_peak_live_bytes, *excess, report.ranks.as_ref())
        }
    }
}

fn describe_first_oom(device: u32, requested_bytes: u64, site: &Site, errors: u64) -> String {
    let more = match errors {
        0 | 1 => String::new(),
        errors => format!(" (the first of {} errors)", format_number(errors)),
    };
    let (requested, site) = (format_bytes(requested_bytes), format_site(site));
    format!("Out of memory on GPU {device}: a request of {requested} failed at {site}{more}")
}

fn describe_losses(info: &TraceInfo) -> String {
    let first = info.incomplete.first().map(|loss| describe_loss(&loss.fact)).unwrap_or_default();
    let more = match info.incomplete.len().saturating_sub(1) as u64 {
        0 => String::new(),
        1 => " (and 1 more loss)".to_owned(),
        more => format!(" (and {} more losses)", format_number(more)),
    };
    format!("The trace is incomplete: {first}{more}")
}

fn describe_uncovered(entry_points: u64, words: &Vocabulary) -> String {
    let what = if words.is_metal {
        "methods or objects of Metal"
    } else {
        "calls of driver functions that allocate"
    };
    let count = format_number(entry_points);
    format!("{count} {what} were not intercepted; their memory is missing from this report")
}

/// Out-of-memory events of a trace.
fn count_ooms(info: &TraceInfo) -> u64 {
    info.events.get("oom").copied().unwrap_or(0)
}

/// Failed driver calls, of which `out_of_memory` failed for lack of memory; `None` if unknown.
fn describe_failed_calls(
    calls: u64,
    out_of_memory: Option<u64>,
    site: Option<&Site>,
    info: &TraceInfo,
) -> String {
    let is_metal = Vocabulary::of_trace(info).is_metal;
    let calls_text = format_count(calls, if is_metal { "Metal allocation" } else { "driver call" });
    let first = if calls > 1 { "first at" } else { "at" };
    let site = site.map(|site| format!(", {first} {}", format_site(site))).unwrap_or_default();
    // Omit the retry hint after a failed allocation.
    let retry = if count_ooms(info) > 0 {
        ""
    } else {
        "; PyTorch retries after freeing its cache, other libraries do not"
    };
    match out_of_memory {
        None => {
            format!("{calls_text} failed{site}; Metal returns no reason, memory may have been short{retry}")
        }
        Some(0) => format!("{calls_text} failed, none for lack of memory"),
        Some(refused) => {
            format!("{calls_text} failed, {} for lack of memory{retry}", format_number(refused))
        }
    }
}

fn describe_cache_pressure(pressure: &PressureEvidence) -> String {
    let PressureEvidence { device, total_bytes, live_bytes, non_torch_bytes, share, .. } = *pressure;
    let needed = live_bytes.saturating_add(non_torch_bytes) as f64 / total_bytes.max(1) as f64;
    format!(
        "GPU {device} was {} full, mostly with PyTorch's cache; without the cache it was {} full",
        format_percent(share),
        format_percent(needed)
    )
}

/// The processes that a measurement of other memory includes.
fn name_processes(source: ResidualSource) -> &'static str {
    match source {
        ResidualSource::Nvml => "",
        ResidualSource::Recorder | ResidualSource::Program => ", in this process or in others on the GPU",
    }
}

fn describe_imbalance(peak_bytes: u64, median_bytes: u64, excess: f64, ranks: Option<&Ranks>) -> String {
    let name = ranks.map(|ranks| format_rank(&ranks.rows[ranks.worst as usize], &ranks.rows));
    let excess = if excess < 1.0 {
        format!("{} above", format_percent(excess))
    } else {
        format!("{} times", format_number((excess + 1.0).round() as u64))
    };
    format!(
        "Imbalance: {} peaked at {}, {excess} the median of {} ({}){}",
        name.unwrap_or_else(|| "one rank".to_owned()),
        format_bytes(peak_bytes),
        ranks.map_or(0, |ranks| ranks.rows.len()),
        format_bytes(median_bytes),
        describe_more(ranks.map_or(&[], |ranks| ranks.more_by_site.as_slice()))
    )
}

/// The growth as `+4.00 MiB/step; `.
fn format_rate(rate: Quantity) -> String {
    format!("+{}/step; ", format_bytes(rate.0.max(0.0) as u64))
}

fn describe_pressure(pressure: &PressureEvidence) -> String {
    let PressureEvidence { device, live_bytes, non_torch_bytes, share, .. } = *pressure;
    let used = match (live_bytes, non_torch_bytes) {
        (0, used) => format!("{} in use", format_bytes(used)),
        (live, 0) => format!("{} allocated", format_bytes(live)),
        (live, other) => {
            format!("{} allocated and {} outside PyTorch", format_bytes(live), format_bytes(other))
        }
    };
    format!("GPU {device} was nearly full: {used}, {} of its memory", format_percent(share))
}

/// Free memory that other requests cannot use.
fn describe_stranded(stream_bytes: u64, private_pool_bytes: u64, reserved_bytes: u64) -> String {
    let on_streams = format_bytes(stream_bytes);
    let in_pools = format_bytes(private_pool_bytes);
    let reserved = format_bytes(reserved_bytes);
    match (stream_bytes, private_pool_bytes) {
        (_, 0) => format!("{on_streams} of {reserved} reserved were free only for other streams"),
        (0, _) => {
            format!("{in_pools} of {reserved} reserved were free only for CUDA graphs and MemPools")
        }
        (..) => format!(
            "of {reserved} reserved, {on_streams} were free only for other streams, and {in_pools} only for CUDA graphs and MemPools"
        ),
    }
}

/// What returns the memory. Graphs may share a pool if they run one after the other in the order of
/// their captures, or if none runs while the result of another is needed
/// (<https://docs.pytorch.org/docs/stable/notes/cuda.html#sharing-memory-across-captures>).
fn advise_on_stranded(stream_bytes: u64, private_pool_bytes: u64, graph_pools: u64) -> String {
    let of_pools = match graph_pools {
        _ if private_pool_bytes == 0 => None,
        0 | 1 => Some("delete graphs and pools to get theirs back".to_owned()),
        several => Some(format!(
            "{} CUDA graphs have a pool each: give all captures one pool=torch.cuda.graph_pool_handle(), if no graph runs while the result of another is needed",
            format_number(several)
        )),
    };
    let of_streams = (stream_bytes > 0).then(|| "untested: allocate on one stream".to_owned());
    of_pools.into_iter().chain(of_streams).collect::<Vec<_>>().join("; ")
}

/// What PyTorch did when the driver refused it memory. It asks twice more after freeing cached
/// segments, so one request may be refused several times (`CUDACachingAllocator.cpp`, `malloc`).
fn describe_retries(refused: u64, ooms: u64) -> String {
    let outcome = match ooms {
        0 => String::new(),
        ooms => format!(", and {} got none in the end", format_count(ooms, "request")),
    };
    let times = format_count(refused, "time");
    format!("the driver refused PyTorch memory {times}; PyTorch freed its cache and asked again{outcome}")
}

fn describe_owner(owner: &HiddenOwner) -> String {
    let bytes = format_bytes(owner.bytes);
    match &owner.owner {
        Some(owner) => format!("{bytes} by {owner}"),
        None => format!("{bytes} not in any recorded call"),
    }
}

fn describe_more(more_by_site: &[SiteBytes]) -> String {
    more_by_site.first().map_or_else(String::new, |more| format!("; {}", describe_more_bytes(more)))
}

/// `train.py:31 in log() held 4.00 MiB more`
pub(crate) fn describe_more_bytes(more: &SiteBytes) -> String {
    format!("{} held {} more", format_site(&more.site), format_bytes(more.bytes))
}
