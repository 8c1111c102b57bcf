//! The chart of one GPU.

use std::fmt::Write;

use gpumemtrace_replay::report::{Device, Oom, Timeline, TimelinePoint, TraceInfo};

use super::scale::{Scale, byte_ticks, time_ticks};
use crate::render::wording::sites::short_site;
use crate::terminal::escape::{escape_html, escape_text};
use crate::terminal::format::format_duration;
use crate::terminal::paths::{shorten_command, shorten_paths_in};
use crate::terminal::units::format_bytes;

/// Width of the picture in pixels.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const PLOT_HEIGHT: f64 = 260.0;
const AXIS_HEIGHT: f64 = 30.0;
const ROW_HEIGHT: f64 = 18.0;
/// Colours that most people can tell apart (Okabe and Ito), and one for the rest.
const COLORS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];
const REST_COLOR: &str = "#bbbbbb";
/// Dashed, because PyTorch's line usually covers the driver's.
const DRIVER_COLOR: &str = "#777777";
const RESERVED_COLOR: &str = "#222222";

/// What a chart shows.
pub(super) struct Chart<'a> {
    pub(super) info: &'a TraceInfo,
    pub(super) device: Option<&'a Device>,
    pub(super) timeline: &'a Timeline,
    pub(super) ooms: Vec<&'a Oom>,
    /// The first verdict; empty if there is none, which does not mean that all is well.
    pub(super) finding: &'a str,
    /// The points that lie in the window.
    pub(super) shown: Vec<usize>,
}

/// An area of the chart: its colour, its name, and its bytes at each point.
struct Area {
    color: &'static str,
    name: String,
    bytes: Vec<u64>,
}

/// A line of the chart: its colour, its name, and its bytes at each point where they are known.
type Line = (&'static str, &'static str, Vec<Option<u64>>);

impl Chart<'_> {
    pub(super) fn height(&self) -> f64 {
        let rows = self.areas().len() + self.lines().len();
        TOP + PLOT_HEIGHT + AXIS_HEIGHT + rows as f64 * ROW_HEIGHT + 16.0
    }

    pub(super) fn draw(&self) -> String {
        let (areas, lines) = (self.areas(), self.lines());
        let span = self.span_ns();
        let known = lines.iter().flat_map(|line| line.2.iter().copied().flatten());
        let all = areas_summed(&areas).into_iter().chain(known);
        let highest = all.max().unwrap_or(0).max(1);
        let x = Scale::new(span, WIDTH - LEFT - RIGHT);
        let y = Scale::new((0, highest), PLOT_HEIGHT);
        let mut svg = String::new();
        self.draw_head(&mut svg);
        draw_axes(&mut svg, (span, x), (highest, y));
        let times: Vec<u64> = self.points().map(|point| point.time_ns).collect();
        let place = |at: usize, bytes: u64| (LEFT + x.at(times[at]), TOP + PLOT_HEIGHT - y.at(bytes));
        let mut below = vec![0u64; times.len()];
        for area in &areas {
            let above: Vec<u64> =
                below.iter().zip(&area.bytes).map(|(below, own)| below.saturating_add(*own)).collect();
            let upper = above.iter().enumerate().map(|(at, bytes)| place(at, *bytes));
            let lower = below.iter().enumerate().rev().map(|(at, bytes)| place(at, *bytes));
            let points = join_points(upper.chain(lower));
            let _ = write!(svg, "<polygon points=\"{points}\" fill=\"{}\"/>", area.color);
            below = above;
        }
        for (color, _, bytes) in &lines {
            let known = bytes.iter().enumerate().filter_map(|(at, bytes)| Some(place(at, (*bytes)?)));
            let points = join_points(known);
            let dashes = if *color == DRIVER_COLOR { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = write!(
                svg,
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"{dashes}/>"
            );
        }
        self.draw_marks(&mut svg, (x, y), &below);
        draw_legend(&mut svg, &areas, &lines, &below);
        svg
    }

    fn points(&self) -> impl Iterator<Item = &TimelinePoint> {
        self.shown.iter().map(|at| &self.timeline.points[*at])
    }

    /// The times of all points and errors.
    fn span_ns(&self) -> (u64, u64) {
        let errors = self.ooms.iter().map(|oom| oom.time_ns);
        let times = self.points().map(|point| point.time_ns).chain(errors);
        times.fold((u64::MAX, 0), |(first, last), time_ns| (first.min(time_ns), last.max(time_ns)))
    }

    /// The call sites with most bytes, and all others; without PyTorch, the driver's memory.
    fn areas(&self) -> Vec<Area> {
        let bands = self.timeline.bands.iter().zip(COLORS);
        let mut areas: Vec<Area> = bands
            .map(|(band, color)| Area {
                color,
                name: short_site(&band.site),
                bytes: self.shown.iter().map(|at| band.bytes[*at]).collect(),
            })
            .collect();
        let summed = areas_summed(&areas).into_iter().chain(std::iter::repeat(0));
        let whole = self.points().map(|point| point.live_bytes.or(point.device_bytes).unwrap_or(0));
        let rest: Vec<u64> = whole.zip(summed).map(|(whole, summed)| whole.saturating_sub(summed)).collect();
        if rest.iter().any(|bytes| *bytes > 0) {
            let name = if areas.is_empty() { "memory" } else { "other call sites" };
            areas.push(Area { color: REST_COLOR, name: name.to_owned(), bytes: rest });
        }
        areas
    }

    /// Reserved and driver memory, where they are known.
    fn lines(&self) -> Vec<Line> {
        let reserved = self.points().map(|point| point.reserved_bytes).collect();
        let driver = self.points().map(|point| point.device_bytes).collect();
        let series: [Line; 2] = [
            (DRIVER_COLOR, "allocated from the driver", driver),
            (RESERVED_COLOR, "reserved by PyTorch", reserved),
        ];
        series.into_iter().filter(|(_, _, values)| values.iter().any(Option::is_some)).collect()
    }

    fn draw_head(&self, svg: &mut String) {
        let gpu = self.device.map_or_else(String::new, |device| {
            let name = device.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
            format!(", GPU {}{name}", device.device)
        });
        let program = self.info.command.as_deref().map_or_else(|| self.info.path.clone(), shorten_command);
        draw_text(svg, (LEFT, 22.0), "title", &format!("{program}{gpu}"));
        draw_text(svg, (LEFT, 42.0), "note", &shorten_paths_in(self.finding));
    }

    /// The peak of the areas, and the errors.
    fn draw_marks(&self, svg: &mut String, (x, y): (Scale, Scale), live: &[u64]) {
        for oom in &self.ooms {
            let at = LEFT + x.at(oom.time_ns);
            let _ = write!(
                svg,
                "<line x1=\"{at}\" x2=\"{at}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#b00020\" stroke-dasharray=\"4 3\"/>",
                TOP + PLOT_HEIGHT
            );
            let text = format!("out of memory: {} requested", format_bytes(oom.requested_bytes));
            draw_anchored(svg, (at, TOP + 12.0), "error", &text);
        }
        let peak = live.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes);
        let Some((at, bytes)) = peak else { return };
        let time_ns = self.points().nth(at).map_or(0, |point| point.time_ns);
        let (left, top) = (LEFT + x.at(time_ns), TOP + PLOT_HEIGHT - y.at(*bytes));
        let _ = write!(svg, "<circle cx=\"{left}\" cy=\"{top}\" r=\"3.5\" fill=\"#222\"/>");
        let text = format!("peak {}", format_bytes(*bytes));
        draw_anchored(svg, (left, (top - 6.0).max(TOP - 2.0)), "", &text);
    }
}

