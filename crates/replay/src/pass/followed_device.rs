//! The levels of one device of a running program, with their maxima ([`super::follow`]).
//!
//! Every event updates the maxima, so no peak between two readings is missed. A reading may get
//! lost on its way to the monitoring system. [`RecentMax`] therefore forgets a maximum only once
//! the reading that contained it was confirmed.

use gpumemtrace_format::Event;

use crate::report::LevelGauge;
use crate::state::attribution::{ByteChanges, MeminfoSample, TorchLevels};
use crate::state::segments::Segments;
use crate::util::ids::StackId;

/// A number of bytes that changes, and its maxima.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    bytes: u64,
    recent: RecentMax,
    peak: u64,
}

/// The maximum since the last confirmed reading.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMax {
    since_reading: u64,
    /// The maximum in readings that were not confirmed.
    unconfirmed: u64,
}

impl Level {
    pub(crate) fn set(&mut self, bytes: u64) {
        self.bytes = bytes;
        self.recent.since_reading = self.recent.since_reading.max(bytes);
        self.peak = self.peak.max(bytes);
    }

    /// Reads the level, and begins a new maximum with its present value. If the reading before is
    /// `confirmed`, its maximum is forgotten.
    fn read(&mut self, confirmed: bool) -> LevelGauge {
        let recent = &mut self.recent;
        if confirmed {
            recent.unconfirmed = 0;
        }
        recent.unconfirmed = recent.unconfirmed.max(recent.since_reading);
        recent.since_reading = self.bytes;
        LevelGauge { bytes: self.bytes, recent_max: recent.unconfirmed, peak: self.peak }
    }
}

/// The state of one device.
#[derive(Debug, Default)]
pub(crate) struct FollowedDevice {
    has_torch: bool,
    allocated: Level,
    reserved: Level,
    /// Bytes from the driver; `None` before the first.
    driver: Option<Level>,
    segments: Segments,
    /// Sums over the live blocks that were seen.
    block_bytes: u64,
    requested: u64,
    /// Live blocks whose request is unknown.
    unknown_requests: u64,
    /// The events that changed the bytes from the driver.
    changes: ByteChanges,
    /// The last sample of memory in use with a known residual, of the best source.
    sample: Option<MeminfoSample>,
    pub(crate) total_bytes: Option<u64>,
    pub(crate) ooms: u64,
    pub(crate) last_oom_ns: Option<u64>,
}

/// The values of a device for [`crate::report::DeviceGauges`].
pub(crate) struct DeviceReading {
    pub(crate) torch: Option<(LevelGauge, LevelGauge)>,
    pub(crate) driver: Option<LevelGauge>,
    pub(crate) requested: Option<u64>,
    pub(crate) unaccounted: Option<u64>,
}

impl FollowedDevice {
    /// Sets the totals of a block event.
    pub(crate) fn set_torch_levels(&mut self, TorchLevels { live, reserved }: TorchLevels) {
        self.has_torch = true;
        self.allocated.set(live);
        self.reserved.set(reserved);
    }

    /// Allocated and reserved bytes; `None` before the first block of PyTorch.
    pub(crate) fn torch_levels(&self) -> Option<TorchLevels> {
        let levels = TorchLevels { live: self.allocated.bytes, reserved: self.reserved.bytes };
        self.has_torch.then_some(levels)
    }

    /// Sets the bytes from the driver after a call.
    pub(crate) fn set_driver_bytes(&mut self, bytes: u64, call: &Event) {
        self.driver.get_or_insert_default().set(bytes);
        self.changes.note(call);
    }

    /// Adds a sample of memory in use, while driver pools keep `pooled` bytes free. The rules are
    /// those of reports ([`crate::state::attribution`]).
    pub(crate) fn add_sample(&mut self, event: &Event, pooled: u64) {
        let allocated = self.driver.map_or(0, |driver| driver.bytes);
        let sample = MeminfoSample::of_event(event, (allocated, pooled), event.time_ns);
        let is_worse = self.sample.is_some_and(|before| before.source < sample.source);
        if !is_worse && !self.changes.is_torn(event) && sample.residual().is_some() {
            self.sample = Some(sample);
        }
    }

    /// Counts an out-of-memory error of PyTorch.
    pub(crate) fn add_oom(&mut self, time_ns: u64) {
        self.ooms += 1;
        self.last_oom_ns = self.last_oom_ns.max(Some(time_ns));
    }

    /// Counts a block; `requested` is `None` if its request is unknown.
    pub(crate) fn add_block(&mut self, bytes: u64, requested: Option<u64>) {
        self.block_bytes = self.block_bytes.saturating_add(bytes);
        self.requested = self.requested.saturating_add(requested.unwrap_or(0));
        self.unknown_requests += u64::from(requested.is_none());
    }

