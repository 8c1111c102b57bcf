//! The state of a device at the end of the program ([`crate::pass::program_end`]).
//!
//! The end is set when teardown may have begun, and withdrawn when the program goes on. Both are
//! O(1): blocks, segments and ranges that teardown removes are kept, as for the peak.

use super::DeviceState;
use crate::event_analysis::EventTime;
use crate::fragmentation::{AllocatorSnapshot, PresentState};
use crate::state::driver::DriverState;
use crate::state::live_set::StateSample;

/// Bytes of a device at the end of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepEndLevels {
    /// Nanoseconds on the trace's clock.
    pub time_ns: u64,
    /// Number of the step.
    pub step: u32,
    /// Bytes in live blocks of PyTorch.
    pub live: u64,
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
}

/// Bytes of a device at the end of the program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndLevels {
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
    /// Bytes of live blocks without memory.
    pub asleep_live: u64,
}

impl DeviceState {
    /// Sets the end of the program to the present moment.
    pub(crate) fn set_end(&mut self, time: EventTime, driver: &DriverState) {
        let EventTime { time_ns, step } = time;
        if self.sleep.is_outdated() {
            self.refresh_sleep();
        }
        let (reserved, device) = (self.reserved, self.driver.total().bytes);
        self.torch.set_end();
        self.driver.set_end();
        self.end_levels = EndLevels { reserved, device, asleep_live: self.sleep.asleep_live };
        let now = StateSample { time_ns, step, reserved, device };
        self.moments.set_end(self.present_moment(now, driver));
    }

    /// Withdraws the end, because the program goes on.
    pub(crate) fn withdraw_end(&mut self) {
        self.torch.withdraw_end();
        self.driver.withdraw_end();
        self.moments.withdraw_end();
    }

    /// Reserved and driver bytes at the end of the program. Live bytes are
    /// [`crate::state::live_set::LiveSet::end_total`].
    pub(crate) fn end_levels(&self) -> EndLevels {
        self.end_levels
    }

    /// The state of the allocator at the end of the program.
    pub(super) fn end_snapshot(&self, present: PresentState<'_>) -> AllocatorSnapshot<'static> {
        let blocks = self.torch.end_blocks().collect::<Vec<_>>().into();
        AllocatorSnapshot { blocks, ..self.moments.end().snapshot(present) }
    }
}
