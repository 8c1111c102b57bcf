//! Restricts the pass to a part of the run (`--since`) or to one stream (`--stream`).
//!
//! Without these options, the pass checks once per slice that the scope is the whole run, and
//! events cost nothing more. Otherwise a slice is split at the beginning of the part, where all
//! state is rebased. Events of other streams only count for steps, threads and out-of-memory
//! totals. `crates/replay/tests/parts.rs` compares parts with the whole run.

use gpumemtrace_format::{Event, EventKind};

use super::ReplayPass;
use super::records::{PresentState, Records};
use super::stage::PassSetup;
use crate::device::keyframes::KeyframeReason;
use crate::event_analysis::EventTime;
use crate::pass::stream_filter::{StreamFilter, StreamMatch};
use crate::timeline::marks::{AwaitedMark, mark_name};
use crate::timeline::time_spec::TimeSpec;

/// The moment at which an analysis begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinceScope {
    /// The moment as the user gave it.
    pub spec: TimeSpec,
    /// The time of the moment; `None` if the run did not reach it.
    pub reached: Option<EventTime>,
}

/// The part of the run to analyse.
#[derive(Debug)]
pub(super) struct PassScope {
    pub(super) since: Option<SinceScope>,
    /// Recognizes the mark, if `since` is one.
    since_mark: Option<AwaitedMark>,
    pub(super) stream: Option<StreamFilter>,
    /// Start of recording, if known.
    started_ns: Option<u64>,
    /// End of recording, if known.
    end_ns: Option<u64>,
}

impl PassScope {
    pub(super) fn new(setup: &PassSetup) -> Self {
        let since = setup.options.since.as_ref();
        Self {
            since: since.map(|spec| SinceScope { spec: spec.clone(), reached: None }),
            since_mark: since.and_then(|spec| match spec {
                TimeSpec::Mark(name) => Some(AwaitedMark::new(name)),
                _ => None,
            }),
            stream: setup.options.stream.map(StreamFilter::new),
            started_ns: setup.started_ns,
            end_ns: setup.end_ns,
        }
    }

    pub(super) fn is_whole_run(&self) -> bool {
        self.since.is_none() && self.stream.is_none()
    }

    /// The index of the first event after the `since` time, and that time. `None` if `since` is no
    /// time, was reached before, or is not reached in `events`.
    fn find_since_time(&self, events: &[Event], first_ns: Option<u64>) -> Option<(usize, u64)> {
        let Some(SinceScope { spec: TimeSpec::Elapsed { time_ns }, reached: None }) = &self.since else {
            return None;
        };
        let time_ns = *time_ns;
        let started = self.started_ns.or(first_ns).or(events.first().map(|event| event.time_ns))?;
        let is_past = |event: &Event| {
            let elapsed = event.time_ns.saturating_sub(started);
            TimeSpec::Elapsed { time_ns }.is_reached(elapsed, 0)
        };
        Some((events.iter().position(is_past)?, started.saturating_add(time_ns)))
    }
}

impl ReplayPass {
    /// Applies a slice with `--since` or `--stream`.
    #[cold]
    #[inline(never)]
    pub(super) fn on_scoped_slice(&mut self, events: &[Event]) {
        let Some((index, time_ns)) = self.scope.find_since_time(events, self.clock.first_ns) else {
            return self.on_stream_slice(events);
        };
        let (before, after) = events.split_at(index);
        self.on_stream_slice(before);
        self.begin_scope(time_ns);
        self.on_stream_slice(after);
    }

    /// Applies the events of the stream, or all events without `--stream`.
    fn on_stream_slice(&mut self, events: &[Event]) {
        let Some(mut stream) = self.scope.stream.take() else { return self.on_events(events) };
        let mut included: Vec<Event> = Vec::new();
        for event in events {
            match stream.filter_event(event, &mut included) {
                StreamMatch::Included => {}
                StreamMatch::Excluded => {
                    // Keep the order: steps depend on the sequence of all events.
                    self.on_events(&included);
                    included.clear();
                    self.on_filtered_event(event);
                }
            }
        }
        self.on_events(&included);
        self.scope.stream = Some(stream);
    }

    /// Counts an event that belongs to the run but not to the stream.
    fn on_filtered_event(&mut self, event: &Event) {
        self.account(event);
        if event.kind == EventKind::BLOCK_OOM {
            let step = self.clock.now.step;
            self.records.ooms.count_oom(event.device, step, &mut self.accounts.devices);
        }
    }

    /// Begins the scope if `since` is a step that has begun.
    pub(super) fn on_step_begin(&mut self) {
        if let Some(SinceScope { spec: spec @ TimeSpec::Step(_), reached: None }) = &self.scope.since
            && spec.is_reached(0, self.clock.now.step)
        {
            self.begin_scope(self.clock.now.time_ns);
        }
    }

    /// Records a named mark, and takes snapshots or begins the scope if it was awaited.
    #[cold]
    pub(super) fn on_mark(&mut self, event: &Event) {
        let Some(name) = mark_name(event, self.symbols.definitions()) else { return };
        let is_since = self.scope.since_mark.as_mut().is_some_and(|awaited| awaited.observe(name));
        let due = self.records.snapshots.schedule.take_due_at_mark(name);
        let (Records { snapshots, .. }, mut present) = self.split_records();
        snapshots.take(&due, &mut present);
        let PresentState { accounts, now, .. } = present;
        for (ordinal, device) in (0..=u8::MAX).zip(&mut accounts.devices.all) {
            if let Some(device) = device {
                device.keep_state(KeyframeReason::Mark, now, accounts.driver.ranges(), ordinal);
            }
        }
        if is_since {
            self.begin_scope(now.time_ns);
        }
    }

    /// Begins the analysed part: rebases all state and drops records of earlier events.
    #[cold]
    fn begin_scope(&mut self, time_ns: u64) {
        let now = EventTime { time_ns, step: self.clock.now.step };
        let rest_ns = self.scope.end_ns.map_or(0, |end| end.saturating_sub(time_ns));
        self.accounts.restart(now, rest_ns);
        self.records.restart();
        self.end.restart();
        self.analyses.restart();
        self.clock.phases.restart(time_ns, self.accounts.devices.torch_live_bytes());
        if let Some(since) = &mut self.scope.since {
            since.reached = Some(now);
        }
    }
}
