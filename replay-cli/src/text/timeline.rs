//! `--timeline`: memory over time, as a chart that fits the terminal.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{Timeline, TimelinePoint};
use gpumemtrace_replay::sections::size;

use super::sites::{Sites, short};
use super::{chart, duration, put, thousands};
use crate::output::Style;

const HEIGHT: usize = 12;
const AXIS_COLUMNS: usize = 12;
/// Rows of one site's band.
const BAND_SITES: usize = 6;

pub(super) fn write(out: &mut String, report: &Report, trace: usize, style: Style, _sites: &mut Sites) {
    let timelines: Vec<&Timeline> =
        report.timelines.iter().flatten().filter(|timeline| timeline.trace == trace).collect();
    if timelines.is_empty() {
        put(out, format_args!("{}", style.bold("Timeline")));
        put(out, format_args!("  No GPU memory was allocated."));
    }
    for timeline in timelines {
        one(out, timeline, style);
    }
}

fn one(out: &mut String, timeline: &Timeline, style: Style) {
    let width = style.width.saturating_sub(AXIS_COLUMNS + 2).max(20);
    let has_torch = timeline.points.iter().any(|point| point.live_bytes.is_some());
    let main = |point: &TimelinePoint| if has_torch { point.live_bytes } else { point.device_bytes };
    let what = if has_torch { "held by tensors" } else { "allocated from the driver" };
    let series: Vec<(u64, u64)> =
        timeline.points.iter().filter_map(|point| Some((point.time_ns, main(point)?))).collect();
    let most = series.iter().map(|(_, value)| *value).max().unwrap_or(0);
    put(
        out,
        format_args!(
            "{}",
            style.bold(&format!("Device {}: bytes {what}, highest of each column", timeline.device))
        ),
    );
    let values = chart::columns(&series, width);
    for (row, line) in chart::rows(&values, most, HEIGHT).iter().enumerate() {
        let label = match row {
            0 => size(most),
            row if row == HEIGHT / 2 => size(most / 2),
            row if row + 1 == HEIGHT => "0 B".to_owned(),
            _ => String::new(),
        };
        put(out, format_args!("{label:>AXIS_COLUMNS$} |{line}"));
    }
    let (first, last) = (timeline.points.first(), timeline.points.last());
    let end = |point: Option<&TimelinePoint>| {
        let step =
            point.and_then(|p| p.step).map(|step| format!(" (step {})", thousands(step))).unwrap_or_default();
        format!("{}{step}", duration(point.map_or(0, |point| point.time_ns)))
    };
    let (left, right) = (end(first), end(last));
    let gap = width.saturating_sub(left.len() + right.len());
    put(out, format_args!("{:>AXIS_COLUMNS$}  {left}{:gap$}{right}", "", ""));
    let highest = |of: fn(&TimelinePoint) -> Option<u64>| timeline.points.iter().filter_map(of).max();
    let peaks: Vec<String> = [
        ("tensors", highest(|point| point.live_bytes)),
        ("reserved", highest(|point| point.reserved_bytes)),
        ("driver", highest(|point| point.device_bytes)),
    ]
    .iter()
    .filter_map(|(name, value)| value.map(|value| format!("{name} {}", size(value))))
    .collect();
    put(out, format_args!("{:>AXIS_COLUMNS$}  highest: {}", "", peaks.join(", ")));
    bands(out, timeline, most, width);
}

/// One row per site, on the scale of the whole: who fills the chart when.
fn bands(out: &mut String, timeline: &Timeline, most: u64, width: usize) {
    if timeline.bands.is_empty() {
        return;
    }
    put(out, format_args!("{:>AXIS_COLUMNS$}  largest lines, each on the same scale:", ""));
    for band in timeline.bands.iter().take(BAND_SITES) {
        let points: Vec<(u64, u64)> =
            timeline.points.iter().zip(&band.bytes).map(|(point, bytes)| (point.time_ns, *bytes)).collect();
        let highest = band.bytes.iter().max().copied().unwrap_or(0);
        put(out, format_args!("{:>AXIS_COLUMNS$}  {}", size(highest), short(&band.site)));
        for line in chart::rows(&chart::columns(&points, width), most, 1) {
            put(out, format_args!("{:>AXIS_COLUMNS$} |{line}", ""));
        }
    }
}
