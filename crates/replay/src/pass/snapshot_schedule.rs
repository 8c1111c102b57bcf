//! The schedule of requested snapshots, beside that of regular observations of the gap.
//!
//! Definition: the snapshot of a time is the state after all events up to it. That of `step:N` is
//! the state before the first event of step N, and that of `mark:NAME` the state before the mark.
//! The snapshots of `peak` and `end` are reconstructed after the last event.
//!
//! The pass compares one time and one number per slice of events, so events cost nothing more.
//! Steps and marks check the schedule when they occur.

use gpumemtrace_format::Event;

use crate::device::DeviceState;
use crate::event_analysis::EventTime;
use crate::fragmentation::Gap;
use crate::fragmentation::gap_schedule::GapSchedule;
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

/// The snapshots and gap observations that are still to come.
#[derive(Debug)]
pub(crate) struct SnapshotSchedule {
    /// Snapshots at times, latest first.
    times: Vec<(u64, TimeSpec)>,
    /// Snapshots at steps, last first.
    steps: Vec<(u32, TimeSpec)>,
    marks: Vec<(AwaitedMark, TimeSpec)>,
    /// Snapshots of the peak and the end.
    after_run: Vec<TimeSpec>,
    /// Observations of the gap.
    pub(crate) gaps: GapSchedule,
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
    /// Schedules `snapshots` for a run that starts at `start_ns` and has so many events (0 if
    /// unknown).
    pub(crate) fn new(snapshots: &[TimeSpec], start_ns: u64, expected_events: u64) -> Self {
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
        Self { times, steps, marks, after_run, gaps: GapSchedule::new(expected_events) }
    }

    /// The time of the next snapshot at a time. None is due at events up to it.
    pub(crate) fn next_ns(&self) -> u64 {
        self.times.last().map_or(u64::MAX, |(time_ns, _)| *time_ns)
    }

    /// Whether nothing is due in these events. Times are nearly in order, so the last event
    /// decides.
    #[inline]
    pub(crate) fn is_idle_during(&self, events: &[Event]) -> bool {
        (events.len() as u64) < self.gaps.events_until_due()
            && events.last().is_none_or(|event| event.time_ns <= self.next_ns())
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

    /// The snapshots at moments that the run did not reach.
    pub(crate) fn take_unreached(&mut self) -> Vec<TimeSpec> {
        let times = std::mem::take(&mut self.times).into_iter().map(|(_, spec)| spec);
        let steps = std::mem::take(&mut self.steps).into_iter().map(|(_, spec)| spec);
        let marks = std::mem::take(&mut self.marks).into_iter();
        times.chain(steps).chain(marks.map(|(_, spec)| spec)).collect()
    }
}
