//! The levels of one device of a running program, with their maxima ([`super::follow`]).
//!
//! Every event updates the maxima, so no peak between two readings is missed. A reading may get
//! lost on its way to the monitoring system. [`RecentMax`] therefore forgets a maximum only once
//! the reading that contained it was confirmed.

use gpumemtrace_format::Event;

use crate::report::LevelGauge;
use crate::state::attribution::TorchLevels;
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
    pub(crate) total_bytes: Option<u64>,
    pub(crate) ooms: u64,
}

/// The values of a device for [`crate::report::DeviceGauges`].
pub(crate) struct DeviceReading {
    pub(crate) torch: Option<(LevelGauge, LevelGauge)>,
    pub(crate) driver: Option<LevelGauge>,
    pub(crate) requested: Option<u64>,
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

    pub(crate) fn set_driver_bytes(&mut self, bytes: u64) {
        self.driver.get_or_insert_default().set(bytes);
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
