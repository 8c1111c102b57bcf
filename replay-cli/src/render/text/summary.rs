//! No section asked for: the answer to "what should I know?", and where to look next.

use std::fmt::Write as _;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Device, Severity};
use gpumemtrace_replay::sections::size;
use gpumemtrace_replay::units;
use gpumemtrace_replay::words::Words;

use super::overview as gist;
use super::sections::{fragmentation, leaks, peak, torch_memory};
use super::{HANG, column, count, duration, put, thousands};
use crate::render::text::sites::{Sites, short};
use crate::terminal::paths::short_sentence;
use crate::terminal::style::Style;

/// Most leaks and sites in a summary.
const MOST: usize = 5;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut Sites) {
    gist::write(out, report, trace, style);
    devices(out, report, trace, style);
    torch_memory::summary(out, report, trace);
    if let Some(steps) = report.steps.as_ref().filter(|_| trace == 0) {
        match (steps.source, &steps.site) {
            (Some(_), Some(site)) => {
                put(
                    out,
                    format_args!(
                        "  {} (each begins at {})",
                        count(steps.count.unwrap_or(0), "step"),
                        short(site)
                    ),
                );
            }
            (Some(source), None) => {
                let source = match source {
                    "marks" => "marks of the program; step 0 is what came before",
                    "nvtx" => "NVTX ranges; step 0 is what came before",
                    "period" => "the period of the allocations",
                    "optimizer" => "the optimizer",
                    other => other,
                };
                put(out, format_args!("  {} (told by {source})", count(steps.count.unwrap_or(0), "step")));
            }
            (None, _) => put(out, format_args!("  No steps were recognised.")),
        }
    }
    phases(out, report, trace, style);
    write_leaks(out, report, trace, style, sites);
    write_oom(out, report, trace, style, sites);
    for top in report.peak.iter().flatten().filter(|top| top.trace == trace) {
        out.push('\n');
        let step = top.step.map(|step| format!(", step {}", thousands(step))).unwrap_or_default();
        let title = format!(
            "At the peak of device {} ({}, {} in{step})",
            top.device,
            size(top.live_bytes),
            duration(top.time_ns)
        );
        put(out, format_args!("{}", style.bold(&title)));
        peak::table(out, &top.sites, (top.live_bytes, top.left_out), style.most(MOST));
        if let Some(largest) =
            top.sites.first().filter(|largest| sites.full_stacks && !largest.site.stack.is_empty())
        {
            put(out, format_args!("  {}", short(&largest.site)));
            sites.write_stack(out, &largest.site, "    ", style);
        }
    }
    gap(out, report, trace, style);
    let others: Vec<_> = report
        .verdicts
        .iter()
        .flatten()
        .filter(|verdict| {
            verdict.trace == trace
                && !matches!(verdict.kind, "leak" | "creep_confirmed" | "oom" | "incomplete")
        })
        .collect();
    if !others.is_empty() {
        out.push('\n');
        put(out, format_args!("{}", style.bold("Also")));
        for verdict in others {
            let mark = if verdict.severity == Severity::Info { "-" } else { "!" };
            put(out, format_args!("  {mark} {}", short_sentence(&verdict.summary)));
        }
    }
    out.push('\n');
    put(
        out,
        format_args!(
            "{}",
            style.dim("More: --leaks --timeline --fragmentation --peak --oom, --stacks for whole stacks, --json for machines")
        ),
    );
}

fn devices(out: &mut String, report: &Report, trace: usize, style: Style) {
    out.push('\n');
    let devices: Vec<_> = report.devices.iter().filter(|device| device.trace == trace).collect();
    if devices.is_empty() {
        put(out, format_args!("{}", style.bold("No GPU memory was allocated.")));
    }
    let words = report.traces[trace].words();
    let from = format!("from {}", words.source);
    for device in devices {
        let name = device.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let total = device
            .total_bytes
            .map(|bytes| format!(", {} {}", size(bytes), words.size_of_device))
            .unwrap_or_default();
        put(out, format_args!("{}", style.bold(&format!("Device {}{name}{total}", device.device))));
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size);
        let wide = units::chosen().columns() + 3;
        put(out, format_args!("  {:<22}{:>wide$}{:>wide$}", "", "peak", "end"));
        let rows = [
            ("tensors", device.peak.live_bytes, device.end.live_bytes),
            (words.reserved_row, device.peak.reserved_bytes, device.end.reserved_bytes),
            (&from, device.peak.device_bytes, device.end.device_bytes),
        ];
        for (name, peak, end) in rows {
            put(out, format_args!("  {name:<22}{:>wide$}{:>wide$}", known(peak), known(end)));
        }
        ledger(out, device, &words, style);
    }
}

