//! The driver's layer: physical memory by address and by handle.
//!
//! Constraint: memory is given out in four ways (plain, managed, stream-ordered, and physical pieces that are mapped into
//! virtual ranges), and a piece lives until its last reference and its last mapping are gone. Consequence: one map of plain
//! allocations by address, one table of pieces behind handles that may be reused, one ordered map of mappings. Virtual
//! ranges are not memory and are not summed; pinned host memory is kept apart. Only calls that succeeded count.

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};
use rustc_hash::FxHashMap;

use crate::symbols::StackId;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_DEVICE: u64 = 1;

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Place {
    /// On this device.
    Device(u8),
    /// On a device whose ordinal is unknown.
    UnknownDevice,
    /// Pinned, on the host.
    Host,
}

/// A key that is unique among what is live: an address, or a piece's number with the top bit set.
pub type AllocationKey = u64;
const PIECE_KEY: u64 = 1 << 63;

/// What an event did to the physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Memory was given out.
    Alloc {
        /// Its key.
        key: AllocationKey,
        /// Where.
        place: Place,
        /// How much.
        bytes: u64,
        /// By whom.
        stack: StackId,
    },
    /// Memory was given back.
    Free {
        /// Its key.
        key: AllocationKey,
        /// Where.
        place: Place,
    },
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    place: Place,
    references: u32,
    mappings: u32,
}

/// A range of device addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where.
    pub place: Place,
    /// Which of all ranges that ever were this is, counted from 1.
    pub born: u64,
    /// Number of the piece behind a mapping.
    piece: Option<u64>,
}

/// All driver memory of a process.
#[derive(Debug, Default)]
pub struct Driver {
    plain: FxHashMap<u64, Place>,
    pieces: FxHashMap<u64, Piece>,
    piece_of_handle: FxHashMap<u64, u64>,
    next_piece: u64,
    ranges: BTreeMap<u64, Range>,
    ranges_born: u64,
    /// Changes of the last event.
    pub changes: Vec<Change>,
    /// Ranges that the last event removed.
    pub removed_ranges: Vec<Range>,
    /// True if it added or removed any.
    pub ranges_changed: bool,
    /// Calls that returned an error.
    pub failed_calls: u64,
    /// Frees of what was not known.
    pub unmatched_frees: u64,
}

impl Driver {
    /// Takes a driver event; what it did is in `changes` and `removed_ranges` until the next call.
    pub fn event(&mut self, event: &Event, stack: StackId) {
        self.changes.clear();
        self.removed_ranges.clear();
        self.ranges_changed = false;
        if event.in_flight {
            return;
        }
        if event.result != 0 {
            self.failed_calls += 1;
            return;
        }
        let place =
            if event.device == NO_DEVICE { Place::UnknownDevice } else { Place::Device(event.device) };
        match event.kind {
            EventKind::DEVICE_ALLOC | EventKind::MANAGED_ALLOC | EventKind::ASYNC_ALLOC => {
                self.add_plain(event, place, stack);
            }
            EventKind::HOST_ALLOC => self.add_plain(event, Place::Host, stack),
            EventKind::DEVICE_FREE | EventKind::HOST_FREE | EventKind::ASYNC_FREE => {
                self.remove_plain(event.addr);
            }
            EventKind::PHYS_CREATE => {
                let location = event.aux[1] as u32;
                let place = match u64::from(location) {
                    LOCATION_DEVICE if event.device == NO_DEVICE => Place::Device((event.aux[1] >> 32) as u8),
                    LOCATION_DEVICE | 0 => place,
                    _ => Place::Host,
                };
                let piece = self.next_piece;
                self.next_piece += 1;
                self.pieces.insert(piece, Piece { place, references: 1, mappings: 0 });
                self.piece_of_handle.insert(event.aux[0], piece);
                let key = piece | PIECE_KEY;
                self.changes.push(Change::Alloc { key, place, bytes: event.size, stack });
            }
            EventKind::PHYS_RELEASE => {
                let Some(&piece) = self.piece_of_handle.get(&event.aux[0]) else {
                    self.unmatched_frees += 1;
                    return;
                };
                if let Some(state) = self.pieces.get_mut(&piece) {
                    state.references = state.references.saturating_sub(1);
                    if state.references == 0 {
                        // The driver may give the same handle to the next piece while this one is still mapped.
                        self.piece_of_handle.remove(&event.aux[0]);
                    }
                }
                self.drop_if_unused(piece);
            }
            EventKind::MAP => self.map(event),
            EventKind::UNMAP => self.unmap(event.addr, event.size),
            _ => {}
        }
    }

    fn add_plain(&mut self, event: &Event, place: Place, stack: StackId) {
        if self.plain.insert(event.addr, place).is_some() {
            self.remove_range(event.addr);
        }
        self.changes.push(Change::Alloc { key: event.addr & !PIECE_KEY, place, bytes: event.size, stack });
        if place != Place::Host {
            self.add_range(event, place, None);
        }
    }

    fn remove_plain(&mut self, addr: u64) {
        // Freeing null is allowed and does nothing.
        if addr == 0 {
            return;
        }
        match self.plain.remove(&addr) {
            Some(place) => {
                self.changes.push(Change::Free { key: addr & !PIECE_KEY, place });
                self.remove_range(addr);
            }
            None => self.unmatched_frees += 1,
        }
    }

