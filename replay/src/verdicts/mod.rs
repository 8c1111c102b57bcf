//! What to know before anything else: one sentence each, with the numbers behind it. Definitions are in docs/analyses.md.

mod capacity;
mod spikes;

use serde_json::{Value, json};

use crate::callsite::symbols::SiteId;
use crate::fragmentation::Gap;
use crate::pass::Analysis;
use crate::report::display::{format_bytes, format_site};
use crate::report::{BenignGrowth, Leak, Oom, Severity, Verdict};
use crate::state::device::{DeviceState, ReservedPeakLevels, TotalMismatch};
use crate::state::live_set::site_stats::SiteStats;
use capacity::CapacityFacts;
use spikes::{drift, spike, usual_part};

/// In fewer steps everything is new.
const FEWEST_STEPS: u32 = 5;
/// Most lines that are named with a moment that stands out.
const MOST_NAMED: usize = 3;

/// A verdict of no trace yet.
#[derive(Debug)]
struct VerdictDraft {
    kind: &'static str,
    severity: Severity,
    summary: String,
    evidence: Value,
}

/// The verdicts of a trace, worst first.
pub(crate) fn verdicts(
    trace: usize,
    analysis: &Analysis,
    (leaks, silent): (&[Leak], &[BenignGrowth]),
    ooms: &[Oom],
) -> Vec<Verdict> {
    let words = analysis.vocabulary();
    let mut verdicts = Vec::new();
    let mut add = |kind, severity, summary: String, evidence| {
        verdicts.push(Verdict { trace, kind, severity, summary, evidence });
    };
    for leak in leaks.iter().filter(|leak| leak.trace == trace) {
        let rate = leak
            .bytes_per_step
            .map(|rate| format!(", {} per step", format_bytes(rate.0 as u64)))
            .unwrap_or_default();
        let severity = match leak.steps_to_oom {
            Some(steps) if steps < 10_000 => Severity::Critical,
            _ => Severity::Warning,
        };
        let verb = match (leak.grows_by, leak.is_regular) {
            ("size", _) => "allocates larger and larger blocks",
            (_, true) => "leaks",
            (_, false) => "leaks, or fills a cache",
        };
        let blocks = if leak.blocks == 1 { "block" } else { "blocks" };
        let summary = format!(
            "{} {verb}: {} in {} {blocks}{rate}",
            format_site(&leak.site),
            format_bytes(leak.bytes),
            leak.blocks
        );
        add("leak", severity, summary, json!({ "site": leak.site.id, "confidence": leak.confidence }));
    }
    if let Some(first) = ooms.iter().find(|oom| oom.trace == trace) {
        let more = if analysis.oom_count > 1 {
            format!(" (the first of {})", analysis.oom_count)
        } else {
            String::new()
        };
        let summary = format!("out of memory at {}{more}: {}", format_site(&first.site), first.why);
        add("oom", Severity::Critical, summary, json!({ "count": analysis.oom_count }));
    }
    if !analysis.incomplete.is_empty() {
        let summary = format!("the trace is incomplete: {}", analysis.incomplete.join("; "));
        add("incomplete", Severity::Warning, summary, json!(analysis.losses));
    }
    for (ordinal, device) in &analysis.devices {
        if let Some(TotalMismatch { seq, sum_bytes: ours, torch_bytes: torch }) = device.first_mismatch {
            let summary = format!(
                "device {ordinal}: the sum of live blocks differs from PyTorch's own total at {} events (first at event {seq}: {ours} and {torch} bytes)",
                device.total_mismatches
            );
            let evidence = json!({ "events": device.total_mismatches, "first_seq": seq, "sum_bytes": ours, "torch_bytes": torch });
            add("total_mismatch", Severity::Warning, summary, evidence);
        }
        if device.segment_mismatches > 0 {
            let events = device.segment_mismatches;
            let summary = format!(
                "device {ordinal}: the segments that PyTorch's tracker told do not sum to what PyTorch had reserved at {events} events"
            );
            add("segment_mismatch", Severity::Info, summary, json!({ "events": events }));
        }
        let (frees, lost) = (device.torch.unmatched_frees, device.torch.lost_frees);
        if frees + lost > 0 {
            let summary = format!(
                "device {ordinal}: {frees} blocks were freed that were never seen allocated, {lost} were allocated twice without a free"
            );
            add(
                "unmatched_blocks",
                Severity::Info,
                summary,
                json!({ "unmatched_frees": frees, "lost_frees": lost }),
            );
        }
    }
    if analysis.losses.uncovered_calls > 0 {
        let what = if words.is_metal {
            "methods or objects of Metal were not watched"
        } else {
            "calls of driver functions that allocate were not recorded"
        };
        let uncovered = analysis.losses.uncovered_calls;
        let summary = format!("{uncovered} {what}: their memory is not in this report");
        add(
            "uncovered_calls",
            Severity::Warning,
            summary,
            json!({ "entry_points": analysis.losses.uncovered_calls }),
        );
    }
    if analysis.failed_calls > 0 && words.is_metal {
        add(
            "failed_calls",
            Severity::Warning,
            gave_nothing(analysis),
            json!({ "calls": analysis.failed_calls, "out_of_memory": null }),
        );
    } else if analysis.failed_calls > 0 {
        let noun = if analysis.failed_calls == 1 { "driver call" } else { "driver calls" };
        let refused = match analysis.refused_calls {
            0 => String::new(),
            refused => format!(
                "; for {refused} of them the device had no memory left: PyTorch then gives back what it caches and tries again, \
                 other libraries do not"
            ),
        };
        let summary = format!("{} {noun} returned an error{refused}", analysis.failed_calls);
        let details = json!({ "calls": analysis.failed_calls, "out_of_memory": analysis.refused_calls });
        add("failed_calls", Severity::Info, summary, details);
    }
    let leaks: Vec<&Leak> = leaks.iter().filter(|leak| leak.trace == trace).collect();
    let silent: Vec<&BenignGrowth> = silent.iter().filter(|silent| silent.trace == trace).collect();
    let findings = analysis.visible_devices().flat_map(|(ordinal, device)| {
        let mut findings = of_device(analysis, ordinal, device);
        findings.extend(creep(ordinal, analysis.steps, &leaks, &silent));
        findings
    });
    for VerdictDraft { kind, severity, summary, evidence } in findings {
        add(kind, severity, summary, evidence);
    }
    verdicts.sort_by_key(|verdict: &Verdict| std::cmp::Reverse(verdict.severity));
    verdicts
}

