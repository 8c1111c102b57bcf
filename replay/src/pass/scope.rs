//! A part of a run: from a moment on (`--since`), or of one stream (`--stream`).
//!
//! Constraint: the pass has no time for a question per event. Consequence: what has to be asked is asked per slice of events, and
//! only by whoever wants a part: a slice is split at the moment, at which the books begin anew; of the events of other streams
//! only what tells steps and losses is taken.

use gpumemtrace_format::{Event, EventKind};

use super::Pass;
use crate::pass::stream_filter::{Of, OneStream};
use crate::state::mps_samples::TorchMemory;
use crate::timeline::marks::{Awaited, Mark, Marks, name_of};
use crate::timeline::time_spec::When;

/// From when on a report tells of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// As it was asked for.
    pub asked: When,
    /// The moment, if it came: when, and how many steps had begun.
    pub come: Option<(u64, u32)>,
}

/// What of the run is wanted.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) since: Option<Since>,
    /// The mark that it is, where it is one.
    pub(super) since_mark: Option<Awaited>,
    pub(super) stream: Option<OneStream>,
    /// The step before the peak too.
    pub(super) follows_step_peaks: bool,
    /// When the recording began and when it ended, as far as the file says so.
    pub(super) started_ns: Option<u64>,
    pub(super) end_ns: Option<u64>,
}

impl Part {
    pub(super) fn is_all(&self) -> bool {
        self.since.is_none() && self.stream.is_none()
    }

    /// The first event that is past the moment.
    fn split(&self, events: &[Event], first_ns: Option<u64>) -> Option<(usize, u64)> {
        let Some(Since { asked: When::Elapsed { time_ns }, come: None }) = &self.since else { return None };
        let time_ns = *time_ns;
        let started = self.started_ns.or(first_ns).or(events.first().map(|event| event.time_ns))?;
        let is_past = |event: &Event| {
            let elapsed = event.time_ns.saturating_sub(started);
            When::Elapsed { time_ns }.has_come(elapsed, 0)
        };
        Some((events.iter().position(is_past)?, started.saturating_add(time_ns)))
    }
}

impl Pass {
    #[cold]
    #[inline(never)]
    pub(super) fn events_of_part(&mut self, events: &[Event]) {
        let Some((at, time_ns)) = self.part.split(events, self.first_ns) else {
            return self.events_of_stream(events);
        };
        let (before, after) = events.split_at(at);
        self.events_of_stream(before);
        self.restart(time_ns);
        self.events_of_stream(after);
    }

    fn events_of_stream(&mut self, events: &[Event]) {
        let Some(mut stream) = self.part.stream.take() else { return self.each(events) };
        let mut own: Vec<Event> = Vec::new();
        for event in events {
            match stream.take(event, &mut own) {
                Of::It => {}
                Of::Others => {
                    // In order: what a step is depends on all that came before.
                    self.each(&own);
                    own.clear();
                    self.of_others(event);
                }
            }
        }
        self.each(&own);
        self.part.stream = Some(stream);
    }

    /// An event that is no part of the report, and of the run.
    fn of_others(&mut self, event: &Event) {
        self.seen(event);
        if event.kind == EventKind::BLOCK_OOM {
            self.count_oom(event);
        }
    }

    pub(super) fn count_oom(&mut self, event: &Event) {
        self.oom_count += 1;
        *self.oom_counts.entry(event.device).or_default() += 1;
    }

    /// Steps have begun: the moment may be one of them.
    pub(super) fn steps_have_begun(&mut self) {
        if let Some(Since { asked: asked @ When::Step(_), come: None }) = &self.part.since
            && asked.has_come(0, self.step)
        {
            self.restart(self.time_ns);
        }
    }

    /// The program has made a mark.
    #[cold]
    pub(super) fn mark(&mut self, event: &Event) {
        let Some(name) = name_of(event, self.symbols.definitions()) else { return };
        let mark = Mark { name: name.to_owned(), time_ns: self.time_ns, step: self.step };
        let come = self.alarms.at_mark(&mark.name);
        self.take_instants(&come);
        if self.part.since_mark.as_mut().is_some_and(|awaited| awaited.is_it(&mark.name)) {
            self.restart(self.time_ns);
        }
        self.marks.note(mark);
    }

    /// The report begins here.
    #[cold]
    fn restart(&mut self, time_ns: u64) {
        let rest_ns = self.part.end_ns.map_or(0, |end| end.saturating_sub(time_ns));
        for device in self.devices.all.iter_mut().flatten() {
            device.restart(time_ns, rest_ns, &self.driver);
        }
        // Devices that come later, too.
        self.devices.span_ns = rest_ns;
        self.devices.first_step = self.step;
        self.host.restart(time_ns, rest_ns);
        for (place, peak) in &mut self.apart_peaks {
            *peak = self.apart.of(*place);
        }
        self.marks = Marks::default();
        self.torch_memory = TorchMemory::default();
        self.phases.restart(time_ns, self.devices.held());
        self.ooms.clear();
        self.oom_count = 0;
        self.oom_counts.clear();
        if let Some(since) = &mut self.part.since {
            since.come = Some((time_ns, self.step));
        }
    }
}