    fn map(&mut self, event: &Event) {
        let piece = self.piece_of_handle.get(&event.aux[0]).copied();
        let state = piece.and_then(|piece| self.pieces.get_mut(&piece));
        let place = match state {
            Some(state) => {
                state.mappings += 1;
                state.place
            }
            None => Place::UnknownDevice,
        };
        if self.ranges.contains_key(&event.addr) {
            self.unmap(event.addr, 1);
        }
        if place != Place::Host {
            self.add_range(event, place, piece);
        }
    }

    fn unmap(&mut self, addr: u64, bytes: u64) {
        let end = addr.saturating_add(bytes.max(1));
        let inside: Vec<Range> = self
            .ranges
            .range(addr..end)
            .map(|(_, range)| *range)
            .filter(|range| range.piece.is_some())
            .collect();
        for range in inside {
            self.remove_range(range.addr);
            if let Some(piece) = range.piece {
                if let Some(state) = self.pieces.get_mut(&piece) {
                    state.mappings = state.mappings.saturating_sub(1);
                }
                self.drop_if_unused(piece);
            }
        }
    }

    fn drop_if_unused(&mut self, piece: u64) {
        let unused = self.pieces.get(&piece).filter(|state| state.references == 0 && state.mappings == 0);
        if let Some(place) = unused.map(|state| state.place) {
            self.pieces.remove(&piece);
            self.changes.push(Change::Free { key: piece | PIECE_KEY, place });
        }
    }

    fn add_range(&mut self, event: &Event, place: Place, piece: Option<u64>) {
        self.ranges_born += 1;
        let range = Range { addr: event.addr, bytes: event.size, place, born: self.ranges_born, piece };
        self.removed_ranges.extend(self.ranges.insert(range.addr, range));
        self.ranges_changed = true;
    }

    fn remove_range(&mut self, addr: u64) {
        if let Some(range) = self.ranges.remove(&addr) {
            self.removed_ranges.push(range);
            self.ranges_changed = true;
        }
    }

    /// How many ranges there ever were.
    pub fn ranges_born(&self) -> u64 {
        self.ranges_born
    }

    /// Device address ranges with memory behind them, by first address.
    pub fn ranges(&self) -> &BTreeMap<u64, Range> {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::{ApiId, NodeId, ThreadId};

    const STACK: StackId = StackId(0);

    fn event(kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Event {
        Event {
            seq: 0,
            time_ns: 0,
            thread: ThreadId(1),
            kind,
            device: 0,
            api: ApiId(0),
            flags: 0,
            result: 0,
            in_flight: false,
            addr,
            size,
            aux,
            python_stack: NodeId::NONE,
            native_stack: NodeId::NONE,
            detail: None,
        }
    }

    fn run(driver: &mut Driver, kind: EventKind, addr: u64, size: u64, aux: [u64; 2]) -> Vec<Change> {
        driver.event(&event(kind, addr, size, aux), STACK);
        driver.changes.clone()
    }

    #[test]
    fn a_piece_lives_until_it_is_released_and_unmapped_whichever_comes_last() {
        for unmap_first in [false, true] {
            let mut driver = Driver::default();
            assert_eq!(run(&mut driver, EventKind::PHYS_CREATE, 0, 100, [7, 1]).len(), 1);
            assert_eq!(run(&mut driver, EventKind::MAP, 0x1000, 100, [7, 0]), []);
            assert_eq!(driver.ranges().len(), 1);
            let mut ends = [(EventKind::PHYS_RELEASE, 0, 0), (EventKind::UNMAP, 0x1000, 100)];
            if unmap_first {
                ends.reverse();
            }
            assert_eq!(run(&mut driver, ends[0].0, ends[0].1, ends[0].2, [7, 0]), []);
            assert_eq!(run(&mut driver, ends[1].0, ends[1].1, ends[1].2, [7, 0]).len(), 1);
            assert!(driver.ranges().is_empty());
        }
    }

    #[test]
    fn a_handle_that_is_used_again_is_another_piece() {
        let mut driver = Driver::default();
        run(&mut driver, EventKind::PHYS_CREATE, 0, 100, [7, 1]);
        run(&mut driver, EventKind::MAP, 0x1000, 100, [7, 0]);
        run(&mut driver, EventKind::PHYS_RELEASE, 0, 0, [7, 0]);
        let second = run(&mut driver, EventKind::PHYS_CREATE, 0, 200, [7, 1]);
        let gone = run(&mut driver, EventKind::UNMAP, 0x1000, 100, [0, 0]);
        let (Change::Alloc { key: new, .. }, Change::Free { key: old, .. }) = (second[0], gone[0]) else {
            panic!("{second:?} {gone:?}")
        };
        assert_ne!(new, old);
    }

    #[test]
    fn failed_calls_null_frees_and_reservations_change_nothing() {
        let mut driver = Driver::default();
        let mut failed = event(EventKind::DEVICE_ALLOC, 0, 512, [0; 2]);
        failed.result = 2;
        driver.event(&failed, STACK);
        assert_eq!((driver.changes.len(), driver.failed_calls), (0, 1));
        assert_eq!(run(&mut driver, EventKind::DEVICE_FREE, 0, 0, [0; 2]), []);
        assert_eq!(run(&mut driver, EventKind::VA_RESERVE, 0x1000, 1 << 40, [0; 2]), []);
        assert_eq!(driver.unmatched_frees, 0);
    }
}
