//! The format `csv-timeline`: the extremes of each device's series in at most 4,096 intervals.

use std::io::Write;

use super::rows::CsvRows;
use super::{RUN_COLUMNS, device_number, write_run};
use crate::export::series::{KnownSeries, LevelInterval, read_intervals};
use crate::export::{ExportFormat, ExportJob, Exporter};

const COLUMNS: [&str; 10] = [
    "device",
    "begin_ns",
    "end_ns",
    "step",
    "live_min_bytes",
    "live_max_bytes",
    "reserved_min_bytes",
    "reserved_max_bytes",
    "device_min_bytes",
    "device_max_bytes",
];

/// The format `csv-timeline`: memory of each device by interval.
#[derive(clap::Args)]
pub(crate) struct CsvTimelineExporter;

impl ExportFormat for CsvTimelineExporter {
    const NAME: &'static str = "csv-timeline";
    const HELP: &'static str = "CSV: minimum and maximum memory of each GPU in up to 4,096 intervals";
    const EXAMPLE: &'static str = "csv-timeline run.trace --around peak -o -";
    const SUFFIX: &'static str = ".timeline.csv";
    const SHOWS_CODE: bool = false;
}

impl Exporter for CsvTimelineExporter {
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut rows = CsvRows::new(out, RUN_COLUMNS.into_iter().chain(COLUMNS))?;
        for (run, info) in job.runs.iter_mut().zip(&job.report.traces) {
            let has_steps = run.history.step_source.is_some();
            for (device, intervals) in read_intervals(run)? {
                let known = KnownSeries::of_device(&run.history, device);
                for ((begin_ns, end_ns), interval) in intervals.iter() {
                    write_run(&mut rows, info)?;
                    rows.number(device_number(device))?;
                    rows.number(Some(begin_ns))?;
                    rows.number(Some(end_ns))?;
                    rows.number(has_steps.then_some(u64::from(interval.step)))?;
                    write_levels(&mut rows, interval, known)?;
                    rows.end_row()?;
                }
            }
        }
        rows.finish()
    }
}

fn write_levels(rows: &mut CsvRows<'_>, interval: &LevelInterval, known: KnownSeries) -> anyhow::Result<()> {
    let LevelInterval { least, most, .. } = interval;
    let series = [
        (known.live, least.live_bytes, most.live_bytes),
        (known.reserved, least.reserved_bytes, most.reserved_bytes),
        (known.device, least.device_bytes, most.device_bytes),
    ];
    for (is_known, least, most) in series {
        rows.number(is_known.then_some(least))?;
        rows.number(is_known.then_some(most))?;
    }
    Ok(())
}
