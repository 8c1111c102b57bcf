//! How much of a device PyTorch cannot get: contexts, libraries, other processes.
//!
//! A sample of the memory in use shows it at one moment. From then on, recorded driver calls show
//! how much more libraries took, such as cuBLAS for a handle.

use gpumemtrace_format::EventKind;
use gpumemtrace_format::event::SAMPLE_SOURCE_NVML;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedEvent};

/// Memory of a device in recorded driver calls.
#[derive(Debug)]
pub(crate) struct DriverBytes {
    device: u8,
    pub(crate) bytes: u64,
    /// The same memory in pages of the card ([`card_bytes_of`]).
    card_bytes: u64,
    has_changed: bool,
}

impl DriverBytes {
    pub(crate) fn new(device: u8) -> Self {
        Self { device, bytes: 0, card_bytes: 0, has_changed: false }
    }

    /// Whether a driver call changed it since the last question.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    pub(crate) fn add_changes(&mut self, changes: &[BlockChange]) {
        for change in changes {
            let (BlockChange::Allocated(block) | BlockChange::Freed(block) | BlockChange::Lost(block)) =
                change;
            if block.layer != BlockLayer::Driver || block.device != self.device {
                continue;
            }
            self.has_changed = true;
            let (bytes, card_bytes) = (block.size_bytes, card_bytes_of(block.size_bytes));
            let is_new = matches!(change, BlockChange::Allocated(_));
            let add = if is_new { u64::saturating_add } else { u64::saturating_sub };
            self.bytes = add(self.bytes, bytes);
            self.card_bytes = add(self.card_bytes, card_bytes);
        }
    }
}

/// What a driver call takes from the card, as measured on an H200 (docs/gpu-validation.md,
/// `device_memory`): from 1 MiB on, whole pages of 2 MiB. Smaller ones share pages.
fn card_bytes_of(bytes: u64) -> u64 {
    const PAGE_BYTES: u64 = 2 << 20;
    if bytes < PAGE_BYTES / 2 { bytes } else { bytes.saturating_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1) }
}

/// Follows the memory of a device outside PyTorch's segments.
#[derive(Debug)]
pub(crate) struct OutsideWatch {
    driver: DriverBytes,
    /// Memory in use at the last sample that was in no recorded driver call. It is negative if a
    /// sample misses memory, such as that of a pool.
    unrecorded_bytes: Option<i64>,
    was_sampled: bool,
}

impl OutsideWatch {
    pub(crate) fn new(device: u8) -> Self {
        Self { driver: DriverBytes::new(device), unrecorded_bytes: None, was_sampled: false }
    }

    /// Whether the recording has shown it.
    pub(crate) fn is_known(&self) -> bool {
        self.unrecorded_bytes.is_some()
    }

    /// Passes an event. Returns the bytes outside PyTorch's segments if they may have changed.
    ///
    /// PyTorch reports a segment after the driver call for it, so its own bytes are right only at
    /// the next block or error.
    pub(crate) fn on_event(&mut self, walked: &WalkedEvent<'_>) -> Option<u64> {
        self.driver.add_changes(walked.changes);
        let event = walked.event;
        if event.device != self.driver.device {
            return None;
        }
        match event.kind {
            // NVML shows what this process uses, not what the card has left.
            EventKind::MEMORY_SAMPLE if event.aux[1] != SAMPLE_SOURCE_NVML => {
                self.unrecorded_bytes = Some(signed(event.size) - signed(self.driver.card_bytes));
                self.was_sampled = true;
                None
            }
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE | EventKind::BLOCK_OOM => {
                let was_sampled = std::mem::take(&mut self.was_sampled);
                let has_changed = self.driver.take_change();
                if !was_sampled && !has_changed {
                    return None;
                }
                let of_libraries = signed(self.driver.card_bytes) - signed(event.aux[1]);
                Some(u64::try_from(self.unrecorded_bytes? + of_libraries).unwrap_or(0))
            }
            _ => None,
        }
    }
}

fn signed(bytes: u64) -> i64 {
    // No device has 2^62 bytes; a corrupt event may say so.
    (bytes.min(1 << 62)) as i64
}

#[cfg(test)]
mod tests {
    use gpumemtrace_format::Event;
    use gpumemtrace_format::event::SAMPLE_SOURCE_RECORDER;

    use super::*;
    use crate::tests::run::driver_change;

    const MIB: u64 = 1 << 20;

    /// Passes an event of the device; returns what is outside in MiB.
    fn pass(outside: &mut OutsideWatch, kind: EventKind, mib: u64, aux: [u64; 2]) -> Option<u64> {
        let event = &Event { device: 0, size: mib * MIB, aux, ..Event::new(kind) };
        let changes = &driver_change(event).into_iter().collect::<Vec<_>>()[..];
        let (time_ns, step, stack, site) = (0, 0, 0, 0);
        let walked = WalkedEvent { event, time_ns, step, stack, site, name: None, is_inside: true, changes };
        Some(outside.on_event(&walked)? / MIB)
    }

    #[test]
    fn driver_calls_after_a_sample_change_what_is_outside() {
        let mut outside = OutsideWatch::new(0);
        let block = |outside: &mut OutsideWatch, reserved_mib: u64| {
            pass(outside, EventKind::BLOCK_ALLOC, 1, [0, reserved_mib * MIB])
        };
        pass(&mut outside, EventKind::DEVICE_ALLOC, 20, [0; 2]);
        assert_eq!(block(&mut outside, 20), None, "no sample");
        assert!(!outside.is_known());
        pass(&mut outside, EventKind::MEMORY_SAMPLE, 520, [0, SAMPLE_SOURCE_RECORDER]);
        assert_eq!((block(&mut outside, 20), block(&mut outside, 20)), (Some(500), None));
        // A library takes 63 MiB, then PyTorch 40.
        pass(&mut outside, EventKind::DEVICE_ALLOC, 63, [0; 2]);
        assert_eq!(block(&mut outside, 20), Some(564), "whole pages");
        pass(&mut outside, EventKind::DEVICE_ALLOC, 40, [0; 2]);
        assert_eq!(block(&mut outside, 60), Some(564));
        pass(&mut outside, EventKind::MEMORY_SAMPLE, 700, [0, SAMPLE_SOURCE_NVML]);
        assert_eq!(block(&mut outside, 60), None, "of this process only");
    }
}