/// Of Metal's calls that returned nil. It gives no reason, and what was asked for is not recorded.
fn gave_nothing(analysis: &Analysis) -> String {
    let calls = match analysis.failed_calls {
        1 => "1 call of Metal that makes memory gave".to_owned(),
        calls => format!("{calls} calls of Metal that make memory gave"),
    };
    let first = analysis.first_failed.map(|stack| {
        let site = analysis.symbols.site(analysis.symbols.stack_info(stack).site, Some(stack));
        let which = if analysis.failed_calls > 1 { "the first at" } else { "at" };
        format!(", {which} {}", format_site(&site))
    });
    format!(
        "{calls} nothing{}; Metal gives no reason, memory may have been short: PyTorch then gives back what it caches and tries again, \
         others may not",
        first.unwrap_or_default()
    )
}

fn of_device(analysis: &Analysis, ordinal: u8, device: &DeviceState) -> Vec<VerdictDraft> {
    let capacity = analysis.capacity(ordinal).unwrap_or(0);
    // How full a device is, its streams tell only together.
    let is_whole = analysis.stream.is_none();
    let mut findings =
        if is_whole { room(analysis, (ordinal, capacity), device).findings() } else { Vec::new() };
    if let Some(sample) = device.attribution.nearest() {
        findings.extend(drift((ordinal, capacity), device.attribution.residuals(), sample.source.name()));
    }
    let live_set = &device.torch;
    let highs: Vec<u64> = live_set.bins().all().iter().map(|bin| bin.high.live).collect();
    if let Some(usual) = usual_part(&highs, capacity) {
        let more = |(id, site): (SiteId, &SiteStats)| {
            let then = site.bin_values().get(usual).map_or(0, |value| value[0]);
            let bytes = live_set.at_peak(site).bytes.saturating_sub(then);
            (format_site(&analysis.symbols.site(id, live_set.main_stack_at_peak(id))), bytes)
        };
        let mut sites: Vec<(String, u64)> =
            live_set.sites().map(more).filter(|(_, bytes)| *bytes > 0).collect();
        sites.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sites.truncate(MOST_NAMED);
        let step = analysis.step_source.name().map(|_| u64::from(live_set.peak().step));
        findings.push(spike((ordinal, capacity), (live_set.peak().live, step, highs[usual]), &sites));
    }
    findings
}

