//! The format `csv-sites`: a row for each call site of a device.

use std::io::Write;

use gpumemtrace_replay::report::{BlockLayer, Site};

use super::leaked::LeakedSites;
use super::rows::CsvRows;
use super::site_totals::{LayerKey, read_site_totals};
use super::{RUN_COLUMNS, device_number, write_run};
use crate::export::{ExportFormat, ExportJob, Exporter};

const COLUMNS: [&str; 18] = [
    "layer",
    "device",
    "site",
    "file",
    "line",
    "function",
    "module",
    "is_backward",
    "live_at_peak_bytes",
    "live_at_peak_blocks",
    "live_at_end_bytes",
    "live_at_end_blocks",
    "allocated_bytes",
    "allocated_blocks",
    "leaked_bytes",
    "leaked_blocks",
    "live_at_last_step_bytes",
    "live_at_last_step_blocks",
];

/// The format `csv-sites`: live and allocated memory by call site.
#[derive(clap::Args)]
pub(crate) struct CsvSitesExporter;

impl ExportFormat for CsvSitesExporter {
    const NAME: &'static str = "csv-sites";
    const HELP: &'static str = "CSV: memory by call site, at the peak, at the end, allocated, and leaked";
    const EXAMPLE: &'static str = "csv-sites 'run.rank*.trace' -o sites.csv";
    const SUFFIX: &'static str = ".sites.csv";
}

impl Exporter for CsvSitesExporter {
    fn shows_leaks(&self) -> bool {
        true
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut rows = CsvRows::new(out, RUN_COLUMNS.into_iter().chain(COLUMNS))?;
        for trace in 0..job.runs.len() {
            let leaked = LeakedSites::of_run(job, trace);
            let (run, info) = (&mut job.runs[trace], &job.report.traces[trace]);
            for (layer, rows_of_layer) in read_site_totals(run)? {
                let stacks: Vec<u32> = rows_of_layer.iter().map(|row| row.first_stack).collect();
                let sites = run.sites_of_stacks(&stacks, &mut job.resolver);
                for (site, row) in sites.iter().zip(rows_of_layer) {
                    write_run(&mut rows, info)?;
                    write_place(&mut rows, layer, site)?;
                    let known = [row.peak, row.end, row.allocated].map(Some);
                    for total in known.into_iter().chain([leaked.at(layer, &site.id), row.last_step]) {
                        rows.number(total.map(|total| total.bytes))?;
                        rows.number(total.map(|total| total.blocks))?;
                    }
                    rows.end_row()?;
                }
            }
        }
        rows.finish()
    }
}

fn write_place(rows: &mut CsvRows<'_>, (layer, device): LayerKey, site: &Site) -> anyhow::Result<()> {
    rows.text(Some(name_layer(layer)))?;
    rows.number(device_number(device))?;
    rows.text(Some(&site.id))?;
    rows.text(site.file.as_deref())?;
    rows.number(site.line.map(u64::from))?;
    rows.text(site.function.as_deref())?;
    rows.text(site.module.as_deref())?;
    rows.text(Some(if site.is_backward { "true" } else { "false" }))
}

/// The allocator of a row.
fn name_layer(layer: BlockLayer) -> &'static str {
    match layer {
        BlockLayer::Torch => "torch",
        BlockLayer::Driver => "driver",
        BlockLayer::Host => "host",
        BlockLayer::Managed => "managed",
        BlockLayer::Foreign => "foreign",
    }
}
