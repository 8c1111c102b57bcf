//! Verdicts: the findings of the summary, as typed values with a severity. docs/analyses/index.md
//! has the definitions.
//!
//! A verdict holds all numbers that its sentence needs. The command writes the sentence.

mod capacity;
mod spikes;
mod stranded;

use crate::device::sleep::BackedLevels;
use crate::device::{DeviceState, ReservedPeakLevels, TotalMismatch};
use crate::fragmentation::Gap;
use crate::pass::Analysis;
use crate::report::{
    GrowingSite, Leak, LeakKind, Oom, OomForecast, Severity, Site, SiteBytes, Verdict, VerdictEvidence,
};
use crate::state::live_set::site_stats::SiteStats;
use crate::timeline::bins::TimelineBin;
use crate::util::ids::SiteId;
use capacity::CapacityFacts;
use spikes::{BinLevel, SpikeLevels, drift, spike, usual_bin};
use stranded::stranded_verdict;

/// Most call sites that a spike names.
const MAX_SPIKE_SITES: usize = 3;
/// A leak that fills the device within this number of steps is critical.
const SOON_STEPS: u64 = 10_000;
/// A forecast beyond this many times the steps seen is not critical, unless it is soon.
const MAX_EXTRAPOLATION: u64 = 10;
/// A forecast beyond this many further steps is not reported.
const FAR_STEPS: u64 = 1_000_000;

/// A verdict without its trace.
type VerdictDraft = (Severity, VerdictEvidence);

/// The device that a verdict is about.
#[derive(Clone, Copy, Debug)]
struct DeviceCapacity {
    ordinal: u8,
    /// Its memory; 0 if unknown.
    bytes: u64,
}

/// The verdicts of one trace, most severe first. `growth` is that of its assessment.
pub(crate) fn verdicts(
    trace: usize,
    analysis: &Analysis,
    leaks: &[Leak],
    growth: &[GrowingSite],
    ooms: &[Oom],
) -> Vec<Verdict> {
    let leaks: Vec<&Leak> = leaks.iter().filter(|leak| leak.trace == trace).collect();
    let mut drafts: Vec<VerdictDraft> = Vec::new();
    if let Some(first) = ooms.iter().find(|oom| oom.trace == trace) {
        let evidence = VerdictEvidence::Oom {
            count: analysis.oom_count,
            site: without_stack(&first.site),
            device: first.device,
            requested_bytes: first.requested_bytes,
        };
        drafts.push((Severity::Critical, evidence));
    }
    drafts.extend(leaks.iter().map(|leak| leak_verdict(leak)));
    drafts.extend(growth.iter().map(growth_verdict));
    drafts.extend(recording_verdicts(analysis));
    for (ordinal, device) in analysis.visible_devices() {
        drafts.extend(device_verdicts(analysis, ordinal, device));
        let has_failed = ooms.iter().any(|oom| (oom.trace, oom.device) == (trace, u32::from(ordinal)));
        drafts.extend(creep_verdicts(ordinal, analysis.steps, &leaks, has_failed));
    }
    drafts.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
    let verdict = |(severity, evidence)| Verdict { trace, severity, summary: String::new(), evidence };
    drafts.into_iter().map(verdict).collect()
}

fn without_stack(site: &Site) -> Box<Site> {
    Box::new(Site { stack: Vec::new(), stack_order: None, ..site.clone() })
}

fn leak_verdict(leak: &Leak) -> VerdictDraft {
    let severity = match leak.steps_to_oom {
        Some(steps) if steps < SOON_STEPS => Severity::Critical,
        _ => Severity::Warning,
    };
    let evidence = VerdictEvidence::Leak {
        site: without_stack(&leak.site),
        kind: leak.kind,
        confidence: leak.confidence,
        blocks: leak.blocks,
        bytes: leak.bytes,
        bytes_per_step: leak.bytes_per_step,
        grows_by: leak.grows_by,
        is_regular: leak.is_regular,
    };
    (severity, evidence)
}

/// Growth that may be a leak is a warning, so that no summary says that nothing was found. Growth
/// that has another explanation is worth knowing.
fn growth_verdict(growth: &GrowingSite) -> VerdictDraft {
    let evidence = VerdictEvidence::Growth {
        site: without_stack(&growth.site),
        device: growth.device,
        memory: growth.memory,
        class: growth.class,
        grows_by: growth.grows_by,
        blocks: growth.blocks,
        bytes: growth.bytes,
    };
    (if growth.is_warning() { Severity::Warning } else { Severity::Info }, evidence)
}

