//! A part of a run: from a moment on (`--since`), or of one stream (`--stream`).
//!
//! Constraint: the pass has no time for a question per event. Consequence: what has to be asked is asked per slice of events, and
//! only by whoever wants a part: a slice is split at the moment, at which the books begin anew; of the events of other streams
//! only what tells steps and losses is taken.

use gpumemtrace_format::{Event, EventKind};

use super::ReplayPass;
use crate::pass::stream_filter::{StreamFilter, StreamMatch};
use crate::timeline::marks::{AwaitedMark, name_of};
use crate::timeline::time_spec::TimeSpec;

/// From when on a report tells of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinceScope {
    /// As it was asked for.
    pub asked: TimeSpec,
    /// The moment, if it came: when, and how many steps had begun.
    pub come: Option<(u64, u32)>,
}

/// What of the run is wanted.
#[derive(Debug, Default)]
pub(super) struct PassScope {
    pub(super) since: Option<SinceScope>,
    /// The mark that it is, where it is one.
    pub(super) since_mark: Option<AwaitedMark>,
    pub(super) stream: Option<StreamFilter>,
    /// The step before the peak too.
    pub(super) follows_step_peaks: bool,
    /// When the recording began and when it ended, as far as the file says so.
    pub(super) started_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
}

impl PassScope {
    pub(super) fn is_all(&self) -> bool {
        self.since.is_none() && self.stream.is_none()
    }

    /// The first event that is past the moment.
    fn split(&self, events: &[Event], first_ns: Option<u64>) -> Option<(usize, u64)> {
        let Some(SinceScope { asked: TimeSpec::Elapsed { time_ns }, come: None }) = &self.since else {
            return None;
        };
        let time_ns = *time_ns;
        let started = self.started_ns.or(first_ns).or(events.first().map(|event| event.time_ns))?;
        let is_past = |event: &Event| {
            let elapsed = event.time_ns.saturating_sub(started);
            TimeSpec::Elapsed { time_ns }.has_come(elapsed, 0)
        };
        Some((events.iter().position(is_past)?, started.saturating_add(time_ns)))
    }
}

impl ReplayPass {
    #[cold]
    #[inline(never)]
    pub(super) fn on_scoped_slice(&mut self, events: &[Event]) {
        let Some((at, time_ns)) = self.scope.split(events, self.first_ns) else {
            return self.on_stream_slice(events);
        };
        let (before, after) = events.split_at(at);
        self.on_stream_slice(before);
        self.begin_scope(time_ns);
        self.on_stream_slice(after);
    }

    fn on_stream_slice(&mut self, events: &[Event]) {
        let Some(mut stream) = self.scope.stream.take() else { return self.on_events(events) };
        let mut own: Vec<Event> = Vec::new();
        for event in events {
            match stream.take(event, &mut own) {
                StreamMatch::It => {}
                StreamMatch::Others => {
                    // In order: what a step is depends on all that came before.
                    self.on_events(&own);
                    own.clear();
                    self.on_filtered_event(event);
                }
            }
        }
        self.on_events(&own);
        self.scope.stream = Some(stream);
    }

    /// An event that is no part of the report, and of the run.
    fn on_filtered_event(&mut self, event: &Event) {
        self.account(event);
        if event.kind == EventKind::BLOCK_OOM {
            self.count_oom(event);
        }
    }

    pub(super) fn count_oom(&mut self, event: &Event) {
        self.oom_count += 1;
        *self.oom_counts.entry(event.device).or_default() += 1;
    }

    /// Steps have begun: the moment may be one of them.
    pub(super) fn on_step_begin(&mut self) {
        if let Some(SinceScope { asked: asked @ TimeSpec::Step(_), come: None }) = &self.scope.since
            && asked.has_come(0, self.step)
        {
            self.begin_scope(self.time_ns);
        }
    }

    /// The program has made a mark.
    #[cold]
    pub(super) fn on_mark(&mut self, event: &Event) {
        let Some(name) = name_of(event, self.symbols.definitions()) else { return };
        let come = self.schedule.at_mark(name);
        let is_since = self.scope.since_mark.as_mut().is_some_and(|awaited| awaited.is_it(name));
        self.take_snapshots(&come);
        if is_since {
            self.begin_scope(self.time_ns);
        }
    }

    /// The report begins here.
    #[cold]
    fn begin_scope(&mut self, time_ns: u64) {
        let rest_ns = self.scope.end_ns.map_or(0, |end| end.saturating_sub(time_ns));
        for device in self.devices.all.iter_mut().flatten() {
            device.restart(time_ns, rest_ns, &self.driver);
        }
        // Devices that come later, too.
        self.devices.span_ns = rest_ns;
        self.devices.first_step = self.step;
        self.host.restart(time_ns, rest_ns);
        for (place, peak) in &mut self.non_device_peaks {
            *peak = self.non_device.of(*place);
        }
        self.analyses.restart();
        self.phases.restart(time_ns, self.devices.held());
        self.ooms.clear();
        self.oom_count = 0;
        self.oom_counts.clear();
        if let Some(since) = &mut self.scope.since {
            since.come = Some((time_ns, self.step));
        }
    }
}
