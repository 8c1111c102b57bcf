//! Profiles for the Firefox Profiler (<https://profiler.firefox.com>), in its processed format.
//!
//! Each device is a thread with native allocations, which the viewer sums up by stack: what is
//! retained in a selected range, what is allocated, what is freed. Of many events, blocks are
//! sampled ([`sampling`]). Format, as of version 62:
//! <https://github.com/firefox-devtools/profiler/blob/main/src/types/profile.ts>.

mod counters;
mod markers;
mod profile;
mod rows;
mod sampling;
mod tables;
mod thread;
mod units;

use std::collections::BTreeMap;
use std::io::Write;

use gpumemtrace_replay::report::BlockLayer;

use self::profile::ProfileBuilder;
use self::rows::{count_rows, read_rows};
use self::sampling::{ByteSampling, RowCounts};
use super::stacks::{EMPTY_NOTE, devices_of_run};
use super::{ExportFormat, ExportJob, Exporter};
use crate::terminal::units::format_bytes;

/// Most allocations and frees in a profile: the viewer keeps each in memory several times.
const MAX_ROWS: u64 = 300_000;

#[derive(clap::Args)]
pub(crate) struct FirefoxExporter;

impl ExportFormat for FirefoxExporter {
    const NAME: &'static str = "firefox";
    const HELP: &'static str = "Allocations and frees by stack and time, for the Firefox Profiler";
    const EXAMPLE: &'static str = "firefox run.trace --since step:40";
    const SUFFIX: &'static str = ".firefox.json";
}

impl Exporter for FirefoxExporter {
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut layers: Vec<BTreeMap<u8, BlockLayer>> = Vec::new();
        let mut counts = RowCounts::default();
        for (index, run) in job.runs.iter_mut().enumerate() {
            run.end_before_teardown();
            let mut of_run = BTreeMap::new();
            of_run.extend(devices_of_run(&job.report, index));
            count_rows(run, &of_run, &mut counts)?;
            layers.push(of_run);
        }
        let sampling = counts.sampling(MAX_ROWS);
        let mut profile = ProfileBuilder::new(job);
        for (index, layers) in layers.iter().enumerate() {
            let rows = read_rows(&mut job.runs[index], layers, sampling)?;
            profile.add_run(job, index, rows);
        }
        let sampled = sampling_note(sampling, counts.total());
        serde_json::to_writer(&mut *out, &profile.finish(job, sampled.as_deref()))?;
        out.write_all(b"\n")?;
        job.notes.extend(sampled);
        if counts.total() == 0 {
            job.notes.push(EMPTY_NOTE.to_owned());
        }
        Ok(())
    }
}

fn sampling_note(sampling: ByteSampling, rows: u64) -> Option<String> {
    sampling.interval_bytes.map(|interval| {
        format!(
            "{rows} allocations and frees were sampled by size, one byte in {} on average: sums are \
             estimates; shorten the window with --since and --until for exact ones",
            format_bytes(interval as u64)
        )
    })
}
