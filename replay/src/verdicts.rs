//! What to know before anything else: one sentence each, with the numbers behind it.

use serde_json::json;

use crate::analysis::Analysis;
use crate::report::{Leak, Oom, Severity, Verdict};
use crate::sections::{place, size};

/// The verdicts of a trace, worst first.
pub fn verdicts(trace: usize, analysis: &Analysis, leaks: &[Leak], ooms: &[Oom]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let mut add = |kind, severity, summary: String, evidence| {
        verdicts.push(Verdict { trace, kind, severity, summary, evidence });
    };
    for leak in leaks.iter().filter(|leak| leak.trace == trace) {
        let rate =
            leak.bytes_per_step.map(|rate| format!(", {} per step", size(rate.0 as u64))).unwrap_or_default();
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
        let summary =
            format!("{} {verb}: {} in {} {blocks}{rate}", place(&leak.site), size(leak.bytes), leak.blocks);
        add("leak", severity, summary, json!({ "site": leak.site.id, "confidence": leak.confidence }));
    }
    if let Some(first) = ooms.iter().find(|oom| oom.trace == trace) {
        let more = if analysis.oom_count > 1 {
            format!(" (the first of {})", analysis.oom_count)
        } else {
            String::new()
        };
        let summary = format!("out of memory at {}{more}: {}", place(&first.site), first.why);
        add("oom", Severity::Critical, summary, json!({ "count": analysis.oom_count }));
    }
    if !analysis.incomplete.is_empty() {
        let summary = format!("the trace is incomplete: {}", analysis.incomplete.join("; "));
        add("incomplete", Severity::Warning, summary, json!(analysis.losses));
    }
    for (ordinal, device) in &analysis.devices {
        if let Some([seq, ours, torch]) = device.first_mismatch {
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
        let summary = format!(
            "{} calls of driver functions that allocate were not recorded: their memory is not in this report",
            analysis.losses.uncovered_calls
        );
        add(
            "uncovered_calls",
            Severity::Warning,
            summary,
            json!({ "entry_points": analysis.losses.uncovered_calls }),
        );
    }
    if analysis.failed_calls > 0 {
        let noun = if analysis.failed_calls == 1 { "driver call" } else { "driver calls" };
        let summary = format!("{} {noun} returned an error", analysis.failed_calls);
        add("failed_calls", Severity::Info, summary, json!({ "calls": analysis.failed_calls }));
    }
    verdicts.sort_by_key(|verdict: &Verdict| std::cmp::Reverse(verdict.severity));
    verdicts
}
