//! Restarts a device in the middle of a run (`--since`).

use super::{DeviceState, ReservedPeakLevels};
use crate::fragmentation::ReservedPeak;
use crate::fragmentation::history::GapHistory;
use crate::state::driver::DriverState;

impl DeviceState {
    /// Restarts all measurements with the memory allocated at present
    /// ([`crate::state::live_set::LiveSet::rebase`]).
    #[cold]
    pub(crate) fn restart(&mut self, time_ns: u64, rest_ns: u64, driver: &DriverState) {
        self.torch.rebase(time_ns, rest_ns);
        self.driver.rebase(time_ns, rest_ns);
        let device = self.driver.total().bytes;
        self.peak_device = device;
        self.reserved_peak = ReservedPeakLevels { reserved: self.reserved, device };
        self.peak_state.set_peak(ReservedPeak {
            reserved: self.reserved,
            time_ns,
            step: self.torch.steps_ended(),
            request: None,
            newest_block: self.torch.events,
            newest_range: driver.ranges_created(),
            newest_segment: self.segments.created(),
        });
        self.attribution.restart(time_ns);
        self.gap_history = GapHistory::default();
        self.withdraw_end();
    }
}
