//! Each verdict in one sentence, finding first, without a full stop.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{
    GrowthClass, HiddenOwner, PressureEvidence, Quantity, ResidualSource, SiteBytes, Verdict, VerdictEvidence,
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
    let is_metal = Vocabulary::of_trace(info).is_metal;
    match &verdict.evidence {
        VerdictEvidence::Leak { site, kind, blocks, bytes, bytes_per_step, grows_by, is_regular, .. } => {
            let what = label_leak(*kind, *grows_by, *is_regular);
            let rate = bytes_per_step.map(format_rate).unwrap_or_default();
            let item = name_leaked_item(*kind, &Vocabulary::of_trace(info));
            let (blocks, bytes) = (format_count(*blocks, item), format_bytes(*bytes));
            format!("{what}: {rate}{blocks}, {bytes} at {}", format_site(site))
        }
        VerdictEvidence::Growth { site, device, memory, class, grows_by, blocks, bytes } => {
            let label = label_growth(*class, *grows_by);
            let blocks = (*class != GrowthClass::GrowingSizes).then_some(*blocks);
            let what = format_growth((*memory, *device), *bytes, blocks);
            format!("{label}: {what} at {}", format_site(site))
        }
        VerdictEvidence::Oom { count, site, device, requested_bytes } => {
            let more = if *count > 1 {
                format!(" (the first of {} errors)", format_number(*count))
            } else {
                String::new()
            };
            let requested = format_bytes(*requested_bytes);
            format!(
                "Out of memory on GPU {device}: a request of {requested} failed at {}{more}",
                format_site(site)
            )
        }
        VerdictEvidence::Incomplete(_) => {
            let first = info.incomplete.first().map(|loss| describe_loss(&loss.fact)).unwrap_or_default();
            let more = match info.incomplete.len().saturating_sub(1) as u64 {
                0 => String::new(),
                1 => " (and 1 more loss)".to_owned(),
                more => format!(" (and {} more losses)", format_number(more)),
            };
            format!("The trace is incomplete: {first}{more}")
        }
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
        VerdictEvidence::UncoveredCalls { entry_points } => {
            let what = if is_metal {
                "methods or objects of Metal"
            } else {
                "calls of driver functions that allocate"
            };
            format!(
                "{} {what} were not intercepted; their memory is missing from this report",
                format_number(*entry_points)
            )
        }
        VerdictEvidence::FailedCalls { calls, out_of_memory, of_torch, .. }
            if *of_torch == *calls && *out_of_memory == Some(*calls) =>
        {
            describe_retries(*calls, info.events.get("oom").copied().unwrap_or(0))
        }
        VerdictEvidence::FailedCalls { calls, out_of_memory, site, .. } => {
            let calls_text = format_count(*calls, if is_metal { "Metal allocation" } else { "driver call" });
            let first = if *calls > 1 { "first at" } else { "at" };
            let site =
                site.as_ref().map(|site| format!(", {first} {}", format_site(site))).unwrap_or_default();
            // After an error, that PyTorch retries is no comfort.
            let has_failed = info.events.get("oom").is_some_and(|count| *count > 0);
            let retry = if has_failed {
                ""
            } else {
                "; PyTorch retries after freeing its cache, other libraries do not"
            };
            match out_of_memory {
                None => format!(
                    "{calls_text} failed{site}; Metal returns no reason, memory may have been short{retry}"
                ),
                Some(0) => format!("{calls_text} failed, none for lack of memory"),
                Some(refused) => {
                    format!("{calls_text} failed, {} for lack of memory{retry}", format_number(*refused))
                }
            }
        }
        VerdictEvidence::HighPressure(pressure) => describe_pressure(pressure),
        VerdictEvidence::CachePressure(pressure) => {
            let PressureEvidence { device, total_bytes, live_bytes, non_torch_bytes, share, .. } = *pressure;
            let needed = live_bytes.saturating_add(non_torch_bytes) as f64 / total_bytes.max(1) as f64;
            format!(
                "GPU {device} was {} full, mostly with PyTorch's cache; without the cache it was {} full",
                format_percent(share),
                format_percent(needed)
            )
        }
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
            Vocabulary::of_trace(info).empty_cache,
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
        VerdictEvidence::PersistentDrift { device, first_bytes, last_bytes, source, .. } => {
            let processes = match source {
                ResidualSource::Nvml => "",
                ResidualSource::Recorder | ResidualSource::Program => {
                    ", in this process or in others on the GPU"
                }
            };
            format!(
                "GPU {device}: memory outside recorded calls rose from {} to {}{processes}",
                format_bytes(*first_bytes),
                format_bytes(*last_bytes)
            )
        }
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
            let ranks = report.ranks.as_ref();
            let name = ranks.map(|ranks| format_rank(&ranks.rows[ranks.worst as usize], &ranks.rows));
            let excess = if *excess < 1.0 {
                format!("{} above", format_percent(*excess))
            } else {
                format!("{} times", format_number((excess + 1.0).round() as u64))
            };
            format!(
                "Imbalance: {} peaked at {}, {excess} the median of {} ({}){}",
                name.unwrap_or_else(|| "one rank".to_owned()),
                format_bytes(*peak_live_bytes),
                ranks.map_or(0, |ranks| ranks.rows.len()),
                format_bytes(*median_peak_live_bytes),
                describe_more(ranks.map_or(&[], |ranks| ranks.more_by_site.as_slice()))
            )
        }
    }
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
