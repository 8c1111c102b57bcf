//! A trace for <https://ui.perfetto.dev>: counters, slices, instants, and heap profiles.
//!
//! [`packets`], [`tracks`] and [`track_events`] know the schema; the others decide what is written.

mod clock;
mod counter_bins;
mod counters;
mod heap_profile;
mod heap_totals;
mod numbering;
mod packets;
mod profile;
mod run_tracks;
mod slices;
mod stack_table;
mod timeline;
mod track_events;
mod tracks;

use std::collections::BTreeSet;
use std::io::Write;

use gpumemtrace_replay::report::TraceInfo;

use crate::render::OutputFormat;
use crate::terminal::format::format_duration;

use super::{ExportJob, Exporter};
use clock::{FileClock, RunClock};
use packets::PacketWriter;
use run_tracks::RunTracks;
use tracks::StableIds;

/// Process ids from here on are ours. Linux gives none above 2^22.
const FIRST_SYNTHETIC_PID: u64 = 1 << 30;
/// Longest name of a process, in characters.
const MAX_NAME_CHARS: usize = 100;

/// Writes a Perfetto trace.
pub(super) struct PerfettoExporter;

impl OutputFormat for PerfettoExporter {
    fn name(&self) -> &'static str {
        "perfetto"
    }

    fn help(&self) -> &'static str {
        "Perfetto trace: memory over time, steps, phases, and flame graphs at the peak and the end"
    }
}

impl Exporter for PerfettoExporter {
    fn suffix(&self) -> &'static str {
        ".pftrace"
    }

    fn takes_profiles(&self) -> bool {
        true
    }

    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut packets = PacketWriter::new(out);
        let all_tracks = place_runs(job);
        let monotonic_ns = job.runs.iter().map(|run| run.analysis.start_ns);
        let clock = FileClock::new(all_tracks.iter().map(|tracks| tracks.clock).zip(monotonic_ns));
        packets.write(&clock.snapshot_packet(StableIds::new("clock").sequence("clock")))?;
        let devices = job.runs.iter().map(|run| run.history.devices.len()).sum();
        let max_bins = counters::bins_per_counter(devices);
        let mut widest_ns = None;
        let ExportJob { runs, report, resolver, notes, profiles } = job;
        for (trace, (run, tracks)) in runs.iter_mut().zip(&all_tracks).enumerate() {
            run.name_history(resolver);
            tracks.describe_process(&mut packets, &process_name(&report.traces[trace]))?;
            timeline::write_timeline(&mut packets, tracks, &run.history, (report, trace))?;
            widest_ns = widest_ns.max(counters::write_counters(&mut packets, tracks, run, max_bins)?);
            heap_profile::write_heap_profiles(&mut packets, tracks, &run.history, clock)?;
            notes.extend(omissions(&report.traces[trace], run));
        }
        for (number, path) in profiles.iter().enumerate() {
            let runs = (&all_tracks[..], &report.traces[..]);
            notes.extend(profile::write_profile(&mut packets, path, runs, number)?);
        }
        if let Some(width_ns) = widest_ns {
            let width = format_duration(width_ns);
            notes.push(format!(
                "counters show the least, the greatest and the last value of each {width} with a change"
            ));
        }
        Ok(())
    }
}

/// Gives each run its process.
fn place_runs(job: &ExportJob) -> Vec<RunTracks> {
    let mut taken = BTreeSet::new();
    let runs = job.runs.iter().zip(&job.report.traces).zip(0u64..);
    let place = |((run, info), index): ((&super::ExportRun, &TraceInfo), u64)| {
        // Ranks in containers often have equal process ids.
        let pid = info.pid.filter(|pid| taken.insert(*pid)).unwrap_or(FIRST_SYNTHETIC_PID + index);
        let identity = run.analysis.meta.text("trace_id").map(str::to_owned);
        let ids = StableIds::new(&identity.unwrap_or_else(|| format!("{index} {}", info.path)));
        RunTracks {
            ids,
            sequence: ids.sequence("timeline"),
            pid,
            clock: RunClock::new(info),
            window_ns: run.window.span_ns,
        }
    };
    runs.map(place).collect()
}

/// `rank 3: python train.py`.
fn process_name(info: &TraceInfo) -> String {
    let command = info.command.as_ref().map_or_else(|| info.path.clone(), |command| command.join(" "));
    let mut name = info.rank.map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    name.extend(command.chars().take(MAX_NAME_CHARS));
    if command.chars().count() > MAX_NAME_CHARS {
        name.push_str("...");
    }
    name
}

/// What the history of a run lacks.
fn omissions(info: &TraceInfo, run: &super::ExportRun) -> Vec<String> {
    let mut notes = Vec::new();
    let history = &run.history;
    if info.started_unix_ns.is_none() {
        notes.push(format!("{} has no time of its start; its times begin at 0", info.path));
    }
    if history.step_distance > 1 {
        let distance = history.step_distance;
        notes.push(format!("{} has many steps; a slice stands for {distance} of them", info.path));
    }
    let marks = info.events.get("marks").copied().unwrap_or(0).saturating_sub(history.marks.len() as u64);
    if marks > 0 {
        notes.push(format!("{marks} marks after the first {} are left out", history.marks.len()));
    }
    if history.omitted_phase_turns > 0 {
        let omitted = history.omitted_phase_turns;
        notes.push(format!("{omitted} phases after the first {} are left out", history.phase_turns.len()));
    }
    let states: u64 = history.devices.iter().map(|device| device.omitted_states).sum();
    if states > 0 {
        notes.push(format!("{states} marks and out-of-memory errors have no flame graph"));
    }
    notes
}
