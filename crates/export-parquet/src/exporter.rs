//! What is written: the tables of each trace, in its partition.

use gpumemtrace_cli::export::{ExportJob, ExportTarget, FolderExport, FolderExporter, LineIds};

use crate::fill::{categories, findings, runs, segments, series, sites, stacks};
use crate::folder::OutputFolder;
use crate::walk::walk_run;

/// Writes traces as Parquet tables.
pub(crate) struct ParquetExporter;

impl FolderExporter for ParquetExporter {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn begin(&self, target: ExportTarget, notes: &mut Vec<String>) -> anyhow::Result<Box<dyn FolderExport>> {
        Ok(Box::new(ParquetExport { output: OutputFolder::begin(target, notes)? }))
    }
}

/// An export to a folder of tables.
struct ParquetExport {
    output: OutputFolder,
}

impl FolderExport for ParquetExport {
    fn export(&mut self, job: &mut ExportJob, first: usize) -> anyhow::Result<u64> {
        let ExportJob { runs, report, resolver, notes, .. } = job;
        for (trace, run) in runs.iter_mut().enumerate() {
            let summary = run.summary(resolver);
            let mut folder = self.output.partition(first + trace);
            let walked = walk_run(run, &mut folder)?;
            let names = stacks::write_stacks(run, &walked.stacks, resolver, &mut folder)?;
            let mut line_ids = LineIds::new(&report.traces[trace]);
            sites::write_sites(walked.layers, &names, &mut line_ids, &mut folder)?;
            series::write_series(run, &mut folder)?;
            segments::write_segments(run, &walked.moments, &mut folder)?;
            categories::write_categories(report, trace, &mut folder)?;
            findings::write_findings(report, trace, &mut folder)?;
            runs::write_run(run, (report, trace), walked.events, &mut folder)?;
            folder.write_summary(&summary)?;
            add_notes(run, walked.omitted_numbers, notes);
        }
        self.output.publish(notes)
    }
}

fn add_notes(run: &gpumemtrace_cli::export::ExportRun, omitted_numbers: u64, notes: &mut Vec<String>) {
    let omitted_states: u64 = run.history.devices.iter().map(|device| device.omitted_states).sum();
    if omitted_states > 0 {
        notes.push(format!(
            "table segments lacks {omitted_states} marks and errors: it has the first of each, and the last error"
        ));
    }
    if omitted_numbers > 0 {
        notes.push(format!("{omitted_numbers} numbers above 2^63 - 1 are null; the trace may be damaged"));
    }
}
