//! Restarts a device in the middle of a run (`--since`).

use super::{DeviceState, ReservedPeakLevels};
use crate::fragmentation::history::GapHistory;
use crate::state::driver::DriverState;
use crate::state::live_set::StateSample;

impl DeviceState {
    /// Begins the recorded history, after events that described the memory from before it. While
    /// those add one segment and block after the other, the gap means nothing.
    #[cold]
    pub(crate) fn begin_history(&mut self, time_ns: u64, driver: &DriverState) {
        let device = self.driver.total().bytes;
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device };
        let now = StateSample { time_ns, step: self.torch.steps_ended(), reserved: self.reserved, device };
        self.moments.restart(self.present_moment(now, driver), self.present_gap());
        self.gap_history = GapHistory::default();
    }

    /// Restarts all measurements with the memory allocated at present
    /// ([`crate::state::live_set::LiveSet::rebase`]).
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, rest_ns: u64, driver: &DriverState) {
        self.torch.rebase(time_ns, rest_ns);
        self.driver.rebase(time_ns, rest_ns);
        let device = self.driver.total().bytes;
        self.driver_peak.restart(device);
        self.last_step = None;
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device };
        self.withdraw_end();
        let now = StateSample { time_ns, step: self.torch.steps_ended(), reserved: self.reserved, device };
        self.moments.restart(self.present_moment(now, driver), self.present_gap());
        self.attribution.restart(time_ns);
        self.refresh_sleep();
        self.sleep.restart(self.torch_levels());
        self.gap_history = GapHistory::default();
    }
}
