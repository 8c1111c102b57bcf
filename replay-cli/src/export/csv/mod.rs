//! Tables for spreadsheets and data frames: call sites, and memory over time.

mod leaked;
mod rows;
mod site_totals;
mod sites;
mod timeline;

use std::path::Path;

use gpumemtrace_replay::report::TraceInfo;

use rows::CsvRows;
pub(super) use sites::CsvSitesExporter;
pub(super) use timeline::CsvTimelineExporter;

/// The first cells of each row of a run.
const RUN_COLUMNS: [&str; 2] = ["trace", "rank"];

/// Writes the cells of [`RUN_COLUMNS`]: the name of the file without its folder, and the rank.
fn write_run(rows: &mut CsvRows<'_>, info: &TraceInfo) -> anyhow::Result<()> {
    let name = Path::new(&info.path).file_name().map(|name| name.to_string_lossy());
    rows.text(name.as_deref())?;
    rows.number(info.rank)
}

/// Ordinal of a device as a cell; `None` if it is unknown.
fn device_number(device: u8) -> Option<u64> {
    (device != gpumemtrace_format::NO_DEVICE).then_some(u64::from(device))
}
