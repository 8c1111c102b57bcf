//! The table of values over time, from the history of the run.

use gpumemtrace_cli::export::ExportRun;
use gpumemtrace_replay::DeviceHistory;

use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::series::SeriesRow;
use crate::tables::{number, saturated};

/// The names of the series of [`DeviceHistory::series`].
const NAMES: [&str; 3] = ["live", "reserved", "device"];

/// Writes the table `series`: the intervals that meet the window, by device and series.
pub(crate) fn write_series(run: &ExportRun, folder: &mut PartitionFolder<'_>) -> anyhow::Result<()> {
    let mut table = folder.begin::<SeriesRow>()?;
    let (since_ns, until_ns) = run.window.span_ns;
    let meets_window = |start_ns: u64, end_ns: u64| start_ns <= until_ns && end_ns >= since_ns;
    for device in &run.history.devices {
        for row in binned_rows(device).chain(gap_rows(device)) {
            if meets_window(row.start_ns as u64, row.end_ns as u64) {
                table.push(row);
            }
        }
    }
    table.finish()?;
    Ok(())
}

fn binned_rows(device: &DeviceHistory) -> impl Iterator<Item = SeriesRow> + '_ {
    NAMES.into_iter().zip(device.series.chunks(2)).flat_map(move |(name, pair)| {
        let values = pair[0].iter().zip(&pair[1]);
        values.zip(device.series_edges_ns.windows(2)).map(move |((least, most), edges)| SeriesRow {
            device: i64::from(device.ordinal),
            series: Text::from_static(name),
            start_ns: saturated(edges[0]),
            end_ns: saturated(edges[1]),
            min_bytes: number(*least),
            max_bytes: number(*most),
        })
    })
}

fn gap_rows(device: &DeviceHistory) -> impl Iterator<Item = SeriesRow> + '_ {
    device.gap.iter().flat_map(move |point| {
        let row = move |series: Text, bytes: u64| SeriesRow {
            device: i64::from(device.ordinal),
            series,
            start_ns: saturated(point.time_ns),
            end_ns: saturated(point.time_ns),
            min_bytes: number(bytes),
            max_bytes: number(bytes),
        };
        let causes = point.causes.iter();
        let causes = causes.map(move |(cause, bytes)| row(format!("gap.{}", cause.name()).into(), *bytes));
        std::iter::once(row(Text::from_static("gap"), point.gap)).chain(causes)
    })
}
