//! The extremes of a device's series in intervals of equal length.

use std::ops::ControlFlow;

use super::levels::{LevelTracker, Levels};
use crate::export::ExportRun;

/// Limit on the number of intervals of a window.
pub(in crate::export) const MAX_INTERVALS: u64 = 4096;
/// Limit on the intervals of all devices together.
const MAX_INTERVALS_OF_ALL: u64 = 16_384;

/// One interval. One without events has the values before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::export) struct LevelInterval {
    /// The least value of each series.
    pub(in crate::export) least: Levels,
    /// The greatest value of each series.
    pub(in crate::export) most: Levels,
    /// Number of steps begun at its end.
    pub(in crate::export) step: u32,
}

/// The intervals of one device, from its first event to the end of the window.
#[derive(Clone, Debug)]
pub(in crate::export) struct DeviceIntervals {
    /// Begin of the first interval, in nanoseconds since the start of recording.
    start_ns: u64,
    /// Length of each interval.
    width_ns: u64,
    intervals: Vec<LevelInterval>,
    last: LevelInterval,
}

impl DeviceIntervals {
    /// Intervals from `start_ns` on, which begin with these levels.
    fn new(start_ns: u64, width_ns: u64, levels: Levels, step: u32) -> Self {
        let last = LevelInterval { least: levels, most: levels, step };
        Self { start_ns, width_ns, intervals: vec![last], last }
    }

    /// Begins with other levels.
    fn restart(&mut self, levels: Levels, step: u32) {
        self.last = LevelInterval { least: levels, most: levels, step };
        self.intervals[0] = self.last;
    }

    /// Records the levels after an event. Times ascend.
    fn observe(&mut self, time_ns: u64, levels: Levels, step: u32) {
        self.extend_to(time_ns);
        self.last = LevelInterval { least: levels, most: levels, step };
        if let Some(interval) = self.intervals.last_mut() {
            interval.least = interval.least.merge(levels, u64::min);
            interval.most = interval.most.merge(levels, u64::max);
            interval.step = step;
        }
    }

    /// Appends intervals until the last one contains the time.
    fn extend_to(&mut self, time_ns: u64) {
        let index = (time_ns.saturating_sub(self.start_ns) / self.width_ns).min(MAX_INTERVALS - 1);
        let len = self.intervals.len().max(index as usize + 1);
        self.intervals.resize(len, self.last);
    }

    /// The intervals with their begin and end, in nanoseconds since the start of recording.
    pub(in crate::export) fn iter(&self) -> impl Iterator<Item = ((u64, u64), &LevelInterval)> {
        let begins = (0u64..).map(|index| self.start_ns.saturating_add(index.saturating_mul(self.width_ns)));
        begins.map(|begin_ns| (begin_ns, begin_ns.saturating_add(self.width_ns))).zip(&self.intervals)
    }
}

/// Walks the window of a run; returns the intervals of each device, by ordinal.
pub(in crate::export) fn read_intervals(run: &mut ExportRun) -> anyhow::Result<Vec<(u8, DeviceIntervals)>> {
    let (begin_ns, end_ns) = run.window.span_ns;
    let devices = run.history.devices.len().max(1) as u64;
    let max_intervals = (MAX_INTERVALS_OF_ALL / devices).clamp(1, MAX_INTERVALS);
    let width_ns = (end_ns.saturating_sub(begin_ns) / max_intervals + 1).max(1);
    let mut tracker = LevelTracker::default();
    let mut devices: Vec<Option<DeviceIntervals>> = vec![None; 256];
    let mut step = 0;
    run.walk(&mut |walked| {
        step = walked.step;
        tracker.on_event(walked, |device, levels| {
            if !walked.is_inside {
                // The window begins with the levels before its first event.
                let first = || DeviceIntervals::new(begin_ns, width_ns, levels, step);
                devices[usize::from(device)].get_or_insert_with(first).restart(levels, step);
                return;
            }
            let first = || {
                let offset_ns = walked.time_ns.saturating_sub(begin_ns) / width_ns * width_ns;
                DeviceIntervals::new(begin_ns + offset_ns, width_ns, levels, step)
            };
            devices[usize::from(device)].get_or_insert_with(first).observe(walked.time_ns, levels, step);
        });
        ControlFlow::Continue(())
    })?;
    let mut found = Vec::new();
    for (device, intervals) in (0..=u8::MAX).zip(devices) {
        if let Some(mut intervals) = intervals {
            intervals.extend_to(end_ns);
            found.push((device, intervals));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(live_bytes: u64) -> Levels {
        Levels { live_bytes, ..Levels::default() }
    }

    #[test]
    fn intervals_keep_extremes_and_the_value_before() {
        let mut device = DeviceIntervals::new(100, 10, live(5), 0);
        device.observe(103, live(9), 1);
        device.observe(104, live(2), 1);
        device.observe(135, live(7), 3);
        device.extend_to(149);
        let found: Vec<_> = device
            .iter()
            .map(|(span, interval)| {
                (span, interval.least.live_bytes, interval.most.live_bytes, interval.step)
            })
            .collect();
        assert_eq!(
            found,
            [
                ((100, 110), 2, 9, 1),
                ((110, 120), 2, 2, 1),
                ((120, 130), 2, 2, 1),
                ((130, 140), 2, 7, 3),
                ((140, 150), 7, 7, 3),
            ]
        );
    }

    #[test]
    fn times_after_the_window_add_no_interval() {
        let mut device = DeviceIntervals::new(0, 1, live(0), 0);
        device.observe(u64::MAX, live(1), 0);
        assert_eq!(device.iter().count() as u64, MAX_INTERVALS);
    }
}
