//! `--timeline`: memory over time as a chart, one per GPU.

mod marks;
mod range;
mod scale;
pub(in crate::render::text) mod torch_memory;

use crate::render::wording::Vocabulary;
use crate::terminal::units::{chosen_units, format_bytes};
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{DeviceEnd, Mark, MemoryLayer, Timeline, TimelinePoint};

use super::peak::describe_layer;
use crate::render::text::sites::SiteFormatter;
use crate::render::wording::moment::format_moment;
use crate::render::wording::sites::short_site;
use crate::terminal::chart;
use crate::terminal::format::{format_count, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use range::ChartRange;
use scale::ChartScale;

/// Rows of the chart.
const HEIGHT: usize = 12;
/// Call sites with a chart of their own, one row high.
const BAND_SITES: usize = 6;

/// Times and values of a line in the chart.
type ChartSeries = [(u64, u64)];

/// The place of a chart on the screen.
#[derive(Clone, Copy)]
struct ChartFrame<'a> {
    /// Columns left of the axis.
    margin: usize,
    /// Columns of the chart.
    width: usize,
    /// The time that the columns cover.
    range: &'a ChartRange,
}

/// What a chart shows besides the memory of its GPU.
struct ChartSigns<'a> {
    /// Times of out-of-memory errors.
    ooms: Vec<u64>,
    marks: &'a [&'a Mark],
    /// The end of the program.
    end: Option<&'a DeviceEnd>,
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
        put_line(out, format_args!("  No GPU memory is in the trace."));
    }
    let marks: Vec<&Mark> = report.marks.iter().filter(|mark| mark.trace == trace).collect();
    for (number, timeline) in timelines.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let ooms = report.oom.iter().flatten();
        let ooms = ooms.filter(|oom| (oom.trace, oom.device) == (trace, timeline.device));
        let mut of_trace = report.devices.iter().filter(|device| device.trace == trace);
        let end = of_trace.find(|device| device.device == timeline.device).map(|device| &device.end);
        let signs = ChartSigns { ooms: ooms.map(|oom| oom.time_ns).collect(), marks: &marks, end };
        render_timeline(out, timeline, &signs, &Vocabulary::of_trace(&report.traces[trace]), style);
    }
}

fn render_timeline(
    out: &mut String,
    timeline: &Timeline,
    signs: &ChartSigns<'_>,
    words: &Vocabulary,
    style: Style,
) {
    let margin = chosen_units().columns() + 1;
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
    let width = style.width.saturating_sub(margin + 2).max(20);
    let shown: Vec<u64> = signs.ooms.iter().copied().chain([peak.time_ns]).collect();
    let range = ChartRange::choose(timeline, signs.end, &shown, width);
    let frame = ChartFrame { margin, width, range: &range };
    let title = format!(
        "GPU {}: at most {} {} ({})",
        timeline.device,
        format_bytes(main(peak).unwrap_or(0)),
        describe_layer(if has_torch { MemoryLayer::Torch } else { MemoryLayer::Device }, words),
        format_moment(words, peak.time_ns, peak.step)
    );
    put_line(out, format_args!("{}", style.bold(&title)));
    if !words.has_times {
        put_line(out, format_args!("  There is no chart: the events of this snapshot have no times."));
        return;
    }
    let scale = draw_chart(out, (&filled, &outline), frame, style);
    render_axis(out, (peak.time_ns, &signs.ooms), frame);
    marks::render_marks(out, (signs.marks, words), frame, style);
    let name = if has_torch { "allocated" } else { words.source_short };
    render_legend(out, (name, &outline, !signs.ooms.is_empty()), words, margin, style);
    if scale.floor > 0 {
        let floor = format_bytes(scale.floor);
        put_line(out, format_args!("{:margin$}  {HANG}the axis begins at {floor}, not at 0", ""));
    }
    if let Some(note) = &range.note {
        put_line(out, format_args!("{:margin$}  {HANG}{note}", ""));
    }
    if let Some(driver) = points.iter().filter_map(|point| point.device_bytes).max().filter(|_| has_torch) {
        let highest = format_bytes(driver);
        put_line(out, format_args!("{:margin$}  {HANG}{}: at most {highest}", "", words.source_short));
    }
    render_bands(out, timeline, frame, style);
}

/// Draws the rows of the chart. Returns their scale.
fn draw_chart(
    out: &mut String,
    (filled, outline): (&ChartSeries, &ChartSeries),
    ChartFrame { margin, range, .. }: ChartFrame<'_>,
    style: Style,
) -> ChartScale {
    let values = range.columns_of(filled);
    let tops = if outline.is_empty() { Vec::new() } else { range.columns_of(outline) };
    let scale = ChartScale::choose(&values, &tops);
    let rows = chart::draw_rows(&values, &tops, (scale.floor, scale.top, HEIGHT), style);
    for (row, line) in rows.iter().enumerate() {
        let label = match row {
            0 => format_bytes(scale.top),
            row if row == HEIGHT / 2 => format_bytes(scale.middle()),
            row if row + 1 == HEIGHT => format_bytes(scale.floor),
            _ => String::new(),
        };
        put_line(out, format_args!("{label:>margin$} |{line}"));
    }
    scale
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

/// The line below the chart with the peak and out-of-memory errors, then the labels.
fn render_axis(
    out: &mut String,
    (peak_ns, ooms): (u64, &[u64]),
    ChartFrame { margin, width, range }: ChartFrame<'_>,
) {
    let mut signs = vec!['-'; width];
    for oom in ooms {
        signs[range.column_of(*oom)] = '!';
    }
    // An out-of-memory error is mostly in the column of the peak, and is more important.
    let at = &mut signs[range.column_of(peak_ns)];
    if *at == '-' {
        *at = '^';
    }
    put_line(out, format_args!("{:margin$} +{}", "", signs.iter().collect::<String>()));
    for line in range.label_lines() {
        put_line(out, format_args!("{:margin$}  {line}", ""));
    }
}

/// One row per call site, each on its own scale: on that of the chart, most would be flat.
fn render_bands(
    out: &mut String,
    timeline: &Timeline,
    ChartFrame { margin, range, .. }: ChartFrame<'_>,
    style: Style,
) {
    let shown = style.row_limit(BAND_SITES);
    if !timeline.bands.is_empty() {
        put_line(out, format_args!("{:margin$}  {HANG}largest call sites, each from 0 to its maximum:", ""));
    }
    for band in timeline.bands.iter().take(shown) {
        let points: Vec<(u64, u64)> =
            timeline.points.iter().zip(&band.bytes).map(|(point, bytes)| (point.time_ns, *bytes)).collect();
        let values = range.columns_of(&points);
        let highest = values.iter().max().copied().unwrap_or(0);
        put_line(out, format_args!(" {}  {HANG}{}", size_column(highest), short_site(&band.site)));
        for line in chart::draw_rows(&values, &[], (0, highest, 1), style) {
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
