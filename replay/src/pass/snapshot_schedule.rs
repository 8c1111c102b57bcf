//! The schedule of requested snapshots, and of regular observations of the gap.
//!
//! Definition: the snapshot of a time is the state after all events up to it. That of `step:N` is
//! the state before the first event of step N, and that of `mark:NAME` the state before the mark.
//! The snapshots of `peak` and `end` are reconstructed after the last event.
//!
//! The pass compares one time per slice of events, that of the next snapshot or gap observation
//! ([`crate::fragmentation::history`]), so events cost nothing more. Steps and marks check the
//! schedule when they occur.

use crate::device::DeviceState;
use crate::event_analysis::EventTime;
use crate::fragmentation::Gap;
use crate::fragmentation::history::MAX_OBSERVATIONS;
use crate::timeline::marks::AwaitedMark;
use crate::timeline::time_spec::TimeSpec;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::SiteId;

/// A snapshot of all devices.
#[derive(Debug)]
pub(crate) struct SnapshotRecord {
    /// The moment as the user gave it.
    pub spec: TimeSpec,
    pub time: EventTime,
    /// Devices by ascending ordinal.
    pub devices: Vec<(u8, DeviceSnapshot)>,
}

/// A snapshot of one device.
#[derive(Debug)]
pub(crate) struct DeviceSnapshot {
    /// The last event before the moment, which is each device's own for its peak.
    pub time: EventTime,
    /// `live` and `sites` are of PyTorch's blocks; else of driver memory.
    pub has_torch: bool,
    /// Bytes in live blocks.
    pub live: u64,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device_bytes: u64,
    /// Live blocks by site, most bytes first. The bytes sum to `live`.
    pub sites: Vec<(SiteId, BlockTotals)>,
    /// The gap between reserved and allocated memory; `None` without PyTorch, and at the peak and
    /// the end, for which [`DeviceState`] has its own.
    pub gap: Option<Gap>,
}

/// Minimum time between gap observations; also the first interval in a run of unknown length.
const MIN_GAP_INTERVAL_NS: u64 = 1_000_000;

/// The snapshots and gap observations that are still to come.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSchedule {
    /// Snapshots at times, latest first.
    times: Vec<(u64, TimeSpec)>,
    /// Snapshots at steps, last first.
    steps: Vec<(u32, TimeSpec)>,
    marks: Vec<(AwaitedMark, TimeSpec)>,
    /// Snapshots of the peak and the end.
    after_run: Vec<TimeSpec>,
    /// Time of the next gap observation.
    next_gap_ns: u64,
    gap_interval_ns: u64,
    gap_observations: usize,
}

impl DeviceSnapshot {
    /// A finished device at its peak.
    pub(crate) fn at_peak(device: &DeviceState) -> Self {
        let (live_set, peak) = (device.main(), device.main().peak());
        Self {
            time: EventTime { time_ns: peak.time_ns, step: peak.step },
            has_torch: device.has_torch(),
            live: peak.live,
            reserved: peak.reserved,
            device_bytes: peak.device,
            sites: live_set.peak_sites(),
            gap: None,
        }
    }

    /// A finished device at the end of the program, which is at `time`.
    pub(crate) fn at_end(device: &DeviceState, time: EventTime) -> Self {
        let (live_set, levels) = (device.main(), device.end_levels());
        Self {
            time,
            has_torch: device.has_torch(),
            live: live_set.end_total().bytes,
            reserved: levels.reserved,
            device_bytes: levels.device,
            sites: live_set.end_sites(),
            gap: None,
        }
    }
}

impl SnapshotSchedule {
    /// Schedules `snapshots` for a run that starts at `start_ns` and has the length `span_ns` (0 if
    /// unknown).
    pub(crate) fn new(snapshots: &[TimeSpec], start_ns: u64, span_ns: u64) -> Self {
        let mut times = Vec::new();
        let mut steps = Vec::new();
        let mut marks = Vec::new();
        let mut after_run = Vec::new();
        for spec in snapshots {
            match spec {
                TimeSpec::Elapsed { time_ns } => {
                    times.push((start_ns.saturating_add(*time_ns), spec.clone()));
                }
                TimeSpec::Step(step) => steps.push((*step, spec.clone())),
                TimeSpec::Mark(name) => marks.push((AwaitedMark::new(name), spec.clone())),
                TimeSpec::Peak | TimeSpec::End => after_run.push(spec.clone()),
            }
        }
        times.sort_by_key(|(time_ns, _)| std::cmp::Reverse(*time_ns));
        steps.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
        let gap_interval_ns = (span_ns / MAX_OBSERVATIONS as u64).max(MIN_GAP_INTERVAL_NS);
        let next_gap_ns = start_ns.saturating_add(gap_interval_ns);
        Self { times, steps, marks, after_run, next_gap_ns, gap_interval_ns, gap_observations: 0 }
    }

    /// The time of the next snapshot or gap observation. Nothing is due at events up to it.
    pub(crate) fn next_ns(&self) -> u64 {
        self.times.last().map_or(self.next_gap_ns, |(time_ns, _)| self.next_gap_ns.min(*time_ns))
    }

    /// Takes the snapshots at times before `time_ns`, the time of the next event.
    pub(crate) fn take_due_before(&mut self, time_ns: u64) -> Vec<TimeSpec> {
        let mut due = Vec::new();
        while let Some((_, spec)) = self.times.pop_if(|(at, _)| *at < time_ns) {
            due.push(spec);
        }
        due
    }

    /// Takes the snapshots at steps up to `steps_begun`.
    pub(crate) fn take_due_at_step(&mut self, steps_begun: u32) -> Vec<TimeSpec> {
        let mut due = Vec::new();
        while let Some((_, spec)) = self.steps.pop_if(|(step, _)| *step <= steps_begun) {
            due.push(spec);
        }
        due
    }

    /// Takes the snapshots at a mark. Call it for every mark, in order.
    pub(crate) fn take_due_at_mark(&mut self, name: &str) -> Vec<TimeSpec> {
        self.marks.extract_if(.., |(awaited, _)| awaited.observe(name)).map(|(_, spec)| spec).collect()
    }

    /// Takes the snapshots of the peak and the end.
    pub(crate) fn take_due_after_run(&mut self) -> Vec<TimeSpec> {
        std::mem::take(&mut self.after_run)
    }

    /// True if a gap observation is due at `time_ns`. Schedules the next one.
    pub(crate) fn take_due_gap(&mut self, time_ns: u64) -> bool {
        if time_ns <= self.next_gap_ns {
            return false;
        }
        self.gap_observations += 1;
        // In a run of unknown length the interval grows with the run.
        if self.gap_observations.is_multiple_of(MAX_OBSERVATIONS) {
            self.gap_interval_ns = self.gap_interval_ns.saturating_mul(2);
        }
        let missed = (time_ns - self.next_gap_ns) / self.gap_interval_ns;
        let delay_ns = (missed + 1).saturating_mul(self.gap_interval_ns);
        self.next_gap_ns = self.next_gap_ns.saturating_add(delay_ns);
        true
    }

    /// The snapshots at moments that the run did not reach.
    pub(crate) fn into_unreached(self) -> Vec<TimeSpec> {
        let times = self.times.into_iter().map(|(_, spec)| spec);
        let steps = self.steps.into_iter().map(|(_, spec)| spec);
        times.chain(steps).chain(self.marks.into_iter().map(|(_, spec)| spec)).collect()
    }
}
