//! Moments that somebody asked for: what was held then, by whom, and what of it nobody used.
//!
//! Constraint: nothing may be asked of every event for it. Consequence: the pass knows one time, that of the next moment or of the next look at
//! the gap ([`crate::fragmentation::history`]); a slice of events that ends before it goes through untouched. Steps and marks announce themselves.
//!
//! Definition: the state at a time is that after every event up to it; the state at `step:N` is that before the first event of step N, the
//! state at `mark:NAME` that before the mark.

use crate::callsite::symbols::SiteId;
use crate::fragmentation::Gap;
use crate::fragmentation::history::MAX_OBSERVATIONS;
use crate::timeline::marks::AwaitedMark;
use crate::timeline::time_spec::TimeSpec;
use crate::util::block_totals::BlockTotals;

/// A moment that came.
#[derive(Debug)]
pub(crate) struct SnapshotRecord {
    /// As it was asked for.
    pub asked: TimeSpec,
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
    /// What was held, by device.
    pub devices: Vec<(u8, DeviceSnapshot)>,
}

/// A device at a moment.
#[derive(Debug)]
pub(crate) struct DeviceSnapshot {
    /// Blocks of PyTorch's allocator were seen; else all of it is of the driver.
    pub has_torch: bool,
    /// Live bytes of that layer.
    pub live: u64,
    /// Held by PyTorch.
    pub reserved: u64,
    /// Handed out by the driver.
    pub device_bytes: u64,
    /// Who held the live bytes, most first; they sum to it.
    pub sites: Vec<(SiteId, BlockTotals)>,
    /// What was reserved and not used, where PyTorch's allocator was seen.
    pub gap: Option<Gap>,
}

/// How often the gap is looked at where nobody knows how long the run lasts.
const SHORTEST_REST_NS: u64 = 1_000_000;

/// What is still to come.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSchedule {
    /// Times, latest first.
    times: Vec<(u64, TimeSpec)>,
    /// Steps, last first.
    steps: Vec<(u32, TimeSpec)>,
    marks: Vec<(AwaitedMark, TimeSpec)>,
    look_ns: u64,
    rest_ns: u64,
    observations: usize,
}

impl SnapshotSchedule {
    pub(crate) fn new(asked: &[TimeSpec], start_ns: u64, span_ns: u64) -> Self {
        let mut times = Vec::new();
        let mut steps = Vec::new();
        let mut marks = Vec::new();
        for when in asked {
            match when {
                TimeSpec::Elapsed { time_ns } => {
                    times.push((start_ns.saturating_add(*time_ns), when.clone()));
                }
                TimeSpec::Step(step) => steps.push((*step, when.clone())),
                TimeSpec::Mark(name) => marks.push((AwaitedMark::new(name), when.clone())),
            }
        }
        times.sort_by_key(|(time_ns, _)| std::cmp::Reverse(*time_ns));
        steps.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
        let rest_ns = (span_ns / MAX_OBSERVATIONS as u64).max(SHORTEST_REST_NS);
        Self { times, steps, marks, look_ns: start_ns.saturating_add(rest_ns), rest_ns, observations: 0 }
    }

    /// Events up to this time go through.
    pub(crate) fn next_ns(&self) -> u64 {
        self.times.last().map_or(self.look_ns, |(time_ns, _)| self.look_ns.min(*time_ns))
    }

    /// The moments that have come when an event of this time is next.
    pub(crate) fn due_at(&mut self, time_ns: u64) -> Vec<TimeSpec> {
        let mut come = Vec::new();
        while let Some((_, when)) = self.times.pop_if(|(at, _)| *at < time_ns) {
            come.push(when);
        }
        come
    }

    /// The moments that come with this step.
    pub(crate) fn at_step(&mut self, steps_begun: u32) -> Vec<TimeSpec> {
        let mut come = Vec::new();
        while let Some((_, when)) = self.steps.pop_if(|(step, _)| *step <= steps_begun) {
            come.push(when);
        }
        come
    }

    /// The moments that come with this mark.
    pub(crate) fn at_mark(&mut self, name: &str) -> Vec<TimeSpec> {
        self.marks.extract_if(.., |(awaited, _)| awaited.observe(name)).map(|(_, when)| when).collect()
    }

    /// True if the gap is to be looked at now; then not again for a while.
    pub(crate) fn is_gap_due(&mut self, time_ns: u64) -> bool {
        if time_ns <= self.look_ns {
            return false;
        }
        self.observations += 1;
        // In a run of unknown length the rests become longer with it.
        if self.observations.is_multiple_of(MAX_OBSERVATIONS) {
            self.rest_ns = self.rest_ns.saturating_mul(2);
        }
        let missed = (time_ns - self.look_ns) / self.rest_ns;
        self.look_ns = self.look_ns.saturating_add((missed + 1).saturating_mul(self.rest_ns));
        true
    }

    /// What never came.
    pub(crate) fn unreached(self) -> Vec<TimeSpec> {
        let times = self.times.into_iter().map(|(_, when)| when);
        let steps = self.steps.into_iter().map(|(_, when)| when);
        times.chain(steps).chain(self.marks.into_iter().map(|(_, when)| when)).collect()
    }
}