/// Who held the memory at its peak: where that is more than PyTorch's blocks and cache, or where something is in no call.
fn ledger(out: &mut String, device: &Device, words: &Words, style: Style) {
    let most = style.most(MOST);
    let is_torch = |owner: &str| owner.starts_with("torch ");
    let residual = device.residual.as_ref().filter(|residual| residual.bytes > 0);
    if residual.is_none() && device.ledger.iter().all(|entry| is_torch(&entry.owner)) {
        return;
    }
    put(out, format_args!("  At the peak from {} it was held by", words.source));
    for entry in device.ledger.iter().take(most) {
        put(out, format_args!("  {}  {HANG}{}", column(entry.bytes), entry.owner));
    }
    if device.ledger.len() > most {
        let rest = &device.ledger[most..];
        let bytes = rest.iter().map(|entry| entry.bytes).sum();
        put(out, format_args!("  {}  {HANG}{} owners more (--json names them)", column(bytes), rest.len()));
    }
    if let Some(residual) = residual {
        let by = if residual.witness == "nvml" { "NVML" } else { "the driver, for all processes" };
        put(
            out,
            format_args!(
                "  {}  {HANG}came on top, in no call: contexts, code, rounding, what pools keep (as {by} counts)",
                column(residual.bytes)
            ),
        );
    }
}

/// What the program gave names to: `eval: 3 times, 1.2 s; device 0: at most 40.00 MiB held, 0 B left behind`.
fn phases(out: &mut String, report: &Report, trace: usize, style: Style) {
    let its: Vec<_> = report.phases.iter().filter(|phase| phase.trace == trace).collect();
    let most = style.most(its.len());
    for phase in its.iter().take(most) {
        let name = phase.name.as_deref().unwrap_or("(a name that is not in the file)");
        let mut line = format!("  {name}: {}, {}", count(phase.turns, "time"), duration(phase.time_ns));
        for on in &phase.devices {
            let (Some(peak), Some(left)) = (on.peak_live_bytes, on.left_bytes) else {
                let _ = write!(line, "; device {}: what tensors held is unknown", on.device);
                continue;
            };
            let amount = size(left.unsigned_abs());
            let left =
                if left < 0 { format!("{amount} given back") } else { format!("{amount} left behind") };
            let _ = write!(line, "; device {}: at most {} held, {left}", on.device, size(peak));
        }
        put(out, format_args!("{line}"));
    }
    if its.len() > most {
        put(out, format_args!("  {} more", count((its.len() - most) as u64, "phase")));
    }
}

fn write_leaks(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut Sites) {
    let found: Vec<_> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    out.push('\n');
    if found.is_empty() {
        let elsewhere = leaks::others(report, trace).map_or(0, |out| out.count);
        put(out, format_args!("{}", style.bold("No leaks found")));
        if elsewhere > 0 {
            put(out, format_args!("  At these lines; {} elsewhere.", count(elsewhere, "leak")));
        }
        if let Some(doubt) = leaks::doubt(report, trace) {
            put(out, format_args!("  {doubt}"));
        }
        return;
    }
    put(out, format_args!("{}", style.bold(&count(found.len() as u64, "leak"))));
    let most = style.most(MOST);
    for leak in found.iter().take(most) {
        put(out, format_args!("  {}: {}", short(&leak.site), leaks::headline(leak)));
        if let Some(source) = sites.source_line(&leak.site) {
            put(out, format_args!("      {source}"));
        }
        if sites.full_stacks {
            sites.write_stack(out, &leak.site, "      ", style);
        }
    }
    if found.len() > most {
        put(out, format_args!("  {} more with --leaks", found.len() - most));
    }
}

fn write_oom(out: &mut String, report: &Report, trace: usize, style: Style, sites: &Sites) {
    if let Some(oom) = report.oom.iter().flatten().find(|oom| oom.trace == trace) {
        out.push('\n');
        put(out, format_args!("{}", style.warn("Out of memory")));
        put(out, format_args!("  at {}: {}", short(&oom.site), oom.why));
        if sites.full_stacks {
            sites.write_stack(out, &oom.site, "      ", style);
        }
    }
}

fn gap(out: &mut String, report: &Report, trace: usize, style: Style) {
    let moments = report.fragmentation.iter().flatten();
    for moment in moments.filter(|moment| moment.trace == trace && moment.at.why == "peak_reserved") {
        out.push('\n');
        let title = format!(
            "Reserved and unused on device {}: {} of {} when most was reserved",
            moment.device,
            size(moment.gap_bytes),
            size(moment.reserved_bytes)
        );
        put(out, format_args!("{}", style.bold(&title)));
        for cause in &moment.causes {
            put(
                out,
                format_args!(
                    "  {}  {HANG}{}",
                    column(cause.bytes),
                    fragmentation::in_words(cause, &report.traces[trace].words())
                ),
            );
        }
    }
}