fn draw_legend(svg: &mut String, areas: &[Area], lines: &[Line], live: &[u64]) {
    let peak = live.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes).map_or(0, |(at, _)| at);
    let of_areas = areas.iter().map(|area| (area.color, area.name.as_str(), Some(area.bytes[peak]), 10.0));
    let of_lines = lines.iter().map(|(color, name, bytes)| (*color, *name, bytes[peak], 2.0));
    let mut top = TOP + PLOT_HEIGHT + AXIS_HEIGHT + 8.0;
    for (color, name, bytes, thickness) in of_areas.chain(of_lines) {
        let y = top - 4.0 - thickness / 2.0;
        let _ = write!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{y}\" width=\"14\" height=\"{thickness}\" fill=\"{color}\"/>"
        );
        let bytes = bytes.map_or_else(|| "unknown".to_owned(), format_bytes);
        let text = format!("{name}: {bytes} at the peak");
        draw_text(svg, (LEFT + 22.0, top), "", &text);
        top += ROW_HEIGHT;
    }
}

fn areas_summed(areas: &[Area]) -> Vec<u64> {
    let points = areas.first().map_or(0, |area| area.bytes.len());
    (0..points).map(|at| areas.iter().map(|area| area.bytes[at]).fold(0, u64::saturating_add)).collect()
}

fn draw_axes(svg: &mut String, (span, x): ((u64, u64), Scale), (highest, y): (u64, Scale)) {
    let bottom = TOP + PLOT_HEIGHT;
    for bytes in byte_ticks(highest) {
        let top = bottom - y.at(bytes);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{top}\" y2=\"{top}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            top + 4.0,
            format_bytes(bytes)
        );
    }
    for time_ns in time_ticks(span) {
        let left = LEFT + x.at(time_ns);
        let _ = write!(
            svg,
            "<text x=\"{left}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            format_duration(time_ns)
        );
    }
}

/// Text to the left of a place in the right half, else to its right.
fn draw_anchored(svg: &mut String, (left, top): (f64, f64), class: &str, text: &str) {
    let (anchor, left) = if left > WIDTH / 2.0 { ("end", left - 6.0) } else { ("start", left + 6.0) };
    let text = escape_html(&escape_text(text));
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{top}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn draw_text(svg: &mut String, (left, top): (f64, f64), class: &str, text: &str) {
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{top}\" class=\"{class}\">{}</text>",
        escape_html(&escape_text(text))
    );
}

fn join_points(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut joined = String::new();
    for (left, top) in points {
        let _ = write!(joined, "{left:.1},{top:.1} ");
    }
    joined.trim_end().to_owned()
}
