//! What PyTorch said of its own memory on an Apple GPU: as it was sampled, beside what is exact.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::SampledPoint;
use gpumemtrace_replay::report::SampledRange;
use gpumemtrace_replay::report::TorchMemory;

use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most samples listed.
const MOST: usize = 12;

fn find_torch_memory(report: &Report, trace: usize) -> Option<&TorchMemory> {
    report.torch_memory.iter().find(|memory| memory.trace == trace)
}

/// For the summary: the extremes, and what they come to beside Metal's own.
pub(in crate::render::text) fn render_torch_memory_summary(out: &mut String, report: &Report, trace: usize) {
    let Some(memory) = find_torch_memory(report, trace) else { return };
    let known = |range: &Option<SampledRange<u64>>| match range {
        Some(range) => format!("at most {}, {} at last", format_bytes(range.most), format_bytes(range.last)),
        None => "unknown".to_owned(),
    };
    if memory.samples == 0 {
        put_line(
            out,
            format_args!(
                "  What tensors held inside these buffers is unknown: PyTorch was never asked (gpumemtrace.step() asks torch.mps)."
            ),
        );
        return;
    }
    put_line(
        out,
        format_args!("  By {}, which was asked {}:", memory.source, format_count(memory.samples, "time")),
    );
    put_line(
        out,
        format_args!(
            "    tensors: {HANG}{}{}",
            known(&memory.tensor_bytes),
            format_missing(memory, memory.tensor_bytes.as_ref())
        ),
    );
    put_line(
        out,
        format_args!(
            "    the driver's memory: {HANG}{}{}",
            known(&memory.driver_bytes),
            format_missing(memory, memory.driver_bytes.as_ref())
        ),
    );
    put_line(out, format_args!("    {HANG}{}", describe_unused_buffers(memory)));
    put_line(out, format_args!("    {HANG}{}", describe_beyond_metal(memory)));
}

/// How often it gave no such number.
fn format_missing<T>(memory: &TorchMemory, range: Option<&SampledRange<T>>) -> String {
    let known = range.map_or(0, |range| range.samples);
    match memory.samples - known {
        0 => String::new(),
        silent => format!(" (no answer {})", format_count(silent, "time")),
    }
}

fn describe_unused_buffers(memory: &TorchMemory) -> String {
    match &memory.unused_buffer_bytes {
        Some(range) => format!(
            "in buffers that no tensor used at those moments: {}",
            format_range(range, "more by PyTorch's count than buffers held")
        ),
        None => "in buffers that no tensor used: unknown".to_owned(),
    }
}

/// What the two counts say of each other; no more can be known.
fn describe_beyond_metal(memory: &TorchMemory) -> String {
    let Some(range) = &memory.unrecorded_bytes else {
        return "held by what no recorded call of Metal shows: unknown".to_owned();
    };
    if (range.least, range.most) == (0, 0) {
        return "the driver's count and the recorded calls of Metal agreed each time, to the byte".to_owned();
    }
    format!(
        "held by what no recorded call of Metal shows: {}",
        format_range(range, "less by the driver's count than calls handed out, unexplained")
    )
}

/// `3.00 MiB`, `from 1.00 MiB to 3.00 MiB`; what is below 0 says so in words of its own.
fn format_range(range: &SampledRange<i64>, below: &str) -> String {
    let one = |bytes: i64| match bytes {
        0.. => format_bytes(bytes.unsigned_abs()),
        _ => format!("{} {below}", format_bytes(bytes.unsigned_abs())),
    };
    if range.least == range.most {
        return one(range.last);
    }
    format!("from {} to {}, {} at last", one(range.least), one(range.most), one(range.last))
}

/// With the timeline: the samples, beside what was exact then.
pub(super) fn render_torch_memory(out: &mut String, report: &Report, trace: usize, style: Style) {
    let Some(memory) = find_torch_memory(report, trace) else { return };
    out.push('\n');
    let title = format!(
        "What PyTorch said of its memory ({}, sampled {})",
        memory.source,
        format_count(memory.samples, "time")
    );
    put_line(out, format_args!("{}", style.bold(&title)));
    if memory.samples == 0 {
        put_line(
            out,
            format_args!("  Unknown: it was never asked. gpumemtrace.step(), mark() and phase() ask it."),
        );
        return;
    }
    put_line(out, format_args!("  {:>14} {:>11} {:>11}   {:>11}", "", "sampled:", "", "exact:"));
    put_line(
        out,
        format_args!(
            "  {:>14} {:>11} {:>11}   {:>11} {:>11} {:>11}",
            "", "tensors", "driver", "Metal", "heaps", "buffers"
        ),
    );
    for point in pick_evenly(&memory.points, style.row_limit(MOST)) {
        let value = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        put_line(
            out,
            format_args!(
                "  {:>14} {:>11} {:>11}   {:>11} {:>11} {:>11}",
                format_sample_time(point),
                value(point.tensor_bytes),
                value(point.driver_bytes),
                value(point.metal_bytes),
                value(point.heap_bytes),
                value(point.buffer_bytes)
            ),
        );
    }
    put_line(out, format_args!("  Nothing is known of PyTorch's two numbers between the samples."));
    put_line(out, format_args!("  {HANG}{}.", capitalize(&describe_unused_buffers(memory))));
    put_line(out, format_args!("  {HANG}{}.", capitalize(&describe_beyond_metal(memory))));
}

fn format_sample_time(point: &SampledPoint) -> String {
    match point.step {
        // What comes before the first of them is step 0.
        Some(step) => format!("end of step {}", format_number(step)),
        None => format_duration(point.time_ns),
    }
}

/// So many of them at most: the first, the last, and evenly between.
fn pick_evenly(points: &[SampledPoint], most: usize) -> Vec<&SampledPoint> {
    if points.len() <= most || most < 2 {
        return points.iter().take(most.max(1)).collect();
    }
    (0..most).filter_map(|at| points.get(at * (points.len() - 1) / (most - 1))).collect()
}

fn capitalize(sentence: &str) -> String {
    let mut rest = sentence.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}
