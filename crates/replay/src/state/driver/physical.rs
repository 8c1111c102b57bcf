//! Physical memory of the virtual memory management API (`cuMemCreate`) and its mappings.
//!
//! A handle may be released while its memory is still mapped, and the driver may then reuse the
//! handle for other memory. Memory is therefore identified by a *piece*, a number that is never
//! reused; a handle refers to one. A piece is freed with its last reference or mapping.

use std::collections::BTreeMap;

use gpumemtrace_format::NO_DEVICE;

use super::MemoryPlace;

use crate::util::seeded_map::SeededMap;

/// `CU_MEM_LOCATION_TYPE_DEVICE`; the id is the device.
const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`; the low byte of its id is the device.
const LOCATION_DOMAIN: u32 = 6;

/// The place of memory created at a location (`type | id << 32`). `device` is that of the event.
pub(super) fn place_of_location(location: u64, device: u8) -> MemoryPlace {
    match location as u32 {
        LOCATION_DEVICE | LOCATION_DOMAIN if device == NO_DEVICE => {
            MemoryPlace::Device((location >> 32) as u8)
        }
        LOCATION_DEVICE | LOCATION_DOMAIN | 0 => MemoryPlace::of_device(device),
        _ => MemoryPlace::Host,
    }
}

#[derive(Clone, Copy, Debug)]
struct PhysicalPiece {
    /// `None` for a multicast object, which has no memory.
    place: Option<MemoryPlace>,
    references: u32,
    mappings: u32,
}

#[derive(Clone, Copy, Debug)]
struct PhysicalMapping {
    /// `None` if the handle was not known.
    piece: Option<u64>,
}

/// A piece that was freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleasedPiece {
    pub(super) piece: u64,
    /// `None` for a multicast object.
    pub(super) place: Option<MemoryPlace>,
}

/// The effect of releasing a handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandleRelease {
    /// The piece, if this was its last reference and it has no mappings.
    pub(super) released: Option<ReleasedPiece>,
}

/// A mapping that was removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unmapping {
    pub(super) addr: u64,
    /// `None` for a multicast object.
    pub(super) place: Option<MemoryPlace>,
    /// The piece, if this was its last mapping and it has no references.
    pub(super) released: Option<ReleasedPiece>,
}

/// The pieces, handles and mappings of a process.
#[derive(Debug, Default)]
pub(super) struct PhysicalMemory {
    pieces: SeededMap<u64, PhysicalPiece>,
    /// Piece by handle, with the number of references through this handle.
    handles: SeededMap<u64, (u64, u32)>,
    mappings: BTreeMap<u64, PhysicalMapping>,
    next_piece: u64,
}

impl PhysicalMemory {
    /// Creates a piece with one reference through `handle`; returns its number.
    pub(super) fn create(&mut self, handle: u64, place: Option<MemoryPlace>) -> u64 {
        let piece = self.next_piece;
        self.next_piece += 1;
        self.pieces.insert(piece, PhysicalPiece { place, references: 1, mappings: 0 });
        self.handles.insert(handle, (piece, 1));
        piece
    }

    /// Imports a shared handle. A known handle refers to memory that this process exported before.
    pub(super) fn import(&mut self, handle: u64) {
        if !self.add_reference(handle) {
            self.create(handle, Some(MemoryPlace::Foreign));
        }
    }

    /// Adds a reference through `handle` to the piece mapped at `addr`. Without a mapping there,
    /// adds one to the piece of `handle`; false if the handle is not known either.
    pub(super) fn retain(&mut self, handle: u64, addr: u64) -> bool {
        let Some((_, PhysicalMapping { piece: Some(piece) })) = self.mappings.range(..=addr).next_back()
        else {
            return self.add_reference(handle);
        };
        let piece = *piece;
        let entry = self.handles.entry(handle).or_insert((piece, 0));
        if entry.0 != piece {
            *entry = (piece, 0);
        }
        entry.1 += 1;
        if let Some(state) = self.pieces.get_mut(&piece) {
            state.references += 1;
        }
        true
    }

    /// Adds a reference through a known handle; false if it is not known.
    fn add_reference(&mut self, handle: u64) -> bool {
        let Some((piece, references)) = self.handles.get_mut(&handle) else { return false };
        *references += 1;
        if let Some(state) = self.pieces.get_mut(piece) {
            state.references += 1;
        }
        true
    }

    /// Drops a reference through `handle`. `None` if the handle is not known.
    pub(super) fn release(&mut self, handle: u64) -> Option<HandleRelease> {
        let (piece, references) = self.handles.get_mut(&handle)?;
        let piece = *piece;
        *references -= 1;
        if *references == 0 {
            self.handles.remove(&handle);
        }
        if let Some(state) = self.pieces.get_mut(&piece) {
            state.references = state.references.saturating_sub(1);
        }
        Some(HandleRelease { released: self.remove_unused(piece) })
    }

    /// Maps a handle at `addr`. Returns the place of its memory: `UnknownDevice` for an unknown
    /// handle, `None` for a multicast object.
    pub(super) fn map(&mut self, addr: u64, handle: u64) -> Option<MemoryPlace> {
        let piece = self.handles.get(&handle).map(|(piece, _)| *piece);
        self.mappings.insert(addr, PhysicalMapping { piece });
        match piece.and_then(|piece| self.pieces.get_mut(&piece)) {
            Some(state) => {
                state.mappings += 1;
                state.place
            }
            None => Some(MemoryPlace::UnknownDevice),
        }
    }

    /// Removes the mappings that begin in an address range.
    pub(super) fn unmap(&mut self, addr: u64, bytes: u64) -> Vec<Unmapping> {
        let end = addr.saturating_add(bytes.max(1));
        let inside: Vec<_> =
            self.mappings.range(addr..end).map(|(addr, mapping)| (*addr, *mapping)).collect();
        let mut removed = Vec::with_capacity(inside.len());
        for (addr, PhysicalMapping { piece }) in inside {
            self.mappings.remove(&addr);
            let Some(piece) = piece else {
                removed.push(Unmapping { addr, place: Some(MemoryPlace::UnknownDevice), released: None });
                continue;
            };
            let mut place = None;
            if let Some(state) = self.pieces.get_mut(&piece) {
                state.mappings = state.mappings.saturating_sub(1);
                place = state.place;
            }
            removed.push(Unmapping { addr, place, released: self.remove_unused(piece) });
        }
        removed
    }

    /// Removes a piece without references and mappings.
    fn remove_unused(&mut self, piece: u64) -> Option<ReleasedPiece> {
        let place =
            self.pieces.get(&piece).filter(|state| state.references == 0 && state.mappings == 0)?.place;
        self.pieces.remove(&piece);
        Some(ReleasedPiece { piece, place })
    }
}
