//! PyTorch's own numbers on an Apple GPU, as sampled, beside exact numbers from Metal's calls.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{SampledPoint, SampledRange, TorchMemory};

use crate::terminal::format::{format_count, format_duration, format_number, put_line};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Most samples listed without `--top`.
const MAX_SAMPLES: usize = 12;

fn find_torch_memory(report: &Report, trace: usize) -> Option<&TorchMemory> {
    report.torch_memory.iter().find(|memory| memory.trace == trace)
}

/// For the summary: the highest and last samples, and their difference to Metal's numbers.
pub(in crate::render::text) fn render_torch_memory_summary(out: &mut String, report: &Report, trace: usize) {
    let Some(memory) = find_torch_memory(report, trace) else { return };
    if memory.samples == 0 {
        put_line(
            out,
            format_args!(
                "  Allocated bytes inside these buffers are unknown: PyTorch was never sampled \
                 (gpumemtrace.step() samples it)."
            ),
        );
        return;
    }
    let known = |range: &Option<SampledRange<u64>>| match range {
        Some(range) => format!("at most {}, {} at last", format_bytes(range.most), format_bytes(range.last)),
        None => "unknown".to_owned(),
    };
    put_line(
        out,
        format_args!("  From {}, sampled {}:", memory.source, format_count(memory.samples, "time")),
    );
    for (name, range) in [("allocated", &memory.tensor_bytes), ("driver", &memory.driver_bytes)] {
        let missing = format_missing(memory, range.as_ref());
        put_line(out, format_args!("    {name}: {HANG}{}{missing}", known(range)));
    }
    put_line(out, format_args!("    {HANG}{}", describe_unused_buffers(memory)));
    put_line(out, format_args!("    {HANG}{}", describe_beyond_metal(memory)));
}

/// ` (no answer 3 times)`; empty if every sample has the number.
fn format_missing<T>(memory: &TorchMemory, range: Option<&SampledRange<T>>) -> String {
    let known = range.map_or(0, |range| range.samples);
    match memory.samples - known {
        0 => String::new(),
        missing => format!(" (no answer {})", format_count(missing, "time")),
    }
}

fn describe_unused_buffers(memory: &TorchMemory) -> String {
    match &memory.unused_buffer_bytes {
        Some(range) => format!(
            "in buffers without a tensor at these samples: {}",
            format_range(range, "more allocated than the buffers hold")
        ),
        None => "in buffers without a tensor: unknown".to_owned(),
    }
}

/// What the driver's number says that no recorded call shows.
fn describe_beyond_metal(memory: &TorchMemory) -> String {
    let Some(range) = &memory.unrecorded_bytes else {
        return "not in any recorded call of Metal: unknown".to_owned();
    };
    if (range.least, range.most) == (0, 0) {
        return "the driver's number and the recorded calls of Metal agree in every sample".to_owned();
    }
    format!(
        "not in any recorded call of Metal: {}",
        format_range(range, "less by the driver's number than recorded, unexplained")
    )
}

/// `3.00 MiB`, `from 1.00 MiB to 3.00 MiB`; negative numbers are described by `below`.
fn format_range(range: &SampledRange<i64>, below: &str) -> String {
    let format_one = |bytes: i64| match bytes {
        0.. => format_bytes(bytes.unsigned_abs()),
        _ => format!("{} {below}", format_bytes(bytes.unsigned_abs())),
    };
    if range.least == range.most {
        return format_one(range.last);
    }
    let (least, most) = (format_one(range.least), format_one(range.most));
    format!("from {least} to {most}, {} at last", format_one(range.last))
}

/// With the timeline: the samples, beside exact numbers of the same moments.
pub(super) fn render_torch_memory(out: &mut String, report: &Report, trace: usize, style: Style) {
    let Some(memory) = find_torch_memory(report, trace) else { return };
    out.push('\n');
    let samples = format_count(memory.samples, "time");
    let title = format!("PyTorch's own numbers ({}, sampled {samples})", memory.source);
    put_line(out, format_args!("{}", style.bold(&title)));
    if memory.samples == 0 {
        put_line(
            out,
            format_args!(
                "  Unknown: PyTorch was never sampled. gpumemtrace.step(), mark() and phase() sample it."
            ),
        );
        return;
    }
    put_line(out, format_args!("  {:>14} {:>11} {:>11}   {:>11}", "", "sampled:", "", "exact:"));
    put_line(
        out,
        format_args!(
            "  {:>14} {:>11} {:>11}   {:>11} {:>11} {:>11}",
            "", "allocated", "driver", "Metal", "heaps", "buffers"
        ),
    );
    for point in pick_evenly(&memory.points, style.row_limit(MAX_SAMPLES)) {
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
    put_line(out, format_args!("  PyTorch's two numbers are unknown between samples."));
    put_line(out, format_args!("  {HANG}{}.", capitalize(&describe_unused_buffers(memory))));
    put_line(out, format_args!("  {HANG}{}.", capitalize(&describe_beyond_metal(memory))));
}

fn format_sample_time(point: &SampledPoint) -> String {
    match point.step {
        // Everything before the first sample is step 0.
        Some(step) => format!("end of step {}", format_number(step)),
        None => format_duration(point.time_ns),
    }
}

/// The first, the last, and samples evenly between them, at most `most` in total.
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
