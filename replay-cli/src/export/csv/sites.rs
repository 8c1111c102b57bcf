//! The format `csv-sites`: a row for each call site of a device.

use std::io::Write;

use gpumemtrace_replay::report::{BlockLayer, Site};

use super::rows::CsvRows;
use super::site_totals::{LayerKey, MemoryTotal, read_site_totals};
use super::{RUN_COLUMNS, device_number, write_run};
use crate::export::{ExportJob, Exporter};
use crate::render::OutputFormat;

const COLUMNS: [&str; 14] = [
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
];

/// The format `csv-sites`: live and allocated memory by call site.
pub(crate) struct CsvSitesExporter;

impl OutputFormat for CsvSitesExporter {
    fn name(&self) -> &'static str {
        "csv-sites"
    }

    fn help(&self) -> &'static str {
        "CSV: memory by call site, at the peak, at the end, and allocated"
    }
}

impl Exporter for CsvSitesExporter {
    fn suffix(&self) -> &'static str {
        ".sites.csv"
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut rows = CsvRows::new(out, RUN_COLUMNS.into_iter().chain(COLUMNS))?;
        for (run, info) in job.runs.iter_mut().zip(&job.report.traces) {
            for (layer, totals) in read_site_totals(run)? {
                let stacks: Vec<u32> = totals.iter().map(|site| site.stack).collect();
                let sites = run.sites_of_stacks(&stacks, &mut job.resolver);
                for (site, totals) in sites.iter().zip(totals) {
                    write_run(&mut rows, info)?;
                    write_place(&mut rows, layer, site)?;
                    for MemoryTotal { bytes, blocks } in [totals.at_peak, totals.at_end, totals.allocated] {
                        rows.number(Some(bytes))?;
                        rows.number(Some(blocks))?;
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
