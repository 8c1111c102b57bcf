//! `--timeline`: memory over time as a chart, one per GPU.

mod marks;
pub(in crate::render::text) mod torch_memory;

use crate::render::wording::Vocabulary;
use crate::terminal::units::{chosen_units, format_bytes};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Mark, MemoryLayer, Timeline, TimelinePoint};

use super::peak::describe_layer;
use crate::render::text::moment::format_moment;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::sites::short_site;
use crate::terminal::chart;
use crate::terminal::format::{format_count, format_duration, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

/// Rows of the chart.
const HEIGHT: usize = 12;
/// Call sites with a chart of their own, one row high.
const BAND_SITES: usize = 6;
/// Least columns from one label of the time axis to the next.
const LABEL_COLUMNS: usize = 18;

/// Times and values of a line in the chart.
type ChartSeries = [(u64, u64)];

/// The place of a chart on the screen.
#[derive(Clone, Copy)]
struct ChartFrame {
    /// Columns left of the axis.
    margin: usize,
    /// Columns of the chart.
    width: usize,
}

/// The chart of each GPU, then the samples of PyTorch's own numbers on Metal.
pub(super) fn render_timeline_section(
    out: &mut String,
    report: &Report,
    trace: usize,
    style: Style,
    _sites: &mut SiteFormatter,
) {
    render_timelines(out, report, trace, style);
    torch_memory::render_torch_memory(out, report, trace, style);
}

fn render_timelines(out: &mut String, report: &Report, trace: usize, style: Style) {
    let timelines: Vec<&Timeline> =
        report.timelines.iter().flatten().filter(|timeline| timeline.trace == trace).collect();
    if timelines.is_empty() {
        put_line(out, format_args!("{}", style.bold("Timeline")));
        put_line(out, format_args!("  No GPU memory was allocated."));
    }
    let marks: Vec<&Mark> = report.marks.iter().filter(|mark| mark.trace == trace).collect();
    for (number, timeline) in timelines.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let ooms = report.oom.iter().flatten();
        let ooms = ooms.filter(|oom| (oom.trace, oom.device) == (trace, timeline.device));
        let ooms: Vec<u64> = ooms.map(|oom| oom.time_ns).collect();
        render_timeline(out, timeline, (&ooms, &marks), &Vocabulary::of_trace(&report.traces[trace]), style);
    }
}

fn render_timeline(
    out: &mut String,
    timeline: &Timeline,
    (ooms, program_marks): (&[u64], &[&Mark]),
    words: &Vocabulary,
    style: Style,
) {
    let margin = chosen_units().columns() + 1;
    let frame = ChartFrame { margin, width: style.width.saturating_sub(margin + 2).max(20) };
    let points = &timeline.points;
    let has_torch = points.iter().any(|point| point.live_bytes.is_some());
    let main = |point: &TimelinePoint| if has_torch { point.live_bytes } else { point.device_bytes };
    let above = |point: &TimelinePoint| if has_torch { point.reserved_bytes } else { None };
    let series = |of: &dyn Fn(&TimelinePoint) -> Option<u64>| -> Vec<(u64, u64)> {
        points.iter().filter_map(|point| Some((point.time_ns, of(point)?))).collect()
    };
    let (filled, outline) = (series(&main), series(&above));
    let Some(peak) = points.iter().max_by_key(|point| (main(point), std::cmp::Reverse(point.time_ns))) else {
        return;
    };
    let most = filled.iter().chain(&outline).map(|(_, value)| *value).max().unwrap_or(0);
    let title = format!(
        "GPU {}: at most {} {} ({})",
        timeline.device,
        format_bytes(main(peak).unwrap_or(0)),
        describe_layer(if has_torch { MemoryLayer::Torch } else { MemoryLayer::Device }, words),
        format_moment(peak.time_ns, peak.step)
    );
    put_line(out, format_args!("{}", style.bold(&title)));
    draw_chart(out, (&filled, &outline), most, frame, style);
    render_axis(out, timeline, (peak.time_ns, ooms), frame);
    marks::render_marks(out, timeline, program_marks, frame, style);
    let name = if has_torch { "allocated" } else { words.source_short };
    render_legend(out, (name, &outline, !ooms.is_empty()), words, margin, style);
    if let Some(driver) = points.iter().filter_map(|point| point.device_bytes).max().filter(|_| has_torch) {
        let highest = format_bytes(driver);
        put_line(out, format_args!("{:margin$}  {HANG}{}: at most {highest}", "", words.source_short));
    }
    render_bands(out, timeline, most, frame, style);
}

