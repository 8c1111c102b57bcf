//! The summary, printed without a section flag: findings first, then the numbers of each GPU.

mod findings;
mod gpu_table;
mod leaks;
mod oom;
mod verdicts;

use std::fmt::Write as _;

use crate::terminal::escape::escape_text;
use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Phase, Residual, ResidualSource, TraceInfo, TraceNote};

use super::sections::peak;
use super::sections::timeline::torch_memory;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::Vocabulary;
use crate::render::wording::moment::format_moment;
use crate::render::wording::sites::short_site;
use crate::terminal::format::{format_count, format_duration, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most leaks, call sites and owners in a summary.
const MAX_ROWS: usize = 5;

pub(super) fn render_summary(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    sites: &mut SiteFormatter,
) {
    findings::render_findings(out, report, trace, style, sites);
    gpu_table::render_gpu_tables(out, report, trace, style);
    torch_memory::render_torch_memory_summary(out, report, trace);
    render_phases(out, report, trace, style);
    render_peaks(out, report, trace, style, sites);
    render_attribution(out, report, trace, style);
    verdicts::render_infos(out, report, trace, style);
}

/// Phases of the program: how often they ran, their peaks, and their net growth.
fn render_phases(out: &mut String, report: &Report, trace: usize, style: Style) {
    let phases: Vec<_> = report.phases.iter().filter(|phase| phase.trace == trace).collect();
    if phases.is_empty() {
        return;
    }
    let most = style.row_limit(phases.len());
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Phases")));
    for phase in phases.iter().take(most) {
        put_line(out, format_args!("  {HANG}{}", describe_phase(phase)));
    }
    if phases.len() > most {
        put_line(out, format_args!("  {} more", format_count((phases.len() - most) as u64, "phase")));
    }
}

/// `eval: 3 times, 1.2 s; GPU 0: peak 40.00 MiB, net growth 0 B`.
fn describe_phase(phase: &Phase) -> String {
    let name = escape_text(phase.name.as_deref().unwrap_or("(name lost)"));
    let mut line =
        format!("{name}: {}, {}", format_count(phase.count, "time"), format_duration(phase.time_ns));
    for usage in &phase.devices {
        let _ = match (usage.peak_live_bytes, usage.net_bytes) {
            (Some(peak), Some(growth)) => {
                let sign = if growth < 0 { "-" } else { "" };
                let growth = format_bytes(growth.unsigned_abs());
                let peak = format_bytes(peak);
                write!(line, "; GPU {}: peak {peak}, net growth {sign}{growth}", usage.device)
            }
            _ => write!(line, "; GPU {}: allocated bytes unknown", usage.device),
        };
    }
    line
}

/// The largest call sites at the peak of each GPU.
fn render_peaks(out: &mut String, report: &Report, trace: usize, style: Style, sites: &mut SiteFormatter) {
    let words = Vocabulary::of_trace(&report.traces[trace]);
    let peaks: Vec<_> = report.peak.iter().flatten().filter(|peak| peak.trace == trace).collect();
    for top in &peaks {
        out.push('\n');
        let gpu = if peaks.len() > 1 { format!(" of GPU {}", top.device) } else { String::new() };
        let title = format!("Largest at peak{gpu} ({})", format_moment(&words, top.time_ns, top.step));
        put_line(out, format_args!("{}", style.bold(&title)));
        let most = style.row_limit(MAX_ROWS);
        peak::render_site_table(out, &top.sites, (top.live_bytes, top.omitted), most);
        if let Some(largest) =
            top.sites.first().filter(|largest| sites.full_stacks && !largest.site.stack.is_empty())
        {
            put_line(out, format_args!("  {}", short_site(&largest.site)));
            sites.write_stack(out, &largest.site, "    ", style);
        }
    }
}

/// The owners of driver memory at its peak, if libraries other than PyTorch have some, or if some
/// is in no recorded call.
fn render_attribution(out: &mut String, report: &Report, trace: usize, style: Style) {
    let most = style.row_limit(MAX_ROWS);
    let source = Vocabulary::of_trace(&report.traces[trace]).source;
    for device in report.devices.iter().filter(|device| device.trace == trace) {
        let is_torch = |owner: &str| owner.starts_with("torch ");
        let residual = device.residual.as_ref().filter(|residual| residual.bytes > 0);
        let unmeasured = device.residual.is_none() && device.contradictory_samples > 0;
        if residual.is_none() && !unmeasured && device.ledger.iter().all(|entry| is_torch(&entry.owner)) {
            continue;
        }
        out.push('\n');
        let title = format!("Memory from {source} on GPU {} at its peak, by owner", device.device);
        put_line(out, format_args!("{}", style.bold(&title)));
        for entry in device.ledger.iter().take(most) {
            put_line(out, format_args!("  {}  {HANG}{}", size_column(entry.bytes), entry.owner));
        }
        if device.ledger.len() > most {
            let rest = &device.ledger[most..];
            let bytes = rest.iter().map(|entry| entry.bytes).sum();
            let others = format_number(rest.len() as u64);
            put_line(out, format_args!("  {}  {HANG}{others} other owners (see --json)", size_column(bytes)));
        }
        if unmeasured {
            put_line(
                out,
                format_args!(
                    "  Memory outside recorded calls is unknown: all measurements ({}) were below what recorded \
                     calls had allocated.",
                    format_number(device.contradictory_samples)
                ),
            );
        }
        if let Some(residual) = residual {
            let has_managed_memory = has_managed_memory(&report.traces[trace]);
            render_residual(out, residual, device.contradictory_samples, has_managed_memory);
        }
    }
}

/// The memory in no recorded call. `contradictory` is the number of samples that are left out.
fn render_residual(out: &mut String, residual: &Residual, contradictory: u64, has_managed_memory: bool) {
    let by = match residual.source {
        ResidualSource::Nvml => "by NVML",
        ResidualSource::Recorder | ResidualSource::Program => "by the driver for all processes",
    };
    let free = residual.pool_free_bytes;
    let mut parts = "contexts, kernels' code".to_owned();
    if free == 0 {
        parts.push_str(", driver pools");
    }
    if has_managed_memory {
        parts.push_str(", managed memory that is on the GPU");
    }
    let pools = if free > 0 {
        format!("; driver pools then kept about {} free for later use", format_bytes(free))
    } else {
        String::new()
    };
    let left_out = match contradictory {
        0 => String::new(),
        count => format!(
            "; {} of {} measurements are left out, because they were below what recorded calls had allocated",
            format_number(count),
            format_number(residual.samples + count)
        ),
    };
    put_line(
        out,
        format_args!(
            "  {}  {HANG}more, not in any recorded call ({parts}), measured {by}{pools}{left_out}",
            size_column(residual.bytes)
        ),
    );
}

fn has_managed_memory(trace: &TraceInfo) -> bool {
    trace.notes.iter().any(|note| matches!(note.fact, TraceNote::ManagedMemory { .. }))
}
