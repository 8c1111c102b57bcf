//! The events of one run.

use std::io::Write;

use gpumemtrace_replay::report::{Ending, Oom, TraceInfo};
use gpumemtrace_replay::{Report, RunHistory};

use super::phases::{PhaseBoundary, phase_boundaries};
use super::record::{EventParts, EventSource, SampleCounters};
use crate::export::json_object::object;
use crate::export::series::{DeviceIntervals, KnownSeries, LevelInterval, read_intervals};
use crate::export::{ExportJob, ExportWindow};
use crate::render::json::write_json_line;

/// Stormlog's words for an unknown host and process.
const UNKNOWN_HOST: &str = "unknown";
const UNKNOWN_PID: i64 = -1;
const NS_PER_MS: u64 = 1_000_000;

/// Rank and number of ranks of a run, if Stormlog accepts them.
pub(super) fn rank_of_job(info: &TraceInfo) -> Option<(u64, u64)> {
    let (rank, world_size) = (info.rank?, info.world_size?);
    (rank < world_size).then_some((rank, world_size))
}

/// A name that is the same in every export of a run.
pub(super) fn session_name(info: &TraceInfo) -> String {
    let number =
        |value: Option<u64>| value.map_or_else(|| UNKNOWN_HOST.to_owned(), |value| value.to_string());
    format!("gpumemtrace-{}-{}-{}", host(info), number(info.pid), number(info.started_unix_ns))
}

fn host(info: &TraceInfo) -> &str {
    info.host.as_deref().filter(|host| !host.trim().is_empty()).unwrap_or(UNKNOWN_HOST)
}

/// Writes the events of a run by time.
pub(super) fn write_session(
    job: &mut ExportJob,
    trace: usize,
    session: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let run = &mut job.runs[trace];
    let devices = read_intervals(run)?;
    let info = &job.report.traces[trace];
    if info.started_unix_ns.is_none() {
        job.notes.push(format!("{}: the time of day is unknown; timestamps begin at 0", info.path));
    }
    if devices.is_empty() {
        job.notes.push(format!("{}: no GPU memory in this part of the run", info.path));
    }
    let mut sources = Vec::new();
    for (device, intervals) in &devices {
        let most_bytes = intervals.iter().map(|(_, interval)| interval.most.device_bytes).max();
        let total_bytes = total_bytes(&job.report, trace, *device);
        // Stormlog refuses events that use more than the device has, as managed memory can.
        let fits = most_bytes <= total_bytes;
        if total_bytes.is_some() && !fits {
            let why = "more memory is in use than it has; its size is left out";
            job.notes.push(format!("{}: GPU {device}: {why}", info.path));
        }
        sources.push(EventSource {
            session,
            sampling_interval_ms: intervals.width_ns() / NS_PER_MS,
            pid: info.pid.and_then(|pid| i64::try_from(pid).ok()).unwrap_or(UNKNOWN_PID),
            host: host(info),
            rank: rank_of_job(info),
            device: *device,
            total_bytes: total_bytes.filter(|_| fits),
            known: KnownSeries::of_device(&run.history, *device),
            is_metal: info.is_metal(),
        });
    }
    let all = RunEvents { report: &job.report, trace, history: &run.history, window: &run.window };
    let mut events = Vec::new();
    for (source, (_, intervals)) in sources.iter().zip(&devices) {
        let samples = all.samples(source, intervals);
        let others = all.others(source, &samples, events.is_empty());
        events.extend(samples.into_iter().chain(others).map(|event| (source, event)));
    }
    // Equal times: the start, then in the order above.
    let key = |(index, (_, event)): (usize, &(&EventSource<'_>, EventParts))| {
        (event.timestamp_ns, if event.event_type == "start" { 0 } else { index + 1 }, index)
    };
    let mut order: Vec<(u64, usize, usize)> = events.iter().enumerate().map(key).collect();
    order.sort_unstable();
    let mut events: Vec<Option<_>> = events.into_iter().map(Some).collect();
    for (.., index) in order {
        if let Some((source, event)) = events[index].take() {
            write_json_line(&source.event(event), out)?;
        }
    }
    Ok(())
}

/// The size of a device, if it is known.
fn total_bytes(report: &Report, trace: usize, ordinal: u8) -> Option<u64> {
    let mut devices = report.devices.iter();
    devices.find(|device| device.trace == trace && device.device == u32::from(ordinal))?.total_bytes
}

/// What the events of a run are made of.
struct RunEvents<'a> {
    report: &'a Report,
    trace: usize,
    history: &'a RunHistory,
    window: &'a ExportWindow,
}

