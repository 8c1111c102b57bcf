//! `--timeline`: memory over time, as a chart that fits the terminal.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Mark;
use gpumemtrace_replay::report::Timeline;
use gpumemtrace_replay::report::TimelinePoint;

use crate::render::wording::Vocabulary;

use super::torch_memory;
use crate::render::text::sites::{SiteFormatter, short_site};
use crate::terminal::chart;
use crate::terminal::format::{format_count, format_duration, format_number, put_line, size_column};
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;

const HEIGHT: usize = 12;
/// Rows of one site's band.
const BAND_SITES: usize = 6;
/// Marks that are told.
const MOST_MARKS: usize = 12;
/// What they are called in the chart.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Columns from one label of the axis to the next, at least.
const LABEL_COLUMNS: usize = 18;

/// The chart of each device, and below it what PyTorch said of its memory.
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
    for (number, timeline) in timelines.into_iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        let ooms = report.oom.iter().flatten();
        let ooms = ooms.filter(|oom| (oom.trace, oom.device) == (trace, timeline.device));
        let ooms: Vec<u64> = ooms.map(|oom| oom.time_ns).collect();
        let marks: Vec<&Mark> = report.marks.iter().filter(|mark| mark.trace == trace).collect();
        render_timeline(out, timeline, (&ooms, &marks), &Vocabulary::of_trace(&report.traces[trace]), style);
    }
}

fn render_timeline(
    out: &mut String,
    timeline: &Timeline,
    (ooms, marks): (&[u64], &[&Mark]),
    words: &Vocabulary,
    style: Style,
) {
    let margin = crate::terminal::units::chosen_units().columns() + 1;
    let width = style.width.saturating_sub(margin + 2).max(20);
    let points = &timeline.points;
    let has_torch = points.iter().any(|point| point.live_bytes.is_some());
    let main = |point: &TimelinePoint| if has_torch { point.live_bytes } else { point.device_bytes };
    let above = |point: &TimelinePoint| if has_torch { point.reserved_bytes } else { None };
    let what =
        if has_torch { "held by tensors".to_owned() } else { format!("allocated from {}", words.source) };
    let series = |of: &dyn Fn(&TimelinePoint) -> Option<u64>| -> Vec<(u64, u64)> {
        points.iter().filter_map(|point| Some((point.time_ns, of(point)?))).collect()
    };
    let (filled, outline) = (series(&main), series(&above));
    let Some(peak) = points.iter().max_by_key(|point| (main(point), std::cmp::Reverse(point.time_ns))) else {
        return;
    };
    let most = filled.iter().chain(&outline).map(|(_, value)| *value).max().unwrap_or(0);
    let step = |point: &TimelinePoint| {
        point.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default()
    };
    let when = format!("{} in{}", format_duration(peak.time_ns), step(peak));
    let title = format!(
        "Device {}: at most {} {what} ({when})",
        timeline.device,
        format_bytes(main(peak).unwrap_or(0))
    );
    put_line(out, format_args!("{}", style.bold(&title)));
    let values = chart::bin_into_columns(&filled, width);
    let tops = if outline.is_empty() { Vec::new() } else { chart::bin_into_columns(&outline, width) };
    for (row, line) in chart::draw_rows(&values, &tops, (most, HEIGHT), style).iter().enumerate() {
        let label = match row {
            0 => format_bytes(most),
            row if row == HEIGHT / 2 => format_bytes(most / 2),
            row if row + 1 == HEIGHT => format_bytes(0),
            _ => String::new(),
        };
        put_line(out, format_args!("{label:>margin$} |{line}"));
    }
    let (fill, line) = chart::glyphs(style);
    let mut legend = vec![format!("{fill} {}", if has_torch { "tensors" } else { words.source_short })];
    if !outline.is_empty() {
        let highest = outline.iter().map(|(_, value)| *value).max().unwrap_or(0);
        legend.push(format!("{line} reserved by {}, at most {}", words.reserver, format_bytes(highest)));
    }
    legend.push("^ the peak".to_owned());
    if !ooms.is_empty() {
        legend.push("! out of memory".to_owned());
    }
    render_axis(out, timeline, (peak.time_ns, ooms), (margin, width));
    render_marks(out, timeline, marks, (margin, width), style);
    put_line(
        out,
        format_args!("{:margin$}  {HANG}each column shows its highest moment: {}", "", legend.join(", ")),
    );
    if let Some(driver) = points.iter().filter_map(|point| point.device_bytes).max().filter(|_| has_torch) {
        put_line(
            out,
            format_args!("{:margin$}  {HANG}from {}: at most {}", "", words.source, format_bytes(driver)),
        );
    }
    render_bands(out, timeline, most, (margin, width), style);
}

/// What stands out, and the axis below it with times and steps.
fn render_axis(
    out: &mut String,
    timeline: &Timeline,
    (peak_ns, ooms): (u64, &[u64]),
    (margin, width): (usize, usize),
) {
    let points = &timeline.points;
    let span = (points.first().map_or(0, |p| p.time_ns), points.last().map_or(0, |p| p.time_ns));
    let mut marks = vec!['-'; width];
    for oom in ooms {
        marks[chart::column_at(*oom, span, width)] = '!';
    }
    // Running out of memory says more, and is mostly where the peak is.
    let at = &mut marks[chart::column_at(peak_ns, span, width)];
    if *at == '-' {
        *at = '^';
    }
    put_line(out, format_args!("{:margin$} +{}", "", marks.iter().collect::<String>()));
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

/// The program's own moments: a letter for each where it lies, and what the letters stand for.
fn render_marks(
    out: &mut String,
    timeline: &Timeline,
    marks: &[&Mark],
    (margin, width): (usize, usize),
    style: Style,
) {
    let points = &timeline.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    if marks.is_empty() {
        return;
    }
    let shown = style.row_limit(MOST_MARKS).min(LETTERS.len());
    let mut row = vec![' '; width];
    let mut rows = Vec::new();
    for (mark, letter) in marks.iter().take(shown).zip(LETTERS.chars()) {
        let column = chart::column_at(mark.time_ns, (first.time_ns, last.time_ns), width);
        // Of several in one column the first; all of them are told below.
        let place = &mut row[column];
        if *place == ' ' {
            *place = letter;
        }
        let step = mark.step.map(|step| format!(", step {}", format_number(step))).unwrap_or_default();
        let name = mark.name.as_deref().unwrap_or("(a mark whose name is lost)");
        rows.push(format!("{letter} {HANG}{name} ({} in{step})", format_duration(mark.time_ns)));
    }
    put_line(out, format_args!("{:margin$}  {}", "", row.iter().collect::<String>().trim_end()));
    put_line(out, format_args!("{:margin$}  {HANG}marks of the program:", ""));
    for row in rows {
        put_line(out, format_args!("{:margin$}    {row}", ""));
    }
    if marks.len() > shown {
        put_line(
            out,
            format_args!("{:margin$}    {}", "", format_count((marks.len() - shown) as u64, "more mark")),
        );
    }
}

/// One row per site, on the scale of the whole: who fills the chart when.
fn render_bands(
    out: &mut String,
    timeline: &Timeline,
    most: u64,
    (margin, width): (usize, usize),
    style: Style,
) {
    let shown = style.row_limit(BAND_SITES);
    if !timeline.bands.is_empty() {
        put_line(
            out,
            format_args!("{:margin$}  {HANG}the lines that held most, each on the same scale:", ""),
        );
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
        put_line(
            out,
            format_args!("{:margin$}  {HANG}{} more among the largest", "", format_count(more, "other line")),
        );
    }
}
