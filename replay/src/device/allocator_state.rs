//! The present state of PyTorch's allocator on a device, and what follows from it.

use std::collections::BTreeMap;

use super::{DeviceState, GapRequest};
use crate::fragmentation::{AllocatorSnapshot, Gap, explain_gap, ranges_of_device, units_by_stacks};
use crate::state::driver::MemoryRange;
use crate::util::ids::{SiteId, StackId};

impl DeviceState {
    /// Explains the gap in the present state. Visits every live block.
    pub(crate) fn explain_gap(
        &self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
        site: impl Fn(StackId) -> SiteId,
    ) -> Gap {
        explain_gap(&self.snapshot(request, ranges, ordinal), &self.torch_ranges, site)
    }

    /// Bytes of segments, and of pages of expandable ones, by the stacks of the blocks in them.
    /// `None` if segments are unknown. Visits every live block.
    pub(crate) fn units_by_stacks(
        &self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
    ) -> Option<BTreeMap<Vec<StackId>, u64>> {
        units_by_stacks(&self.snapshot(request, ranges, ordinal), &self.torch_ranges)
    }

    /// The present state of the allocator.
    fn snapshot(
        &self,
        request: GapRequest,
        ranges: &BTreeMap<u64, MemoryRange>,
        ordinal: u8,
    ) -> AllocatorSnapshot {
        AllocatorSnapshot {
            time_ns: request.time_ns,
            reserved: request.reserved,
            request: request.pool,
            blocks: self.torch.live().iter().map(|(addr, block)| (addr, *block)).collect(),
            pending: self.pending.iter().map(|(addr, pending)| (*addr, pending.block)).collect(),
            segments: self.segments.iter().copied().collect(),
            ranges: ranges_of_device(ranges, ordinal),
        }
    }
}
