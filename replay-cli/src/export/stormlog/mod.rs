//! The format `stormlog`: telemetry events of Stormlog, a line of JSON each.

mod phases;
mod record;
mod session;

use std::collections::BTreeSet;
use std::io::Write;

use crate::export::{ExportJob, Exporter};
use crate::render::OutputFormat;
use session::{rank_of_job, session_name, write_session};

/// The format `stormlog`: samples, phases and errors for each GPU.
pub(crate) struct StormlogExporter;

impl OutputFormat for StormlogExporter {
    fn name(&self) -> &'static str {
        "stormlog"
    }

    fn help(&self) -> &'static str {
        "Telemetry for Stormlog (JSONL, schema version 4)"
    }
}

impl Exporter for StormlogExporter {
    fn suffix(&self) -> &'static str {
        ".stormlog.jsonl"
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let ranks: BTreeSet<u64> =
            job.report.traces.iter().filter_map(rank_of_job).map(|(rank, _)| rank).collect();
        // The ranks of a job are one session, so that Stormlog compares them.
        let is_job = ranks.len() == job.runs.len();
        if !is_job && job.runs.len() > 1 {
            job.notes.push(
                "the traces have no distinct ranks, so each is a session of its own; choose one with --session-id"
                    .to_owned(),
            );
        }
        for trace in 0..job.runs.len() {
            let first = if is_job { 0 } else { trace };
            let name = session_name(&job.report.traces[first]);
            write_session(job, trace, &name, out)?;
        }
        Ok(())
    }
}
