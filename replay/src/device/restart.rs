//! Restarts a device in the middle of a run (`--since`).

use super::{DeviceState, ReservedPeakLevels};
use crate::fragmentation::history::GapHistory;
use crate::state::driver::DriverState;
use crate::state::live_set::StateSample;

impl DeviceState {
    /// Restarts all measurements with the memory allocated at present
    /// ([`crate::state::live_set::LiveSet::rebase`]).
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, rest_ns: u64, driver: &DriverState) {
        self.torch.rebase(time_ns, rest_ns);
        self.driver.rebase(time_ns, rest_ns);
        let device = self.driver.total().bytes;
        self.driver_peak.restart(device);
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device };
        self.withdraw_end();
        let now = StateSample { time_ns, step: self.torch.steps_ended(), reserved: self.reserved, device };
        self.moments.restart(self.present_moment(now, driver), self.present_gap());
        self.attribution.restart(time_ns);
        self.gap_history = GapHistory::default();
    }
}
