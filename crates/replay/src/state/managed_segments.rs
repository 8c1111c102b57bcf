//! Segments of PyTorch's allocator in managed memory (`torch.cuda._use_uvm()`).
//!
//! PyTorch counts such a segment as reserved memory of the device. The driver's bytes do not
//! contain it, because its pages may be on the host.

use gpumemtrace_format::{Event, EventKind};

use super::driver::DriverState;
use crate::util::seeded_map::SeededMap;

/// The segments of a process that are in managed memory.
#[derive(Debug, Default)]
pub(crate) struct ManagedSegments {
    bytes_by_address: SeededMap<u64, u64>,
    bytes: u64,
    peak: u64,
}

impl ManagedSegments {
    /// Applies a segment event of PyTorch's tracker.
    pub(crate) fn on_segment_event(&mut self, event: &Event, driver: &DriverState) {
        match event.kind {
            EventKind::SEGMENT_ALLOC if driver.is_managed(event.addr) => {
                let lost = self.bytes_by_address.insert(event.addr, event.size).unwrap_or(0);
                self.bytes = self.bytes.saturating_sub(lost).saturating_add(event.size);
                self.peak = self.peak.max(self.bytes);
            }
            EventKind::SEGMENT_FREE => {
                let freed = self.bytes_by_address.remove(&event.addr).unwrap_or(0);
                self.bytes = self.bytes.saturating_sub(freed);
            }
            _ => {}
        }
    }

    /// Restarts the search for the peak.
    pub(crate) fn restart(&mut self) {
        self.peak = self.bytes;
    }

    /// The most bytes of such segments.
    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }
}