/// Verdicts on what the recording lacks, and on calls that failed.
fn recording_verdicts(analysis: &Analysis) -> Vec<VerdictDraft> {
    let mut drafts = Vec::new();
    if !analysis.incomplete.is_empty() {
        drafts.push((Severity::Warning, VerdictEvidence::Incomplete(analysis.losses.clone())));
    }
    for (ordinal, state) in &analysis.devices {
        let device = u32::from(*ordinal);
        if let Some(TotalMismatch { seq, sum_bytes, torch_bytes }) = state.first_mismatch {
            let events = state.total_mismatches;
            let evidence =
                VerdictEvidence::TotalMismatch { device, events, first_seq: seq, sum_bytes, torch_bytes };
            drafts.push((Severity::Warning, evidence));
        }
        if state.segment_mismatches > 0 {
            let events = state.segment_mismatches;
            drafts.push((Severity::Info, VerdictEvidence::SegmentMismatch { device, events }));
        }
        let (unmatched_frees, lost_frees) = (state.torch.unmatched_frees, state.torch.lost_frees);
        if unmatched_frees + lost_frees > 0 {
            let evidence = VerdictEvidence::UnmatchedBlocks { device, unmatched_frees, lost_frees };
            drafts.push((Severity::Info, evidence));
        }
    }
    let entry_points = analysis.losses.uncovered_calls;
    if entry_points > 0 {
        drafts.push((Severity::Warning, VerdictEvidence::UncoveredCalls { entry_points }));
    }
    drafts.extend(failed_calls_verdict(analysis));
    drafts
}

fn failed_calls_verdict(analysis: &Analysis) -> Option<VerdictDraft> {
    let calls = analysis.failed_calls;
    if calls == 0 {
        return None;
    }
    // Metal returns nil without a reason, and the requested size is not recorded.
    let is_metal = analysis.is_metal();
    let first = analysis.first_failed.filter(|_| is_metal);
    let site = first.map(|stack| analysis.symbols.site(analysis.symbols.stack_info(stack).site, None));
    let evidence = VerdictEvidence::FailedCalls {
        calls,
        out_of_memory: (!is_metal).then_some(analysis.refused_calls),
        of_torch: analysis.refused_torch_calls,
        site: site.map(Box::new),
    };
    Some((if is_metal { Severity::Warning } else { Severity::Info }, evidence))
}

fn device_verdicts(analysis: &Analysis, ordinal: u8, device: &DeviceState) -> Vec<VerdictDraft> {
    let capacity = DeviceCapacity { ordinal, bytes: analysis.capacity(ordinal).unwrap_or(0) };
    // One stream does not show how full the device is.
    let is_whole = analysis.stream.is_none();
    let mut drafts =
        if is_whole { capacity_facts(analysis, capacity, device).verdicts() } else { Vec::new() };
    drafts.extend(stranded_verdict(analysis, capacity, device));
    if let Some(sample) = device.attribution.nearest() {
        drafts.extend(drift(capacity, device.attribution.residuals(), sample.source));
    }
    let live_set = &device.torch;
    let bins = live_set.bins().all();
    let ends = bins.iter().skip(1).map(|bin| bin.begin_ns).chain([analysis.end_ns]);
    let level = |(bin, end): (&TimelineBin, u64)| BinLevel {
        high_bytes: bin.high.live,
        duration_ns: end.saturating_sub(bin.begin_ns),
    };
    let levels: Vec<BinLevel> = bins.iter().zip(ends).map(level).collect();
    // Levels over time count memory that sleeps, so they show no spike of the device.
    let usual = usual_bin(&levels, capacity.bytes).filter(|_| !device.sleep.has_slept());
    if let Some(usual) = usual {
        let more = |(id, site): (SiteId, &SiteStats)| {
            let usually = site.bin_values().get(usual).map_or(0, |bytes| bytes[0]);
            let bytes = live_set.at_peak(site).bytes.saturating_sub(usually);
            SiteBytes { site: analysis.symbols.site(id, None), bytes }
        };
        let mut sites: Vec<SiteBytes> = live_set.sites().map(more).filter(|one| one.bytes > 0).collect();
        sites.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.site.place().cmp(&b.site.place())));
        sites.truncate(MAX_SPIKE_SITES);
        let levels = SpikeLevels {
            peak_bytes: live_set.peak().live,
            step: analysis.reported_step(live_set.peak().step),
            usual_bytes: levels[usual].high_bytes,
        };
        drafts.push(spike(capacity, levels, sites));
    }
    drafts
}

