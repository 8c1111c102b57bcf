//! The driver's layer: who holds which memory, by address and by handle.
//!
//! Constraint: memory is given out in many ways, and what ends it is not always the call that names it: a piece of physical
//! memory lives until its last reference and its last mapping are gone, a context takes its blocks with it, a graph's node
//! holds memory only while launched. Consequence: one table per way (`blocks`, `physical`, `graphs`), and one list of
//! what an event changed. Only calls that succeeded count; virtual ranges are not memory; what is pinned on the host,
//! managed, or not this process's own is kept apart and never added to a device.
//!
//! What is not told is not guessed: memory that a pool holds beyond its blocks, contexts, code. `cuMemGetInfo` shows it.

mod blocks;
mod graphs;
mod physical;
pub(crate) mod totals;

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind, FLAG_CAPTURED, FLAG_UNBACKED, NO_DEVICE};

use crate::callsite::symbols::StackId;
use blocks::{DriverBlock, DriverBlocks, EndedBlock};
use graphs::{GraphEffect, GraphMemory};
use physical::PhysicalMemory;
pub(crate) use totals::PlaceTotals;

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum MemoryPlace {
    /// On this device.
    Device(u8),
    /// On a device whose ordinal is unknown.
    UnknownDevice,
    /// Pinned, on the host.
    Host,
    /// On the host or on a device, wherever it was touched last.
    Managed,
    /// Another process's or another API's, mapped here.
    Foreign,
}

impl MemoryPlace {
    fn of(device: u8) -> Self {
        if device == NO_DEVICE { Self::UnknownDevice } else { Self::Device(device) }
    }

    /// True for memory of this process on a device.
    fn is_device(self) -> bool {
        matches!(self, Self::Device(_) | Self::UnknownDevice)
    }
}

/// A key that is unique among what is live: the number of an address, a handle or a piece, and what kind of number it is.
pub(crate) type AllocationKey = u64;

/// Kinds of keys, in the bits that no address uses.
pub(crate) mod space {
    use super::AllocationKey;

    pub(crate) const ADDRESS: u64 = 0;
    pub(crate) const PIECE: u64 = 1;
    pub(crate) const ARRAY: u64 = 2;
    pub(crate) const EXTERNAL: u64 = 3;
    pub(crate) const MAPPING: u64 = 4;
    pub(crate) const GRAPH: u64 = 5;

    pub(crate) fn key(space: u64, number: u64) -> AllocationKey {
        space << 60 | number & ((1 << 60) - 1)
    }
}
use space::key;

/// What an event did to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverChange {
    /// Memory was given out.
    Alloc {
        /// Its key.
        key: AllocationKey,
        /// Where.
        place: MemoryPlace,
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
        place: MemoryPlace,
    },
}

/// A range of device addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
    /// Where.
    pub place: MemoryPlace,
    /// Which of all ranges that ever were this is, counted from 1.
    pub born: u64,
    /// A piece that was mapped: what follows it in the addresses may belong to it.
    pub is_mapped: bool,
}

/// All driver memory of a process.
#[derive(Debug, Default)]
pub(crate) struct DriverState {
    blocks: DriverBlocks,
    physical: PhysicalMemory,
    graphs: GraphMemory,
    ranges: BTreeMap<u64, MemoryRange>,
    /// Changes of the last event.
    pub changes: Vec<DriverChange>,
    ranges_born: u64,
    /// Ranges that the last event removed.
    pub(crate) removed_ranges: Vec<MemoryRange>,
    /// True if it added or removed any.
    pub(crate) ranges_changed: bool,
    /// Calls that returned an error.
    pub(crate) failed_calls: u64,
    /// Who made the first of them.
    pub(crate) first_failed: Option<StackId>,
    /// Of these, the ones for which no memory was left (`CUDA_ERROR_OUT_OF_MEMORY`).
    pub(crate) refused_calls: u64,
    /// Frees of what was not known.
    pub(crate) unmatched_frees: u64,
}

