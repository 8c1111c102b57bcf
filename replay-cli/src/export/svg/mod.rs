//! The format `svg`: memory over time as a picture, for issues and chats.
//!
//! One chart for each GPU, below each other: allocated memory by call site as areas, reserved and
//! driver memory as lines, the peak and out-of-memory errors as marks. The points are those of the
//! report's timeline, so each maximum is exact.

mod chart;
mod scale;

use std::io::Write;

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::Timeline;

use super::{ExportFormat, ExportJob, Exporter};
use chart::{Chart, WIDTH};

/// Background, and fonts that each system has.
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:15px;font-weight:600}\
    .note{fill:#555}.error{fill:#b00020}";

#[derive(clap::Args)]
pub(crate) struct SvgExporter;

impl ExportFormat for SvgExporter {
    const NAME: &'static str = "svg";
    const HELP: &'static str = "A picture of memory over time, for issues and chats";
    const EXAMPLE: &'static str = "svg run.trace -o memory.svg";
    const SUFFIX: &'static str = ".svg";
}

impl Exporter for SvgExporter {
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let timelines = job.report.timelines.iter().flatten();
        let charts: Vec<Chart> = timelines.filter_map(|timeline| chart_of(job, timeline)).collect();
        let (is_empty, height) = (charts.is_empty(), charts.iter().map(Chart::height).sum::<f64>());
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} \
             {height}\"><style>{STYLE}</style><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
        )?;
        let mut top = 0.0;
        for chart in &charts {
            writeln!(out, "<g transform=\"translate(0 {top})\">{}</g>", chart.draw())?;
            top += chart.height();
        }
        writeln!(out, "</svg>")?;
        if is_empty {
            job.notes.push("no memory was recorded: the picture is empty".to_owned());
        }
        Ok(())
    }
}

/// The chart of a GPU in the window of its run; `None` if nothing lies in it.
fn chart_of<'a>(job: &'a ExportJob, timeline: &'a Timeline) -> Option<Chart<'a>> {
    let report: &Report = &job.report;
    let (begin_ns, end_ns) = job.runs.get(timeline.trace)?.window.span_ns;
    let inside = |time_ns: u64| (begin_ns..=end_ns).contains(&time_ns);
    let shown: Vec<usize> =
        (0..timeline.points.len()).filter(|at| inside(timeline.points[*at].time_ns)).collect();
    (!shown.is_empty()).then(|| Chart {
        info: &report.traces[timeline.trace],
        device: report
            .devices
            .iter()
            .find(|device| device.trace == timeline.trace && device.device == timeline.device),
        timeline,
        ooms: report
            .oom
            .iter()
            .flatten()
            .filter(|oom| oom.trace == timeline.trace && oom.device == timeline.device && inside(oom.time_ns))
            .collect(),
        finding: report
            .verdicts
            .iter()
            .flatten()
            .find(|verdict| verdict.trace == timeline.trace)
            .map_or("", |verdict| verdict.summary.as_str()),
        shown,
    })
}