fn capacity_facts(analysis: &Analysis, capacity: DeviceCapacity, device: &DeviceState) -> CapacityFacts {
    let residual = device.attribution.nearest().and_then(|sample| sample.residual());
    let non_torch =
        |bytes: u64, reserved| bytes.saturating_sub(reserved).saturating_add(residual.unwrap_or(0));
    let peak = device.torch.peak();
    let ReservedPeakLevels { reserved, device: device_bytes, .. } = device.reserved_peak;
    let torch_peaks = [
        BackedLevels { live: peak.live, reserved: peak.reserved, device: peak.device },
        BackedLevels { live: 0, reserved, device: device_bytes },
    ];
    let [live_peak, reserved_peak] =
        device.sleep.facts().map_or(torch_peaks, |facts| [facts.live_peak, facts.reserved_peak]);
    let gap = device.gap_at_peak.as_ref().map(|at_peak| &at_peak.gap);
    let unusable = |gap: &Gap| {
        let parts = [&gap.pinned, &gap.stranded_stream, &gap.stranded_pool, &gap.pending];
        parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes))
    };
    let entries = device.attribution.entries(&analysis.owners).into_iter();
    let mut owners: Vec<(Option<String>, u64)> = entries
        .filter(|(owner, _)| !owner.starts_with("torch "))
        .map(|(owner, bytes)| (Some(owner), bytes))
        .chain(residual.map(|bytes| (None, bytes)))
        .collect();
    owners.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let is_torch = device.has_torch();
    // Requests that the unused reserved bytes would have served in one piece.
    let failed = analysis.ooms.iter().filter(|oom| {
        let free = oom.event.aux[1].saturating_sub(oom.live);
        oom.event.device == capacity.ordinal && oom.event.size <= free
    });
    let at_failed_request = failed.map(|oom| [unusable(&oom.gap), oom.event.aux[1]]).max();
    CapacityFacts {
        ordinal: capacity.ordinal,
        capacity: capacity.bytes,
        live: if is_torch { live_peak.live } else { 0 },
        non_torch: if is_torch {
            non_torch(live_peak.device, live_peak.reserved)
        } else {
            non_torch(device.driver_peak.bytes(), 0)
        },
        reserved: reserved_peak.reserved,
        non_torch_at_reserved_peak: non_torch(reserved_peak.device, reserved_peak.reserved),
        unusable: gap.map_or(0, unusable),
        cache: gap.map_or(0, |gap| gap.cache),
        at_failed_request: at_failed_request.filter(|[unusable, _]| *unusable > 0),
        owners,
    }
}

/// The growth of one device over all call sites. After an out-of-memory error, a forecast is no
/// news.
fn creep_verdicts(ordinal: u8, steps: u32, leaks: &[&Leak], has_failed: bool) -> Vec<VerdictDraft> {
    let device = u32::from(ordinal);
    let mut drafts = Vec::new();
    let growing: Vec<&&Leak> =
        leaks.iter().filter(|leak| leak.device == device && leak.kind == LeakKind::Tensors).collect();
    if !growing.is_empty() {
        let ahead = |forecast: &OomForecast| forecast.expected.saturating_sub(u64::from(steps));
        let forecast = growing.iter().find_map(|leak| leak.oom_step);
        let oom_step = forecast.filter(|forecast| !has_failed && ahead(forecast) <= FAR_STEPS);
        let is_soon = oom_step
            .is_some_and(|forecast| ahead(&forecast) <= SOON_STEPS.max(MAX_EXTRAPOLATION * u64::from(steps)));
        let evidence = VerdictEvidence::CreepConfirmed {
            device,
            bytes: growing.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.bytes)),
            bytes_per_step: growing.iter().filter_map(|leak| leak.bytes_per_step).map(|rate| rate.0).sum(),
            findings: growing.len(),
            oom_step,
        };
        drafts.push((if is_soon { Severity::Critical } else { Severity::Warning }, evidence));
    }
    drafts
}