impl DriverState {
    /// Takes a driver event; what it did is in `changes` and `removed_ranges` until the next call.
    pub(crate) fn event(&mut self, event: &Event, stack: StackId) {
        self.changes.clear();
        self.removed_ranges.clear();
        self.ranges_changed = false;
        if event.in_flight {
            return;
        }
        if event.result != 0 {
            const OUT_OF_MEMORY: u16 = 2;
            self.failed_calls += 1;
            self.first_failed.get_or_insert(stack);
            self.refused_calls += u64::from(event.result == OUT_OF_MEMORY);
            return;
        }
        let place = MemoryPlace::of(event.device);
        let [aux0, aux1] = event.aux;
        let address = key(space::ADDRESS, event.addr);
        let known = match event.kind {
            EventKind::DEVICE_ALLOC => self.add(address, place, Some(aux0), event, stack),
            EventKind::ASYNC_ALLOC => self.add(address, place, None, event, stack),
            EventKind::MANAGED_ALLOC => {
                self.add(address, MemoryPlace::Managed, Some(aux1), event, stack);
                self.add_range(event.addr, event.size, place, false);
                true
            }
            EventKind::HOST_ALLOC | EventKind::HOST_REGISTER => {
                self.add(address, MemoryPlace::Host, Some(aux1), event, stack)
            }
            EventKind::ARRAY_ALLOC => {
                let handle = key(space::ARRAY, event.addr);
                if event.flags & FLAG_UNBACKED == 0 {
                    self.add(handle, place, Some(aux0), event, stack)
                } else {
                    self.blocks.insert(handle, DriverBlock::view(event, Some(aux0)));
                    true
                }
            }
            EventKind::ARRAY_FREE => self.remove(key(space::ARRAY, event.addr)),
            EventKind::FOREIGN_OPEN if self.blocks.open_again(address) => true,
            EventKind::FOREIGN_OPEN => {
                self.add(address, MemoryPlace::Foreign, (aux1 != 0).then_some(aux1), event, stack)
            }
            EventKind::EXTERNAL_IMPORT => {
                self.add(key(space::EXTERNAL, aux0), MemoryPlace::Foreign, None, event, stack)
            }
            // A view of what was counted when it was imported; a mapped array has a handle and no size.
            EventKind::EXTERNAL_MAP => {
                let space = if event.size == 0 { space::ARRAY } else { space::ADDRESS };
                self.blocks.insert(key(space, event.addr), DriverBlock::view(event, None));
                true
            }
            EventKind::EXTERNAL_DESTROY => self.remove(key(space::EXTERNAL, aux0)),
            EventKind::DEVICE_FREE
            | EventKind::ASYNC_FREE
            | EventKind::HOST_FREE
            | EventKind::HOST_UNREGISTER
            | EventKind::FOREIGN_CLOSE => self.free(event.addr),
            EventKind::PHYS_CREATE => {
                let place = physical::place_of(aux1, event.device);
                let piece = self.physical.create(aux0, Some(place));
                self.alloc(key(space::PIECE, piece), place, event.size, stack);
                true
            }
            EventKind::PHYS_IMPORT => {
                self.physical.import(aux0);
                true
            }
            EventKind::PHYS_RETAIN => self.physical.retain(aux0, event.addr),
            EventKind::MULTICAST_CREATE => {
                self.physical.create(aux0, None);
                true
            }
            EventKind::PHYS_RELEASE => {
                let released = self.physical.release(aux0);
                self.bury(released.flatten());
                released.is_some()
            }
            EventKind::MAP => {
                self.map(event, stack);
                true
            }
            EventKind::UNMAP => {
                self.unmap(event.addr, event.size);
                true
            }
            EventKind::CONTEXT_CREATE => {
                self.blocks.context_begins(aux0);
                true
            }
            EventKind::CONTEXT_DESTROY => {
                let gone = self.blocks.context_ends(aux0);
                self.gone_with_context(gone);
                true
            }
            EventKind::PRIMARY_RELEASE | EventKind::GREEN_DESTROY if aux1 == 1 => {
                let gone = self.blocks.primary_context_ends(event.device);
                self.gone_with_context(gone);
                true
            }
            kind if graphs::concerns(kind) && event.flags & FLAG_CAPTURED == 0 || graphs::is_node(kind) => {
                self.graph(event, stack);
                true
            }
            _ => true,
        };
        self.unmatched_frees += u64::from(!known);
    }

    fn alloc(&mut self, key: AllocationKey, place: MemoryPlace, bytes: u64, stack: StackId) {
        self.changes.push(DriverChange::Alloc { key, place, bytes, stack });
    }

