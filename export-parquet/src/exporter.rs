//! What is written: the tables of each trace, in its partition.

use std::collections::BTreeSet;
use std::path::Path;

use gpumemtrace_cli::export::{ExportJob, FolderExporter};
use gpumemtrace_replay::Report;

use crate::fill::{findings, runs, segments, series, sites, stacks};
use crate::folder::OutputFolder;
use crate::walk::walk_run;

/// Writes traces as Parquet tables.
pub(crate) struct ParquetExporter;

impl FolderExporter for ParquetExporter {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn export(&self, job: &mut ExportJob, folder: &Path) -> anyhow::Result<u64> {
        let ExportJob { runs, report, resolver, notes, .. } = job;
        let mut output = OutputFolder::create(folder)?;
        let run_id = gpumemtrace_cli::export::run_id(report);
        let ranks = ranks_of_traces(report, notes);
        for (trace, (run, rank)) in runs.iter_mut().zip(ranks).enumerate() {
            let mut folder = output.partition(&run_id, rank);
            let walked = walk_run(run, &mut folder)?;
            let names = stacks::write_stacks(run, &walked.stacks, resolver, &mut folder)?;
            sites::write_sites(walked.layers, &names, &mut folder)?;
            series::write_series(run, &mut folder)?;
            segments::write_segments(run, &walked.moments, &mut folder)?;
            findings::write_findings(report, trace, &mut folder)?;
            runs::write_run(run, (report, trace), walked.events, &mut folder)?;
            add_notes(run, walked.omitted_numbers, notes);
        }
        output.finish()
    }
}

/// The rank of each trace: as reported, or its place if a rank is unknown or repeats.
fn ranks_of_traces(report: &Report, notes: &mut Vec<String>) -> Vec<u64> {
    let reported: Vec<u64> = report.traces.iter().filter_map(|trace| trace.rank).collect();
    let distinct: BTreeSet<u64> = reported.iter().copied().collect();
    let traces = report.traces.len();
    if distinct.len() == traces {
        return reported;
    }
    if traces > 1 {
        notes.push(
            "the traces have no distinct ranks; rank= in the folders is their place on the command line"
                .to_owned(),
        );
    }
    (0..traces as u64).collect()
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
