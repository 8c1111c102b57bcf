//! Live, reserved and driver bytes of each device, event by event.
//!
//! The rules are those of the analysis: `tests/suite/export/test_csv.py` compares the maxima with
//! the report.

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

/// The three series of a device at one moment, or their extremes.
#[allow(clippy::struct_field_names, reason = "the unit")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::export) struct Levels {
    /// Bytes in live blocks of PyTorch's allocator.
    pub(in crate::export) live_bytes: u64,
    /// Bytes reserved by PyTorch's allocator.
    pub(in crate::export) reserved_bytes: u64,
    /// Bytes that the driver handed to the process.
    pub(in crate::export) device_bytes: u64,
}

impl Levels {
    /// Series by series, the value that `pick` chooses.
    pub(in crate::export) fn merge(self, other: Self, pick: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            live_bytes: pick(self.live_bytes, other.live_bytes),
            reserved_bytes: pick(self.reserved_bytes, other.reserved_bytes),
            device_bytes: pick(self.device_bytes, other.device_bytes),
        }
    }
}

/// The present levels of all devices.
#[derive(Debug, Default)]
pub(in crate::export) struct LevelTracker {
    /// The totals of a device are at its ordinal.
    devices: Vec<DeviceTotals>,
}

#[derive(Clone, Debug, Default)]
struct DeviceTotals {
    levels: Levels,
    /// Sum of PyTorch's segments, as far as its tracker reported them.
    segment_bytes: u64,
}

impl LevelTracker {
    /// Applies an event and passes the levels after it, at least of each device that it changed.
    pub(in crate::export) fn on_event(
        &mut self,
        walked: &WalkedEvent<'_>,
        mut visit: impl FnMut(u8, Levels),
    ) {
        let event = walked.event;
        for change in walked.changes {
            self.apply(change);
        }
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                self.device(event.device).levels.reserved_bytes = event.aux[1];
            }
            EventKind::SEGMENT_ALLOC
            | EventKind::SEGMENT_MAP
            | EventKind::SEGMENT_FREE
            | EventKind::SEGMENT_UNMAP => {
                self.device(event.device).on_segment_event(event);
            }
            _ if walked.changes.is_empty() => return,
            _ => {}
        }
        let of_changes = walked.changes.iter().map(|change| change_parts(change).0.device);
        for device in of_changes.filter(|device| *device != event.device).chain([event.device]) {
            if device != NO_DEVICE {
                visit(device, self.device(device).levels);
            }
        }
    }

    fn device(&mut self, ordinal: u8) -> &mut DeviceTotals {
        let index = usize::from(ordinal);
        if self.devices.len() <= index {
            self.devices.resize(index + 1, DeviceTotals::default());
        }
        &mut self.devices[index]
    }

    fn apply(&mut self, change: &BlockChange) {
        let (block, is_alloc) = change_parts(change);
        let levels = &mut self.device(block.device).levels;
        let bytes = match block.layer {
            BlockLayer::Torch => &mut levels.live_bytes,
            BlockLayer::Driver => &mut levels.device_bytes,
            BlockLayer::Host | BlockLayer::Managed | BlockLayer::Foreign => return,
        };
        let size = block.size_bytes;
        *bytes = if is_alloc { bytes.saturating_add(size) } else { bytes.saturating_sub(size) };
    }
}

impl DeviceTotals {
    fn on_segment_event(&mut self, event: &Event) {
        // PyTorch reports its new total only with the next block. If the segments summed to the
        // total before this event, they still do.
        let has_all_segments = self.segment_bytes == self.levels.reserved_bytes;
        let is_new = matches!(event.kind, EventKind::SEGMENT_ALLOC | EventKind::SEGMENT_MAP);
        let bytes = self.segment_bytes;
        self.segment_bytes =
            if is_new { bytes.saturating_add(event.size) } else { bytes.saturating_sub(event.size) };
        if has_all_segments {
            self.levels.reserved_bytes = self.segment_bytes;
        }
    }
}

/// The block, and whether it was allocated.
pub(in crate::export) fn change_parts(change: &BlockChange) -> (&WalkedBlock, bool) {
    match change {
        BlockChange::Allocated(block) => (block, true),
        BlockChange::Freed(block) | BlockChange::Lost(block) => (block, false),
    }
}
