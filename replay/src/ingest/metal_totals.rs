//! Totals of traces of Metal.
//!
//! Constraint: each block and each end of one says how much the allocator has handed out and reserved by then, and everybody after this
//! relies on it. PyTorch tells that under its lock; nobody tells it of Metal's heaps, and what the hooks count is not in the order
//! of the events where threads are at it together. Consequence: where the metadata's `mode` has `metal`, both totals are counted here,
//! in the order of the events, before anybody else sees them. Of other traces nothing is looked at.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind, Meta};

/// What `mode` says of such traces.
pub(crate) const MODE: &str = "metal";

/// What blocks and segments of each device take.
#[derive(Debug, Default)]
pub(crate) struct MetalTotals {
    is_metal: bool,
    held: BTreeMap<u8, [u64; 2]>,
    told: Vec<Event>,
}

impl MetalTotals {
    /// For the trace that says this of itself.
    pub(crate) fn of(meta: &Meta) -> Self {
        Self { is_metal: is_metal(meta), ..Self::default() }
    }

    /// The same events, with totals.
    #[inline]
    pub(crate) fn with_totals<'a>(&'a mut self, events: &'a [Event]) -> &'a [Event] {
        if self.is_metal { self.count(events) } else { events }
    }

    #[cold]
    fn count(&mut self, events: &[Event]) -> &[Event] {
        self.told.clear();
        self.told.extend_from_slice(events);
        for event in &mut self.told {
            let [allocated, reserved] = self.held.entry(event.device).or_default();
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
        &self.told
    }
}

/// True of traces of Metal.
pub(crate) fn is_metal(meta: &Meta) -> bool {
    meta.list("mode").iter().any(|mode| mode == MODE)
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
    fn totals_are_counted_by_device_and_in_order() {
        let mut totals = MetalTotals::of(&meta(MODE));
        let events = [
            event(EventKind::SEGMENT_ALLOC, 0, 1000),
            event(EventKind::BLOCK_ALLOC, 0, 100),
            event(EventKind::BLOCK_ALLOC, 1, 5),
            event(EventKind::DEVICE_ALLOC, 0, 50),
        ];
        let aux: Vec<_> = totals.with_totals(&events).iter().map(|event| event.aux).collect();
        assert_eq!(aux, [[7, 8], [100, 1000], [5, 0], [7, 8]]);
        let events = [
            event(EventKind::BLOCK_FREE, 0, 100),
            event(EventKind::SEGMENT_FREE, 0, 2000),
            event(EventKind::BLOCK_ALLOC, 0, 1),
        ];
        let aux: Vec<_> = totals.with_totals(&events).iter().map(|event| event.aux).collect();
        assert_eq!(aux, [[0, 1000], [7, 8], [1, 0]]);
    }

    #[test]
    fn other_traces_are_left_as_they_are() {
        let events = [event(EventKind::BLOCK_ALLOC, 0, 100)];
        let mut totals = MetalTotals::of(&meta("started"));
        assert!(std::ptr::eq(totals.with_totals(&events).as_ptr(), events.as_ptr()));
    }
}
