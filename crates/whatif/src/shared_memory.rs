//! Whether the program shared PyTorch's memory with other processes.
//!
//! Before torch 2.5, PyTorch refuses to share blocks of expandable segments (pytorch#130890), so a
//! program that shares its tensors cannot have them there.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind};

/// The segments of one device, and whether one of them was shared.
#[derive(Debug)]
pub(crate) struct SharedMemoryWatch {
    device: u8,
    /// Bytes of the segments that are not expandable, by address.
    segments: BTreeMap<u64, u64>,
    /// A handle for other processes was made for a segment.
    pub(crate) was_seen: bool,
}

impl SharedMemoryWatch {
    pub(crate) fn new(device: u8) -> Self {
        Self { device, segments: BTreeMap::new(), was_seen: false }
    }

    /// Passes an event of any device. Libraries share memory of their own, which does not count.
    pub(crate) fn on_event(&mut self, event: &Event) {
        match event.kind {
            EventKind::SEGMENT_ALLOC if event.device == self.device => {
                self.segments.insert(event.addr, event.size);
            }
            EventKind::SEGMENT_FREE if event.device == self.device => {
                self.segments.remove(&event.addr);
            }
            EventKind::FOREIGN_EXPORT if event.result == 0 => self.was_seen |= self.contains(event.addr),
            _ => {}
        }
    }

    fn contains(&self, addr: u64) -> bool {
        let before = self.segments.range(..=addr).next_back();
        before.is_some_and(|(segment, bytes)| addr - segment < *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exports_of_segments_count() {
        let was_seen = |events: &[(EventKind, u64)]| {
            let mut watch = SharedMemoryWatch::new(0);
            for (kind, addr) in events {
                watch.on_event(&Event { device: 0, addr: *addr, size: 100, ..Event::new(*kind) });
            }
            watch.was_seen
        };
        let segment = (EventKind::SEGMENT_ALLOC, 1000);
        assert!(was_seen(&[segment, (EventKind::FOREIGN_EXPORT, 1099)]));
        assert!(!was_seen(&[segment, (EventKind::FOREIGN_EXPORT, 1100)]), "memory of a library");
        assert!(!was_seen(&[segment, (EventKind::SEGMENT_FREE, 1000), (EventKind::FOREIGN_EXPORT, 1000)]));
    }
}
