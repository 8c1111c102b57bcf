//! One trace that is served.

use std::path::Path;
use std::time::{Duration, Instant};

use gpumemtrace_format::Counter;
use gpumemtrace_format::reader::OpenError;
use gpumemtrace_replay::callsite::UserCodePaths;
use gpumemtrace_replay::report::{DeviceGauges, RunGauges};

use super::exposition::{DeviceSample, SeriesLabels, TraceSample};
use crate::follow::{FollowedRun, TailChange};
use crate::terminal::escape::escape_text;

/// After this long, an event that others wait for counts as lost. The recorder writes all threads'
/// events within about five seconds, except for a call that has not returned.
const MAX_EVENT_DELAY: Duration = Duration::from_secs(30);
/// Longest label value, in characters.
const MAX_LABEL_CHARS: usize = 255;

pub(super) struct ServedRun {
    run: FollowedRun,
    /// When the run was found to be over. It goes on if its trace grows without having an end.
    ended: Option<Instant>,
    /// The next sequence number while others wait for it, and since when.
    awaited: Option<(u64, Instant)>,
    /// Of copies of a trace, the one with the lowest value has the labels of the run.
    pub(super) copy_order: (u64, bool),
    /// What the last poll found.
    pub(super) found: Result<TailChange, OpenError>,
}

impl ServedRun {
    /// Opens a trace; `None` while it is empty.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, OpenError> {
        let run = FollowedRun::open(path, &UserCodePaths::default())?;
        let found = Ok(TailChange::Nothing);
        Ok(run.map(|run| Self { run, ended: None, awaited: None, copy_order: (0, false), found }))
    }

    /// True while the recorder holds the trace.
    pub(super) fn is_recording(&self) -> bool {
        self.run.is_recording()
    }

    /// True if `identity` is the device and inode of the trace.
    pub(super) fn is_file(&self, identity: (u64, u64)) -> bool {
        self.run.is_file(identity)
    }

    /// Goes on under the new path of the trace; false if it must be opened anew there.
    pub(super) fn follow_rename(&mut self, path: &Path) -> bool {
        self.run.follow_rename(path)
    }

    /// How long ago the run was found to be over; `None` while it goes on.
    pub(super) fn time_since_end(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.elapsed())
    }

    /// Reads what is new. Without `reads_ring`, the ring file is read only if the program is gone.
    pub(super) fn poll(&mut self, reads_ring: bool) {
        self.found = self.try_poll(reads_ring);
    }

    fn try_poll(&mut self, reads_ring: bool) -> Result<TailChange, OpenError> {
        if self.ended.is_some() {
            let found = self.run.poll_trace()?;
            if !matches!(found, TailChange::Nothing | TailChange::More) || self.run.is_over() {
                return Ok(found);
            }
            self.ended = None;
        }
        let polls_ring = reads_ring || !self.run.may_be_recording();
        let mut found = if polls_ring { self.run.poll()? } else { self.run.poll_trace()? };
        let is_unchanged = matches!(found, TailChange::Nothing | TailChange::More);
        if is_unchanged && self.run.is_over() {
            found = self.run.poll()?;
            self.run.live.skip_missing_events();
            self.ended = Some(Instant::now());
        }
        let next_seq = self.run.live.next_seq();
        match self.awaited.filter(|(seq, _)| *seq == next_seq) {
            // Without events that wait, this does nothing.
            Some((_, since)) if since.elapsed() > MAX_EVENT_DELAY => self.run.live.skip_missing_events(),
            Some(_) => {}
            None => self.awaited = Some((next_seq, Instant::now())),
        }
        Ok(found)
    }

    /// The present values. `file` is the name of the trace.
    /// Maxima include those of the reading before unless that is `confirmed`.
    pub(super) fn read(&mut self, file: &str, confirmed: bool) -> TraceSample {
        let RunGauges { events, missing_events, steps, last_event_ns, devices } =
            self.run.live.read_gauges(confirmed);
        let counter = |counter| self.run.counters.as_ref().map(|counters| counters.get(counter));
        let dropped = counter(Counter::DroppedEvents).zip(counter(Counter::InterruptedEvents));
        let meta = &self.run.meta;
        let begin = meta.number("started_unix_ns").zip(meta.number("started_ns"));
        let unix_seconds = |time_ns: Option<u64>| {
            begin
                .zip(time_ns)
                .map(|((unix_ns, begin_ns), ns)| (unix_ns as f64 + (ns as f64 - begin_ns as f64)) / 1e9)
        };
        // A file may be renamed, so its name identifies the run only if the trace has no id.
        let mut labels = vec![("trace_id", label(meta.text("trace_id").unwrap_or(file)))];
        labels.extend(meta.text("host").map(|host| ("host", label(host))));
        for name in ["rank", "pid"] {
            labels.extend(meta.number(name).map(|number| (name, number.to_string())));
        }
        let mut info = vec![("trace", label(file))];
        for name in ["local_rank", "world_size"] {
            info.extend(meta.number(name).map(|number| (name, number.to_string())));
        }
        for name in ["torch", "python", "cuda_driver", "git_commit"] {
            info.extend(meta.text(name).map(|text| (name, label(text))));
        }
        if !meta.list("labels").is_empty() {
            info.push(("labels", label(&meta.list("labels").join(","))));
        }
        // On Metal, the number is a recommendation and no limit.
        let is_metal = meta.list("mode").iter().any(|mode| mode == "metal");
        let capacity = |ordinal: u8, device: &DeviceGauges| {
            let total = device.total_bytes.or_else(|| meta.number(&format!("device.{ordinal}.total_bytes")));
            total.filter(|_| !is_metal)
        };
        let device_sample = |(ordinal, gauges): (u8, DeviceGauges)| DeviceSample {
            device: ordinal,
            name: meta.text(&format!("device.{ordinal}.name")).map(label),
            capacity: capacity(ordinal, &gauges),
            last_oom: unix_seconds(gauges.last_oom_ns),
            gauges,
        };
        TraceSample {
            labels: SeriesLabels(labels),
            info,
            is_running: self.ended.is_none(),
            events,
            lost_events: dropped.map(|(dropped, interrupted)| {
                dropped.saturating_add(interrupted).saturating_add(missing_events)
            }),
            steps,
            last_event: unix_seconds(last_event_ns),
            exit_code: self.run.exit_code(),
            devices: devices.into_iter().map(device_sample).collect(),
        }
    }
}

/// A label value from outside: harmless on a terminal, and of limited length.
fn label(text: &str) -> String {
    let start: String = text.chars().take(MAX_LABEL_CHARS).collect();
    escape_text(&start).chars().take(MAX_LABEL_CHARS).collect()
}