fn room(analysis: &Analysis, (ordinal, capacity): (u8, u64), device: &DeviceState) -> CapacityFacts {
    let residual = device.attribution.nearest().and_then(|sample| sample.residual());
    let non_torch =
        |bytes: u64, reserved| bytes.saturating_sub(reserved).saturating_add(residual.unwrap_or(0));
    let peak = device.torch.peak();
    let ReservedPeakLevels { reserved, device: device_then, .. } = device.reserved_peak;
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
    CapacityFacts {
        ordinal,
        capacity,
        live: if is_torch { peak.live } else { 0 },
        non_torch: if is_torch {
            non_torch(peak.device, peak.reserved)
        } else {
            non_torch(device.peak_device, 0)
        },
        reserved,
        non_torch_at_reserved_peak: non_torch(device_then, reserved),
        unusable: gap.map_or(0, unusable),
        cache: gap.map_or(0, |gap| gap.cache),
        has_failed_for_it: analysis.ooms.iter().any(|oom| {
            let free = oom.event.aux[1].saturating_sub(oom.live);
            oom.event.device == ordinal && oom.event.size <= free
        }),
        owners,
    }
}

/// What grows on a device, all lines together; and what may, and has not been looked at for long enough.
fn creep(ordinal: u8, steps: u32, leaks: &[&Leak], silent: &[&BenignGrowth]) -> Vec<VerdictDraft> {
    let mut findings = Vec::new();
    let grown: Vec<&&Leak> =
        leaks.iter().filter(|leak| leak.device == u32::from(ordinal) && leak.kind == "tensors").collect();
    if !grown.is_empty() {
        let rate: f64 = grown.iter().filter_map(|leak| leak.bytes_per_step).map(|rate| rate.0).sum();
        let bytes = grown.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.bytes));
        let oom_step = grown.iter().find_map(|leak| leak.oom_step.as_ref());
        let lines = if grown.len() == 1 { "one line".to_owned() } else { format!("{} lines", grown.len()) };
        let full = oom_step.map(|oom| format!("; it is full at step {}", oom.expected)).unwrap_or_default();
        let summary = format!(
            "tensors on device {ordinal} grow by {} per step, by {lines}{full}",
            format_bytes(rate as u64)
        );
        findings.push(VerdictDraft {
            kind: "creep_confirmed",
            severity: if oom_step.is_some() { Severity::Critical } else { Severity::Warning },
            summary,
            evidence: json!({
                "device": ordinal, "bytes": bytes, "bytes_per_step": rate, "findings": grown.len(), "oom_step": oom_step,
            }),
        });
    }
    let early: Vec<&&BenignGrowth> = silent
        .iter()
        .filter(|one| one.device == u32::from(ordinal) && one.kind == "tensors" && one.rule == "too_early")
        .collect();
    if let Some(largest) = early.first().filter(|_| steps >= FEWEST_STEPS) {
        let bytes = early.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes));
        let (more, hold) = match early.len() - 1 {
            0 => (String::new(), "holds"),
            1 => (" and one line more".to_owned(), "hold"),
            lines => (format!(" and {lines} lines more"), "hold"),
        };
        let summary = format!(
            "{}{more} {hold} {} more than before; the run is too short to tell whether that goes on",
            format_site(&largest.site),
            format_bytes(bytes)
        );
        findings.push(VerdictDraft {
            kind: "creep_early",
            severity: Severity::Info,
            summary,
            evidence: json!({ "device": ordinal, "bytes": bytes, "lines": early.len() }),
        });
    }
    findings
}
