//! The state of a device at the end of the program ([`crate::pass::program_end`]).
//!
//! The end is set when teardown may have begun, and withdrawn when the program goes on. Both are
//! O(1): blocks, segments and ranges that teardown removes are kept, as for the peak.

use std::collections::BTreeMap;

use super::{DeviceState, TimedGap};
use crate::event_analysis::EventTime;
use crate::fragmentation::{AllocatorSnapshot, ReservedPeak, explain_gap};
use crate::state::driver::{DriverState, MemoryRange};
use crate::util::ids::{SiteId, StackId};

/// Bytes of a device at the end of the program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndLevels {
    /// Bytes reserved by PyTorch's allocator.
    pub reserved: u64,
    /// Bytes allocated from the driver.
    pub device: u64,
}

impl DeviceState {
    /// Sets the end of the program to the present moment.
    pub(crate) fn set_end(&mut self, time: EventTime, driver: &DriverState) {
        self.torch.set_end();
        self.driver.set_end();
        self.end_levels = EndLevels { reserved: self.reserved, device: self.driver.total().bytes };
        self.end_state.set_peak(ReservedPeak {
            reserved: self.reserved,
            time_ns: time.time_ns,
            step: time.step,
            request: None,
            newest_block: self.torch.end_event(),
            newest_range: driver.ranges_created(),
            newest_segment: self.segments.created(),
        });
    }

    /// Withdraws the end, because the program goes on.
    pub(crate) fn withdraw_end(&mut self) {
        self.torch.withdraw_end();
        self.driver.withdraw_end();
        self.end_state.set_peak(ReservedPeak::default());
    }

    /// Reserved and driver bytes at the end of the program. Live bytes are
    /// [`crate::state::live_set::LiveSet::end_total`].
    pub(crate) fn end_levels(&self) -> EndLevels {
        self.end_levels
    }

    /// Explains the gap at the end of the program.
    pub(super) fn explain_gap_at_end(
        &self,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) -> TimedGap {
        let state =
            self.end_state.snapshot(self.torch.live(), &self.pending, &self.segments, ranges, ordinal);
        let blocks = self.torch.end_blocks().into_iter().map(|one| (one.addr, one.block)).collect();
        let snapshot = AllocatorSnapshot { blocks, ..state };
        let gap = explain_gap(&snapshot, &self.torch_ranges, site);
        TimedGap { time_ns: snapshot.time_ns, reserved: snapshot.reserved, gap }
    }
}
