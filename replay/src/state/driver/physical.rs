//! Physical memory behind handles, and where it is mapped.
//!
//! A handle may be released while its memory is mapped, and the driver may then give the same handle to other memory.
//! Consequence: memory is told apart by a number of our own, a *piece*; a handle only leads to one.

use std::collections::BTreeMap;

use gpumemtrace_format::NO_DEVICE;

use super::MemoryPlace;

use crate::util::seeded_map::SeededMap;

/// `CU_MEM_LOCATION_TYPE_DEVICE`, and `..._DEVICE_LOCALITY_DOMAIN`, whose id has the device in its low byte.
const LOCATION_DEVICE: u32 = 1;
const LOCATION_DOMAIN: u32 = 6;

/// The place of memory created at a location (`type | id << 32`).
pub(super) fn place_of(location: u64, device: u8) -> MemoryPlace {
    match location as u32 {
        LOCATION_DEVICE | LOCATION_DOMAIN if device == NO_DEVICE => {
            MemoryPlace::Device((location >> 32) as u8)
        }
        LOCATION_DEVICE | LOCATION_DOMAIN | 0 => MemoryPlace::of(device),
        _ => MemoryPlace::Host,
    }
}

#[derive(Clone, Copy, Debug)]
struct PhysicalPiece {
    /// None for a multicast object, which has no memory.
    place: Option<MemoryPlace>,
    references: u32,
    mappings: u32,
}

#[derive(Clone, Copy, Debug)]
struct PhysicalMapping {
    /// None if the handle was not known.
    piece: Option<u64>,
}

/// A piece that is gone, with its place.
pub(super) type ReleasedPiece = Option<(u64, Option<MemoryPlace>)>;

/// All of it.
#[derive(Debug, Default)]
pub(super) struct PhysicalMemory {
    pieces: SeededMap<u64, PhysicalPiece>,
    /// Handle to piece, with the references that this handle has.
    handles: SeededMap<u64, (u64, u32)>,
    mappings: BTreeMap<u64, PhysicalMapping>,
    next_piece: u64,
}

impl PhysicalMemory {
    /// New memory behind a handle; its number.
    pub(super) fn create(&mut self, handle: u64, place: Option<MemoryPlace>) -> u64 {
        let piece = self.next_piece;
        self.next_piece += 1;
        self.pieces.insert(piece, PhysicalPiece { place, references: 1, mappings: 0 });
        self.handles.insert(handle, (piece, 1));
        piece
    }

    /// A handle from elsewhere. One that is known already is this process's own, exported before.
    pub(super) fn import(&mut self, handle: u64) {
        if !self.refer(handle) {
            self.create(handle, Some(MemoryPlace::Foreign));
        }
    }

    /// A reference to whatever is mapped at an address, under a handle that may be new; false if nothing is.
    pub(super) fn retain(&mut self, handle: u64, addr: u64) -> bool {
        let Some((_, PhysicalMapping { piece: Some(piece) })) = self.mappings.range(..=addr).next_back()
        else {
            return self.refer(handle);
        };
        let piece = *piece;
        let known = self.handles.entry(handle).or_insert((piece, 0));
        if known.0 != piece {
            *known = (piece, 0);
        }
        known.1 += 1;
        if let Some(state) = self.pieces.get_mut(&piece) {
            state.references += 1;
        }
        true
    }

    fn refer(&mut self, handle: u64) -> bool {
        let Some((piece, references)) = self.handles.get_mut(&handle) else { return false };
        *references += 1;
        if let Some(state) = self.pieces.get_mut(piece) {
            state.references += 1;
        }
        true
    }

    /// Drops a reference: `None` if the handle is not known, the piece if that was the last thing that held it.
    pub(super) fn release(&mut self, handle: u64) -> Option<ReleasedPiece> {
        let (piece, references) = self.handles.get_mut(&handle)?;
        let piece = *piece;
        *references -= 1;
        if *references == 0 {
            self.handles.remove(&handle);
        }
        if let Some(state) = self.pieces.get_mut(&piece) {
            state.references = state.references.saturating_sub(1);
        }
        Some(self.bury(piece))
    }

    /// Maps a handle; the place of its memory (unknown for a handle that was never seen, none where there is no memory).
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

    /// Removes the mappings that begin in a range: their addresses, places, and the pieces that went with them.
    pub(super) fn unmap(&mut self, addr: u64, bytes: u64) -> Vec<(u64, Option<MemoryPlace>, ReleasedPiece)> {
        let end = addr.saturating_add(bytes.max(1));
        let inside: Vec<_> =
            self.mappings.range(addr..end).map(|(addr, mapping)| (*addr, *mapping)).collect();
        let mut removed = Vec::with_capacity(inside.len());
        for (addr, PhysicalMapping { piece }) in inside {
            self.mappings.remove(&addr);
            let Some(piece) = piece else {
                removed.push((addr, Some(MemoryPlace::UnknownDevice), None));
                continue;
            };
            let mut place = None;
            if let Some(state) = self.pieces.get_mut(&piece) {
                state.mappings = state.mappings.saturating_sub(1);
                place = state.place;
            }
            removed.push((addr, place, self.bury(piece)));
        }
        removed
    }

    fn bury(&mut self, piece: u64) -> ReleasedPiece {
        let unused =
            self.pieces.get(&piece).filter(|state| state.references == 0 && state.mappings == 0)?.place;
        self.pieces.remove(&piece);
        Some((piece, unused))
    }
}
