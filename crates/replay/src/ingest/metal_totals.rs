//! Allocated and reserved totals for traces of Metal.
//!
//! The analyses rely on the allocator's running totals in each block event. PyTorch computes them
//! under its lock on CUDA. Metal's heaps report none, and counts made by the hooks would not follow
//! the order of events when threads allocate concurrently. If the metadata's `mode` contains
//! `metal`, [`MetalTotals`] fills both totals in event order before any analysis reads them. Events
//! of other traces pass unchanged. `crates/replay/tests/apple.rs` checks reports of such traces.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind, Meta};

use crate::report::METAL_MODE;

/// Bytes allocated in heaps, and bytes of the heaps themselves.
#[derive(Debug, Default)]
struct HeapTotals {
    allocated: u64,
    reserved: u64,
}

/// Running totals by device, for traces of Metal.
#[derive(Debug, Default)]
pub(crate) struct MetalTotals {
    is_metal: bool,
    devices: BTreeMap<u8, HeapTotals>,
    /// The events of the last slice, with totals.
    filled: Vec<Event>,
}

impl MetalTotals {
    pub(crate) fn new(meta: &Meta) -> Self {
        Self { is_metal: is_metal(meta), ..Self::default() }
    }

    /// The events with totals filled in; `events` itself if the trace is not of Metal.
    #[inline]
    pub(crate) fn fill_totals<'a>(&'a mut self, events: &'a [Event]) -> &'a [Event] {
        if self.is_metal { self.copy_with_totals(events) } else { events }
    }

    #[cold]
    fn copy_with_totals(&mut self, events: &[Event]) -> &[Event] {
        self.filled.clear();
        self.filled.extend_from_slice(events);
        for event in &mut self.filled {
            let HeapTotals { allocated, reserved } = self.devices.entry(event.device).or_default();
            match event.kind {
                EventKind::SEGMENT_ALLOC => *reserved = reserved.saturating_add(event.size),
                EventKind::SEGMENT_FREE => *reserved = reserved.saturating_sub(event.size),
                EventKind::BLOCK_ALLOC => *allocated = allocated.saturating_add(event.size),
                EventKind::BLOCK_FREE => *allocated = allocated.saturating_sub(event.size),
                _ => continue,
            }
            if matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
                event.aux = [*allocated, *reserved];
            }
        }
        &self.filled
    }
}

/// True if the trace was recorded from Metal instead of CUDA.
pub(crate) fn is_metal(meta: &Meta) -> bool {
    meta.list("mode").iter().any(|mode| mode == METAL_MODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(mode: &str) -> Meta {
        let mut meta = Meta::default();
        meta.set_list("mode", vec!["preload".into(), mode.into()]);
        meta
    }

    fn event(kind: EventKind, device: u8, size: u64) -> Event {
        Event { device, size, aux: [7, 8], ..Event::new(kind) }
    }

    #[test]
    fn totals_are_counted_per_device_in_event_order() {
        let mut totals = MetalTotals::new(&meta(METAL_MODE));
        let events = [
            event(EventKind::SEGMENT_ALLOC, 0, 1000),
            event(EventKind::BLOCK_ALLOC, 0, 100),
            event(EventKind::BLOCK_ALLOC, 1, 5),
            event(EventKind::DEVICE_ALLOC, 0, 50),
        ];
        let aux: Vec<_> = totals.fill_totals(&events).iter().map(|event| event.aux).collect();
        assert_eq!(aux, [[7, 8], [100, 1000], [5, 0], [7, 8]]);
        let events = [
            event(EventKind::BLOCK_FREE, 0, 100),
            event(EventKind::SEGMENT_FREE, 0, 2000),
            event(EventKind::BLOCK_ALLOC, 0, 1),
        ];
        let aux: Vec<_> = totals.fill_totals(&events).iter().map(|event| event.aux).collect();
        assert_eq!(aux, [[0, 1000], [7, 8], [1, 0]]);
    }

    #[test]
    fn events_of_other_traces_are_not_copied() {
        let events = [event(EventKind::BLOCK_ALLOC, 0, 100)];
        let mut totals = MetalTotals::new(&meta("started"));
        assert!(std::ptr::eq(totals.fill_totals(&events).as_ptr(), events.as_ptr()));
    }
}