fn draw_chart(
    out: &mut String,
    (filled, outline): (&ChartSeries, &ChartSeries),
    most: u64,
    ChartFrame { margin, width }: ChartFrame,
    style: Style,
) {
    let values = chart::bin_into_columns(filled, width);
    let tops = if outline.is_empty() { Vec::new() } else { chart::bin_into_columns(outline, width) };
    for (row, line) in chart::draw_rows(&values, &tops, (most, HEIGHT), style).iter().enumerate() {
        let label = match row {
            0 => format_bytes(most),
            row if row == HEIGHT / 2 => format_bytes(most / 2),
            row if row + 1 == HEIGHT => format_bytes(0),
            _ => String::new(),
        };
        put_line(out, format_args!("{label:>margin$} |{line}"));
    }
}

fn render_legend(
    out: &mut String,
    (name, outline, has_ooms): (&str, &ChartSeries, bool),
    words: &Vocabulary,
    margin: usize,
    style: Style,
) {
    let (fill, line) = chart::glyphs(style);
    let mut legend = vec![format!("{fill} {name}")];
    if let Some(highest) = outline.iter().map(|(_, value)| *value).max() {
        legend.push(format!("{line} {}, at most {}", words.reserved_row, format_bytes(highest)));
    }
    legend.push("^ peak".to_owned());
    if has_ooms {
        legend.push("! out of memory".to_owned());
    }
    put_line(out, format_args!("{:margin$}  {HANG}{}; columns show their maximum", "", legend.join(", ")));
}

/// The line below the chart with the peak and out-of-memory errors, then times and steps.
fn render_axis(
    out: &mut String,
    timeline: &Timeline,
    (peak_ns, ooms): (u64, &[u64]),
    ChartFrame { margin, width }: ChartFrame,
) {
    let points = &timeline.points;
    let span = (points.first().map_or(0, |p| p.time_ns), points.last().map_or(0, |p| p.time_ns));
    let mut signs = vec!['-'; width];
    for oom in ooms {
        signs[chart::column_at(*oom, span, width)] = '!';
    }
    // An out-of-memory error is mostly in the column of the peak, and is more important.
    let at = &mut signs[chart::column_at(peak_ns, span, width)];
    if *at == '-' {
        *at = '^';
    }
    put_line(out, format_args!("{:margin$} +{}", "", signs.iter().collect::<String>()));
    let intervals = (width / LABEL_COLUMNS).clamp(1, 8);
    let ticks: Vec<(usize, u64)> = (0..=intervals)
        .map(|interval| {
            let time = u128::from(span.1.saturating_sub(span.0)) * interval as u128 / intervals as u128;
            (interval * width / intervals, span.0.saturating_add(time as u64))
        })
        .collect();
    let times: Vec<(usize, String)> = ticks.iter().map(|(at, time)| (*at, format_duration(*time))).collect();
    put_line(out, format_args!("{:margin$}  {}", "", chart::place_labels(&times, width)));
    let step_at = |time: u64| {
        let after = points.partition_point(|point| point.time_ns <= time);
        points.get(after.saturating_sub(1)).and_then(|point| point.step)
    };
    let steps: Vec<(usize, String)> = ticks
        .iter()
        .filter_map(|(at, time)| Some((*at, format!("step {}", format_number(step_at(*time)?)))))
        .collect();
    if !steps.is_empty() {
        put_line(out, format_args!("{:margin$}  {}", "", chart::place_labels(&steps, width)));
    }
}

/// One row per call site, on the scale of the whole chart.
fn render_bands(
    out: &mut String,
    timeline: &Timeline,
    most: u64,
    ChartFrame { margin, width }: ChartFrame,
    style: Style,
) {
    let shown = style.row_limit(BAND_SITES);
    if !timeline.bands.is_empty() {
        put_line(out, format_args!("{:margin$}  {HANG}largest call sites, on the same scale:", ""));
    }
    for band in timeline.bands.iter().take(shown) {
        let points: Vec<(u64, u64)> =
            timeline.points.iter().zip(&band.bytes).map(|(point, bytes)| (point.time_ns, *bytes)).collect();
        let highest = band.bytes.iter().max().copied().unwrap_or(0);
        put_line(out, format_args!(" {}  {HANG}{}", size_column(highest), short_site(&band.site)));
        for line in chart::draw_rows(&chart::bin_into_columns(&points, width), &[], (most, 1), style) {
            put_line(out, format_args!("{:margin$} |{line}", ""));
        }
    }
    let omitted = timeline.omitted.map_or(0, |out| out.count);
    let more = omitted + timeline.bands.len().saturating_sub(shown) as u64;
    if omitted > 0 {
        let others = format_count(more, "other call site");
        put_line(out, format_args!("{:margin$}  {HANG}{others} among the largest", ""));
    }
}
