//! No section asked for: the answer to "what should I know?", and where to look next.

mod findings;

use std::fmt::Write as _;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Device;
use gpumemtrace_replay::report::Severity;
use gpumemtrace_replay::report::display::format_bytes;

use gpumemtrace_replay::report::display::Vocabulary;

use crate::render::text::sections::{SECTIONS, fragmentation, leaks, peak, torch_memory};
use crate::render::text::sites::{SiteFormatter, short_site};
use crate::terminal::format::{format_count, format_duration, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::paths::shorten_paths_in;
use crate::terminal::style::Style;

/// Most leaks and sites in a summary.
const MOST: usize = 5;

pub(in crate::render::text) fn render_summary(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    findings::render_overview(out, report, trace, style);
    render_devices(out, report, trace, style);
    torch_memory::render_torch_memory_summary(out, report, trace);
    if let Some(steps) = report.steps.as_ref().filter(|_| trace == 0) {
        match (steps.source, &steps.site) {
            (Some(_), Some(site)) => {
                put_line(
                    out,
                    format_args!(
                        "  {} (each begins at {})",
                        format_count(steps.count.unwrap_or(0), "step"),
                        short_site(site)
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
                put_line(
                    out,
                    format_args!("  {} (told by {source})", format_count(steps.count.unwrap_or(0), "step")),
                );
            }
            (None, _) => put_line(out, format_args!("  No steps were recognised.")),
        }
    }
    render_phases(out, report, trace, style);
    render_leak_summary(out, report, trace, style, sites);
    render_oom_summary(out, report, trace, style, sites);
    for top in report.peak.iter().flatten().filter(|top| top.trace == trace) {
        out.push('\n');
        let step = top.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default();
        let title = format!(
            "At the peak of device {} ({}, {} in{step})",
            top.device,
            format_bytes(top.live_bytes),
            format_duration(top.time_ns)
        );
        put_line(out, format_args!("{}", style.bold(&title)));
        peak::render_site_table(out, &top.sites, (top.live_bytes, top.left_out), style.row_limit(MOST));
        if let Some(largest) =
            top.sites.first().filter(|largest| sites.full_stacks && !largest.site.stack.is_empty())
        {
            put_line(out, format_args!("  {}", short_site(&largest.site)));
            sites.write_stack(out, &largest.site, "    ", style);
        }
    }
    render_gap_summary(out, report, trace, style);
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
        put_line(out, format_args!("{}", style.bold("Also")));
        for verdict in others {
            let mark = if verdict.severity == Severity::Info { "-" } else { "!" };
            put_line(out, format_args!("  {mark} {}", shorten_paths_in(&verdict.summary)));
        }
    }
    out.push('\n');
    let flags: Vec<String> = SECTIONS.iter().map(|row| format!("--{}", row.flag)).collect();
    put_line(
        out,
        format_args!(
            "{}",
            style.dim(&format!("More: {}, --stacks for whole stacks, --json for machines", flags.join(" ")))
        ),
    );
}

fn render_devices(out: &mut String, report: &Report, trace: usize, style: Style) {
    out.push('\n');
    let devices: Vec<_> = report.devices.iter().filter(|device| device.trace == trace).collect();
    if devices.is_empty() {
        put_line(out, format_args!("{}", style.bold("No GPU memory was allocated.")));
    }
    let words = report.traces[trace].vocabulary();
    let from = format!("from {}", words.source);
    for device in devices {
        let name = device.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let total = device
            .total_bytes
            .map(|bytes| format!(", {} {}", format_bytes(bytes), words.size_of_device))
            .unwrap_or_default();
        put_line(out, format_args!("{}", style.bold(&format!("Device {}{name}{total}", device.device))));
        let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        let wide = gpumemtrace_replay::report::display::chosen_units().columns() + 3;
        put_line(out, format_args!("  {:<22}{:>wide$}{:>wide$}", "", "peak", "end"));
        let rows = [
            ("tensors", device.peak.live_bytes, device.end.live_bytes),
            (words.reserved_row, device.peak.reserved_bytes, device.end.reserved_bytes),
            (&from, device.peak.device_bytes, device.end.device_bytes),
        ];
        for (name, peak, end) in rows {
            put_line(out, format_args!("  {name:<22}{:>wide$}{:>wide$}", known(peak), known(end)));
        }
        render_attribution(out, device, &words, style);
    }
}

/// Who held the memory at its peak: where that is more than PyTorch's blocks and cache, or where something is in no call.
fn render_attribution(out: &mut String, device: &Device, words: &Vocabulary, style: Style) {
    let most = style.row_limit(MOST);
    let is_torch = |owner: &str| owner.starts_with("torch ");
    let residual = device.residual.as_ref().filter(|residual| residual.bytes > 0);
    if residual.is_none() && device.ledger.iter().all(|entry| is_torch(&entry.owner)) {
        return;
    }
    put_line(out, format_args!("  At the peak from {} it was held by", words.source));
    for entry in device.ledger.iter().take(most) {
        put_line(out, format_args!("  {}  {HANG}{}", size_column(entry.bytes), entry.owner));
    }
    if device.ledger.len() > most {
        let rest = &device.ledger[most..];
        let bytes = rest.iter().map(|entry| entry.bytes).sum();
        put_line(
            out,
            format_args!("  {}  {HANG}{} owners more (--json names them)", size_column(bytes), rest.len()),
        );
    }
    if let Some(residual) = residual {
        let by = if residual.witness == "nvml" { "NVML" } else { "the driver, for all processes" };
        put_line(
            out,
            format_args!(
                "  {}  {HANG}came on top, in no call: contexts, code, rounding, what pools keep (as {by} counts)",
                size_column(residual.bytes)
            ),
        );
    }
}

/// What the program gave names to: `eval: 3 times, 1.2 s; device 0: at most 40.00 MiB held, 0 B left behind`.
fn render_phases(out: &mut String, report: &Report, trace: usize, style: Style) {
    let its: Vec<_> = report.phases.iter().filter(|phase| phase.trace == trace).collect();
    let most = style.row_limit(its.len());
    for phase in its.iter().take(most) {
        let name = phase.name.as_deref().unwrap_or("(a name that is not in the file)");
        let mut line =
            format!("  {name}: {}, {}", format_count(phase.turns, "time"), format_duration(phase.time_ns));
        for on in &phase.devices {
            let (Some(peak), Some(left)) = (on.peak_live_bytes, on.left_bytes) else {
                let _ = write!(line, "; device {}: what tensors held is unknown", on.device);
                continue;
            };
            let amount = format_bytes(left.unsigned_abs());
            let left =
                if left < 0 { format!("{amount} given back") } else { format!("{amount} left behind") };
            let _ = write!(line, "; device {}: at most {} held, {left}", on.device, format_bytes(peak));
        }
        put_line(out, format_args!("{line}"));
    }
    if its.len() > most {
        put_line(out, format_args!("  {} more", format_count((its.len() - most) as u64, "phase")));
    }
}

fn render_leak_summary(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    let found: Vec<_> = report.leaks.iter().flatten().filter(|leak| leak.trace == trace).collect();
    out.push('\n');
    if found.is_empty() {
        let elsewhere = leaks::filtered_leaks(report, trace).map_or(0, |out| out.count);
        put_line(out, format_args!("{}", style.bold("No leaks found")));
        if elsewhere > 0 {
            put_line(out, format_args!("  At these lines; {} elsewhere.", format_count(elsewhere, "leak")));
        }
        if let Some(doubt) = leaks::few_steps_note(report, trace) {
            put_line(out, format_args!("  {doubt}"));
        }
        return;
    }
    put_line(out, format_args!("{}", style.bold(&format_count(found.len() as u64, "leak"))));
    let most = style.row_limit(MOST);
    for leak in found.iter().take(most) {
        put_line(out, format_args!("  {}: {}", short_site(&leak.site), leaks::leak_headline(leak)));
        if let Some(source) = sites.source_line(&leak.site) {
            put_line(out, format_args!("      {source}"));
        }
        if sites.full_stacks {
            sites.write_stack(out, &leak.site, "      ", style);
        }
    }
    if found.len() > most {
        put_line(out, format_args!("  {} more with --leaks", found.len() - most));
    }
}

fn render_oom_summary(out: &mut String, report: &Report, trace: usize, style: Style, sites: &SiteFormatter) {
    if let Some(oom) = report.oom.iter().flatten().find(|oom| oom.trace == trace) {
        out.push('\n');
        put_line(out, format_args!("{}", style.warn("Out of memory")));
        put_line(out, format_args!("  at {}: {}", short_site(&oom.site), oom.why));
        if sites.full_stacks {
            sites.write_stack(out, &oom.site, "      ", style);
        }
    }
}

fn render_gap_summary(out: &mut String, report: &Report, trace: usize, style: Style) {
    let moments = report.fragmentation.iter().flatten();
    for moment in moments.filter(|moment| moment.trace == trace && moment.at.why == "peak_reserved") {
        out.push('\n');
        let title = format!(
            "Reserved and unused on device {}: {} of {} when most was reserved",
            moment.device,
            format_bytes(moment.gap_bytes),
            format_bytes(moment.reserved_bytes)
        );
        put_line(out, format_args!("{}", style.bold(&title)));
        for cause in &moment.causes {
            put_line(
                out,
                format_args!(
                    "  {}  {HANG}{}",
                    size_column(cause.bytes),
                    fragmentation::describe_cause(cause, &report.traces[trace].vocabulary())
                ),
            );
        }
    }
}