    /// A block with memory of its own.
    fn add(
        &mut self,
        key: AllocationKey,
        place: MemoryPlace,
        context: Option<u64>,
        event: &Event,
        stack: StackId,
    ) -> bool {
        let block = DriverBlock { place, device: event.device, context, times: 1, counted: true };
        if self.blocks.insert(key, block).is_some() {
            self.remove_range(event.addr);
        }
        self.alloc(key, place, event.size, stack);
        if place.is_device() && key >> 60 == space::ADDRESS {
            self.add_range(event.addr, event.size, place, false);
        }
        true
    }

    /// Ends one use of a block; false if there is none.
    fn remove(&mut self, key: AllocationKey) -> bool {
        match self.blocks.remove(key) {
            EndedBlock::Unknown => return false,
            EndedBlock::StillOpen => {}
            EndedBlock::Gone(block) => self.ended(key, block),
        }
        true
    }

    fn ended(&mut self, key: AllocationKey, block: DriverBlock) {
        if block.counted {
            self.changes.push(DriverChange::Free { key, place: block.place });
        }
        if key >> 60 == space::ADDRESS {
            self.remove_range(key);
        }
    }

    /// A free by address: a block, or what a graph left behind. Freeing null is allowed and does nothing.
    fn free(&mut self, addr: u64) -> bool {
        if addr == 0 {
            return true;
        }
        if let Some(effects) = self.graphs.free(addr) {
            self.apply(effects);
            return true;
        }
        self.remove(key(space::ADDRESS, addr))
    }

    fn gone_with_context(&mut self, gone: Vec<(AllocationKey, DriverBlock)>) {
        for (key, block) in gone {
            self.ended(key, block);
        }
    }

    fn graph(&mut self, event: &Event, stack: StackId) {
        let outcome = self.graphs.event(event, stack);
        self.apply(outcome.effects);
        for addr in outcome.frees {
            self.remove(key(space::ADDRESS, addr));
        }
    }

    fn apply(&mut self, effects: Vec<GraphEffect>) {
        for effect in effects {
            match effect {
                GraphEffect::Charge { addr, place, bytes, stack } => {
                    self.alloc(key(space::GRAPH, addr), place, bytes, stack);
                    self.add_range(addr, bytes, place, false);
                }
                GraphEffect::Uncharge { addr, place } => {
                    self.changes.push(DriverChange::Free { key: key(space::GRAPH, addr), place });
                    self.remove_range(addr);
                }
            }
        }
    }

    fn map(&mut self, event: &Event, stack: StackId) {
        self.unmap(event.addr, event.size);
        match self.physical.map(event.addr, event.aux[0]) {
            Some(MemoryPlace::Foreign) => {
                self.alloc(key(space::MAPPING, event.addr), MemoryPlace::Foreign, event.size, stack);
            }
            Some(place) if place.is_device() => {
                self.add_range(event.addr, event.size, place, true);
            }
            _ => {}
        }
    }

    fn unmap(&mut self, addr: u64, bytes: u64) {
        for (addr, place, piece) in self.physical.unmap(addr, bytes) {
            self.remove_range(addr);
            if place == Some(MemoryPlace::Foreign) {
                self.changes
                    .push(DriverChange::Free { key: key(space::MAPPING, addr), place: MemoryPlace::Foreign });
            }
            self.bury(piece);
        }
    }

    /// A piece whose last reference or mapping went.
    fn bury(&mut self, piece: Option<(u64, Option<MemoryPlace>)>) {
        if let Some((piece, Some(place))) = piece.filter(|(_, place)| *place != Some(MemoryPlace::Foreign)) {
            self.changes.push(DriverChange::Free { key: key(space::PIECE, piece), place });
        }
    }

    fn add_range(&mut self, addr: u64, bytes: u64, place: MemoryPlace, is_mapped: bool) {
        self.ranges_born += 1;
        let range = MemoryRange { addr, bytes, place, born: self.ranges_born, is_mapped };
        self.removed_ranges.extend(self.ranges.insert(addr, range));
        self.ranges_changed = true;
    }

    fn remove_range(&mut self, addr: u64) {
        if let Some(range) = self.ranges.remove(&addr) {
            self.removed_ranges.push(range);
            self.ranges_changed = true;
        }
    }

    /// How many ranges there ever were.
    pub(crate) fn ranges_born(&self) -> u64 {
        self.ranges_born
    }

    /// Device address ranges with memory behind them, by first address.
    pub(crate) fn ranges(&self) -> &BTreeMap<u64, MemoryRange> {
        &self.ranges
    }
}

#[cfg(test)]
mod tests;
