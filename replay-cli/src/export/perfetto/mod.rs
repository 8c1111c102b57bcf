//! A trace for <https://ui.perfetto.dev>: counters, slices, instants, and heap profiles.
//!
//! [`packets`], [`tracks`] and [`track_events`] know the schema; the others decide what is written.

mod clock;
mod counter_bins;
mod counters;
mod heap_dumps;
mod heap_profile;
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
use std::path::PathBuf;

use gpumemtrace_replay::report::TraceInfo;

use crate::terminal::format::format_duration;

use super::{ExportFormat, ExportJob, Exporter};
use clock::{FileClock, RunClock};
use counters::CounterPlan;
use heap_dumps::HeapMoments;
use packets::PacketWriter;
use profile::MergedProfile;
use run_tracks::RunTracks;
use tracks::StableIds;

/// Process ids from here on are ours. Linux gives none above 2^22.
const FIRST_SYNTHETIC_PID: u64 = 1 << 30;
/// Longest name of a process, in characters.
const MAX_NAME_CHARS: usize = 100;

/// Writes a Perfetto trace.
#[derive(clap::Args)]
pub(super) struct PerfettoExporter {
    /// Also show what torch.profiler's export_chrome_trace() wrote (repeatable)
    #[arg(long, value_name = "FILE")]
    torch_profile: Vec<PathBuf>,
}

impl ExportFormat for PerfettoExporter {
    const NAME: &'static str = "perfetto";
    const HELP: &'static str = "Memory over time, steps, phases and flame graphs, for Perfetto";
    const EXAMPLE: &'static str = "perfetto run.trace --torch-profile profile.json";
    const SUFFIX: &'static str = ".pftrace";
}

impl Exporter for PerfettoExporter {
    fn export(&self, job: &mut ExportJob, out: &mut dyn Write) -> anyhow::Result<()> {
        let mut packets = PacketWriter::new(out);
        let all_tracks = place_runs(job);
        let monotonic_ns = job.runs.iter().map(|run| run.analysis.start_ns);
        let clock = FileClock::new(all_tracks.iter().map(|tracks| tracks.clock).zip(monotonic_ns));
        packets.write(&clock.snapshot_packet(StableIds::new("clock").sequence("clock")))?;
        let profiles = read_profiles(&self.torch_profile, job, &all_tracks)?;
        let spans = profiles.iter().filter(|profile| profile.run_span_ns.is_some()).count();
        let devices = job.runs.iter().map(|run| run.history.devices.len()).sum();
        let max_bins = counters::bins_per_counter(devices, 1 + 2 * spans);
        let mut summed_width_ns = None;
        let ExportJob { runs, report, resolver, notes, .. } = job;
        for (trace, (run, tracks)) in runs.iter_mut().zip(&all_tracks).enumerate() {
            tracks.describe_process(&mut packets, &process_name(&report.traces[trace]))?;
            timeline::write_timeline(&mut packets, tracks, &run.history, (report, trace))?;
            let of_run = profiles.iter().filter(|profile| profile.run == Some(trace));
            let cuts_ns = moments_in(of_run.filter_map(|profile| profile.run_span_ns), tracks.window_ns);
            let plan = CounterPlan { max_bins, cuts_ns: cuts_ns.clone() };
            let summary = counters::write_counters(&mut packets, tracks, run, &plan)?;
            summed_width_ns = summed_width_ns.max(summary.summed_width_ns);
            let end_ns = heap_dumps::program_end_ns(&run.history).min(tracks.window_ns.1);
            let mut times_ns = cuts_ns;
            times_ns.push(end_ns.max(tracks.window_ns.0));
            times_ns.sort_unstable();
            let moments = HeapMoments { peaks: summary.peaks, times_ns };
            let of_heaps = (&moments, clock);
            let omitted = heap_profile::write_heap_profiles(&mut packets, tracks, (run, resolver), of_heaps)?;
            notes.extend(omissions(&report.traces[trace], run, omitted));
        }
        for profile in profiles {
            notes.extend(profile.write(&mut packets, &all_tracks)?);
        }
        if let Some(width_ns) = summed_width_ns {
            let width = format_duration(width_ns);
            notes.push(format!(
                "counters show the minimum, maximum and last value of each interval of {width} with a change"
            ));
        }
        Ok(())
    }
}

/// Gives each run its process.
fn place_runs(job: &ExportJob) -> Vec<RunTracks> {
    let (mut taken, mut identities) = (BTreeSet::new(), BTreeSet::new());
    let runs = job.runs.iter().zip(&job.report.traces).zip(0u64..);
    let place = |((run, info), index): ((&super::ExportRun, &TraceInfo), u64)| {
        // Ranks in containers often have equal process ids.
        let pid = info.pid.filter(|pid| taken.insert(*pid)).unwrap_or(FIRST_SYNTHETIC_PID + index);
        // The same trace may be given twice.
        let identity = run.analysis.meta.text("trace_id").filter(|id| identities.insert((*id).to_owned()));
        let ids = identity.map_or_else(|| StableIds::new(&format!("{index} {}", info.path)), StableIds::new);
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

/// Reads the profiles of PyTorch once.
fn read_profiles(
    files: &[PathBuf],
    job: &ExportJob,
    tracks: &[RunTracks],
) -> anyhow::Result<Vec<MergedProfile>> {
    let paths = files.iter().zip(0u32..);
    paths.map(|(path, number)| MergedProfile::read(path, (tracks, &job.report.traces), number)).collect()
}

/// The begins and ends of spans, as far as they are in a window.
fn moments_in(spans: impl Iterator<Item = (u64, u64)>, (begin_ns, end_ns): (u64, u64)) -> Vec<u64> {
    let edges = spans.flat_map(|(first_ns, last_ns)| [first_ns, last_ns]);
    let mut edges: Vec<u64> = edges.filter(|edge_ns| (begin_ns..=end_ns).contains(edge_ns)).collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// What a file lacks of a run.
fn omissions(info: &TraceInfo, run: &super::ExportRun, undumped: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let history = &run.history;
    if info.started_unix_ns.is_none() {
        notes.push(format!("{}: the time of day is unknown; times begin at 0", info.path));
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
    if undumped > 0 {
        notes.push(format!("{undumped} marks and out-of-memory errors have no flame graph"));
    }
    notes
}