impl RunEvents<'_> {
    fn info(&self) -> &TraceInfo {
        &self.report.traces[self.trace]
    }

    /// A time since the start of recording, since the Unix epoch.
    fn timestamp_ns(&self, time_ns: u64) -> u64 {
        self.info().started_unix_ns.unwrap_or(0).saturating_add(time_ns)
    }

    /// A sample per interval, at its end: the most bytes of each series in it.
    fn samples(&self, source: &EventSource<'_>, intervals: &DeviceIntervals) -> Vec<EventParts> {
        let known = source.known;
        let mut before = None;
        let sample = |((_, end_ns), interval): ((u64, u64), &LevelInterval)| {
            let most = interval.most;
            let change = before.map(|before: u64| (most.live_bytes as i64).wrapping_sub(before as i64));
            before = Some(most.live_bytes);
            let has_steps = self.history.step_source.is_some();
            let step = has_steps.then(|| ("gpumemtrace", object([("step", interval.step.into())])));
            EventParts {
                timestamp_ns: self.timestamp_ns(end_ns.min(self.window.span_ns.1)),
                event_type: "sample",
                counters: SampleCounters {
                    allocated_bytes: known.live.then_some(most.live_bytes),
                    reserved_bytes: known.reserved.then_some(most.reserved_bytes),
                    used_bytes: known.device.then_some(most.device_bytes),
                    change_bytes: change.filter(|_| known.live),
                },
                context: None,
                metadata: step.into_iter().collect(),
            }
        };
        intervals.iter().map(sample).collect()
    }

    /// The errors of a device and, with the first one, what concerns the process. Each has the
    /// counters of the sample before it: Stormlog's queries fail on events without counters.
    fn others(&self, source: &EventSource<'_>, samples: &[EventParts], is_first: bool) -> Vec<EventParts> {
        let mut events = Vec::new();
        let Some(first) = samples.first() else { return events };
        if is_first {
            events.extend(self.lifecycle(first.timestamp_ns));
            events.extend(self.phases(first.timestamp_ns));
        }
        let (from_ns, to_ns) = self.window.span_ns;
        let is_shown = |oom: &&Oom| {
            oom.trace == self.trace
                && oom.device == u32::from(source.device)
                && (from_ns..=to_ns).contains(&oom.time_ns)
        };
        events.extend(self.report.oom.iter().flatten().filter(is_shown).map(|oom| self.error(oom)));
        for event in &mut events {
            let later = samples.partition_point(|sample| sample.timestamp_ns <= event.timestamp_ns);
            let sample = &samples[later.saturating_sub(1)];
            event.counters = SampleCounters { change_bytes: None, ..sample.counters };
        }
        events
    }

    /// The begin and the normal exit of the program, as far as they are in the window.
    fn lifecycle(&self, first_ns: u64) -> Vec<EventParts> {
        let info = self.info();
        let mut events = Vec::new();
        if self.window.since.is_none() {
            let command = info.command.as_deref().map(|words| words.join(" "));
            events.push(event(first_ns, "start", command));
        }
        if self.window.until.is_none() && info.end == Ending::Exit {
            let end_ns = self.timestamp_ns(self.window.span_ns.1);
            events.push(event(end_ns, "stop", info.end_detail.clone()));
        }
        events
    }

    /// The phases, from the first sample on.
    fn phases(&self, first_ns: u64) -> Vec<EventParts> {
        let from_ns = first_ns.saturating_sub(self.timestamp_ns(0));
        let named = |boundary: PhaseBoundary<'_>| {
            let time_ns = self.timestamp_ns(boundary.time_ns);
            let mut event = event(time_ns, boundary.event_type, Some(boundary.name.to_owned()));
            event.metadata.push(("phase_scope", boundary.scope()));
            event
        };
        phase_boundaries(&self.history.phase_turns, (from_ns, self.window.span_ns.1))
            .into_iter()
            .map(named)
            .collect()
    }

    /// An out-of-memory error, with its exact values beside the counters.
    fn error(&self, oom: &Oom) -> EventParts {
        let mut event = event(self.timestamp_ns(oom.time_ns), "error", Some(oom.why.clone()));
        event.metadata.push(("oom_reason", oom.why.as_str().into()));
        let exact = object([
            ("requested_bytes", oom.requested_bytes.into()),
            ("live_bytes", oom.live_bytes.into()),
            ("reserved_bytes", oom.reserved_bytes.into()),
            ("step", oom.step.into()),
        ]);
        event.metadata.push(("gpumemtrace", exact));
        event
    }
}

/// An event without counters.
fn event(timestamp_ns: u64, event_type: &'static str, context: Option<String>) -> EventParts {
    EventParts {
        timestamp_ns,
        event_type,
        counters: SampleCounters::default(),
        context,
        metadata: Vec::new(),
    }
}