    /// Reverts [`Self::add_block`], with the same values.
    pub(crate) fn remove_block(&mut self, bytes: u64, requested: Option<u64>) {
        self.block_bytes = self.block_bytes.saturating_sub(bytes);
        self.requested = self.requested.saturating_sub(requested.unwrap_or(0));
        self.unknown_requests -= u64::from(requested.is_none());
    }

    /// Applies an event of a segment. PyTorch reports its new reserved total only with the next
    /// block, so it follows the segments if they summed to it before.
    pub(crate) fn on_segment_event(&mut self, event: &Event, stack: StackId) {
        let has_all_segments = self.segments.bytes() == self.reserved.bytes;
        self.segments.on_event(event, stack);
        if has_all_segments && self.has_torch {
            self.reserved.set(self.segments.bytes());
        }
    }

    /// Reads all values; maxima begin anew.
    pub(crate) fn read(&mut self, confirmed: bool) -> DeviceReading {
        // Blocks from before the recording count as allocated, but their requests are unknown.
        let knows_requests = self.unknown_requests == 0
            && self.segments.bytes() == self.reserved.bytes
            && self.block_bytes == self.allocated.bytes;
        DeviceReading {
            torch: self.has_torch.then(|| (self.allocated.read(confirmed), self.reserved.read(confirmed))),
            driver: self.driver.as_mut().map(|driver| driver.read(confirmed)),
            requested: (self.has_torch && knows_requests).then_some(self.requested),
            unaccounted: self.sample.and_then(|sample| sample.residual()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::event::{SAMPLE_SOURCE_NVML, SAMPLE_SOURCE_RECORDER};
    use gpumemtrace_format::{EventKind, ThreadId};

    #[test]
    fn unaccounted_bytes_are_those_of_the_last_sample_of_the_best_source() {
        let event = |seq: u64, thread, began_at_seq, size, source| {
            let kind = u64::from(EventKind::MEMORY_SAMPLE.0) | 1 << 48;
            let sample = Event::from_words(&[0, 0, 0, size, 100, source, 0, kind], ThreadId(thread));
            Event { seq, addr: began_at_seq, ..sample.unwrap() }
        };
        let mut device = FollowedDevice::default();
        let unaccounted = |device: &mut FollowedDevice| device.read(false).unaccounted;
        assert_eq!(unaccounted(&mut device), None, "unknown before the first sample");
        device.add_sample(&event(1, 1, 0, 30, SAMPLE_SOURCE_RECORDER), 0);
        assert_eq!(unaccounted(&mut device), Some(30), "the context, before any allocation");
        device.set_driver_bytes(20, &event(2, 1, 0, 0, 0));
        device.add_sample(&event(3, 1, 3, 27, SAMPLE_SOURCE_NVML), 2);
        assert_eq!(unaccounted(&mut device), Some(5), "without what pools keep");
        device.add_sample(&event(4, 1, 4, 90, SAMPLE_SOURCE_RECORDER), 0);
        assert_eq!(unaccounted(&mut device), Some(5), "the driver also counts other processes");
        device.set_driver_bytes(60, &event(6, 2, 0, 0, 0));
        device.add_sample(&event(7, 1, 5, 80, SAMPLE_SOURCE_NVML), 0);
        assert_eq!(unaccounted(&mut device), Some(5), "another thread allocated during the query");
        device.add_sample(&event(8, 1, 8, 50, SAMPLE_SOURCE_NVML), 0);
        assert_eq!(unaccounted(&mut device), Some(5), "less is in use than allocated");
        device.add_sample(&event(9, 1, 9, 68, SAMPLE_SOURCE_NVML), 0);
        assert_eq!(unaccounted(&mut device), Some(8));
    }

    #[test]
    fn maximum_stays_until_its_reading_is_confirmed() {
        let mut level = Level::default();
        level.set(10);
        level.set(3);
        assert_eq!(level.read(false), LevelGauge { bytes: 3, recent_max: 10, peak: 10 });
        level.set(5);
        level.set(4);
        let lost = "the first reading did not arrive";
        assert_eq!(level.read(false), LevelGauge { bytes: 4, recent_max: 10, peak: 10 }, "{lost}");
        level.set(7);
        assert_eq!(level.read(true), LevelGauge { bytes: 7, recent_max: 7, peak: 10 });
        level.set(2);
        assert_eq!(level.read(true), LevelGauge { bytes: 2, recent_max: 7, peak: 10 }, "it began with 7");
        assert_eq!(level.read(true).recent_max, 2);
    }
}
