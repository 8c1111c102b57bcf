//! Driver memory: the allocations of a process by address and handle, and their lifetimes.
//!
//! Constraint: the driver allocates memory in several ways, and the call that frees memory does not
//! always name it. Physical memory lives until its last reference and mapping are gone. A destroyed
//! context frees its blocks, and a graph node holds memory only after a launch. Consequence:
//! [`DriverState`] has one table for each way ([`blocks`], [`physical`], [`graphs`]), and
//! [`DriverState::on_driver_call`] lists the resulting [`DriverChange`]s.
//!
//! Only successful calls count. Reserved address ranges are not memory. Host, managed and foreign
//! memory is counted separately and never added to a device. Memory that no call shows (pool
//! caches, contexts, code) is not estimated here; `cuMemGetInfo` samples show it. The tests compare
//! each way with the totals, and `tests/suite` compares them with the simulated driver's own count.

mod blocks;
mod graphs;
mod physical;
pub(crate) mod pool_places;
pub(crate) mod totals;

use std::collections::BTreeMap;

use gpumemtrace_format::{Event, EventKind, FLAG_CAPTURED, FLAG_UNBACKED, NO_DEVICE};

use crate::util::ids::StackId;
use blocks::{ClosedBlock, DriverBlock, DriverBlocks};
use graphs::{GraphEffect, GraphMemory};
use physical::{PhysicalMemory, ReleasedPiece, Unmapping};
use pool_places::PoolPlaces;
pub(crate) use totals::PlaceTotals;

/// The result of a driver call for which there was no memory (`CUDA_ERROR_OUT_OF_MEMORY`).
pub(crate) const OUT_OF_MEMORY: u16 = 2;

/// The location of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum MemoryPlace {
    /// On the device with this ordinal.
    Device(u8),
    /// On a device with an unknown ordinal.
    UnknownDevice,
    /// Pinned memory on the host.
    Host,
    /// Managed memory, which migrates between host and devices.
    Managed,
    /// Memory of another process or another API, mapped into this process.
    Foreign,
}

impl MemoryPlace {
    pub(crate) fn of_device(device: u8) -> Self {
        if device == NO_DEVICE { Self::UnknownDevice } else { Self::Device(device) }
    }

    /// True for memory of this process on a device.
    fn is_device(self) -> bool {
        matches!(self, Self::Device(_) | Self::UnknownDevice)
    }
}

/// Identifies a live allocation: an address, handle or piece number with its [`space`] in the top
/// four bits.
pub(crate) type AllocationKey = u64;

/// The kinds of numbers in an [`AllocationKey`]. Device addresses do not use the top four bits.
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

/// A change of the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverChange {
    Alloc {
        key: AllocationKey,
        place: MemoryPlace,
        bytes: u64,
        /// The stack of the call.
        stack: StackId,
    },
    Free {
        key: AllocationKey,
        place: MemoryPlace,
    },
}

/// A range of device addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    pub addr: u64,
    pub bytes: u64,
    pub place: MemoryPlace,
    /// Creation number among all ranges of the process, from 1.
    pub serial: u64,
    /// True for mapped physical memory: an adjacent range may belong to the same segment.
    pub is_mapped: bool,
}

/// All driver memory of a process.
#[derive(Debug, Default)]
pub(crate) struct DriverState {
    blocks: DriverBlocks,
    physical: PhysicalMemory,
    graphs: GraphMemory,
    pools: PoolPlaces,
    ranges: BTreeMap<u64, MemoryRange>,
    /// Changes by the last event.
    pub changes: Vec<DriverChange>,
    ranges_created: u64,
    /// Ranges that the last event removed.
    pub(crate) removed_ranges: Vec<MemoryRange>,
    /// True if the last event added or removed ranges.
    pub(crate) has_changed_ranges: bool,
    /// Number of calls in flight that have a sequence number: frees take theirs before the call.
    pub(crate) in_flight_calls: u64,
    /// Number of calls that returned an error.
    pub(crate) failed_calls: u64,
    /// The stack of the first failed call.
    pub(crate) first_failed: Option<StackId>,
    /// Number of calls that returned `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) refused_calls: u64,
    /// Number of frees of unknown memory.
    pub(crate) unmatched_frees: u64,
    /// Calls that moved managed memory to a device ahead of its use.
    pub(crate) managed_prefetches: u64,
    /// The bytes of these calls; the same memory may move several times.
    pub(crate) managed_prefetched_bytes: u64,
}

impl DriverState {
    /// Applies a driver call. Its effects are in `changes` and `removed_ranges` until the next one.
    pub(crate) fn on_driver_call(&mut self, event: &Event, stack: StackId) {
        self.changes.clear();
        self.removed_ranges.clear();
        self.has_changed_ranges = false;
        if event.in_flight {
            self.in_flight_calls += 1;
        } else if event.result != 0 {
            self.failed_calls += 1;
            self.first_failed.get_or_insert(stack);
            self.refused_calls += u64::from(event.result == OUT_OF_MEMORY);
        } else {
            let is_matched = self.apply_driver_call(event, stack);
            self.unmatched_frees += u64::from(!is_matched);
        }
    }

    /// Applies a call that succeeded. False for a free of unknown memory.
    fn apply_driver_call(&mut self, event: &Event, stack: StackId) -> bool {
        let place = MemoryPlace::of_device(event.device);
        let [aux0, aux1] = event.aux;
        let address = key(space::ADDRESS, event.addr);
        match event.kind {
            EventKind::DEVICE_ALLOC => self.add(address, place, Some(aux0), event, stack),
            EventKind::ASYNC_ALLOC => {
                let place = self.pools.of_allocation(event);
                self.add(address, place, None, event, stack)
            }
            EventKind::POOL_CREATE | EventKind::POOL_KNOWN | EventKind::POOL_DESTROY => {
                self.pools.on_driver_call(event);
                true
            }
            EventKind::MANAGED_ALLOC => self.add(address, MemoryPlace::Managed, Some(aux1), event, stack),
            EventKind::HOST_ALLOC | EventKind::HOST_REGISTER => {
                self.add(address, MemoryPlace::Host, Some(aux1), event, stack)
            }
            EventKind::MANAGED_PREFETCH if pool_places::is_device_location(aux1) => {
                self.managed_prefetches += 1;
                self.managed_prefetched_bytes = self.managed_prefetched_bytes.saturating_add(event.size);
                true
            }
            EventKind::ARRAY_ALLOC => self.add_array(event, stack),
            EventKind::ARRAY_FREE => self.close(key(space::ARRAY, event.addr)),
            EventKind::FOREIGN_OPEN | EventKind::EXTERNAL_IMPORT | EventKind::EXTERNAL_MAP => {
                self.add_foreign(event, stack)
            }
            EventKind::EXTERNAL_DESTROY => self.close(key(space::EXTERNAL, aux0)),
            EventKind::DEVICE_FREE
            | EventKind::ASYNC_FREE
            | EventKind::HOST_FREE
            | EventKind::HOST_UNREGISTER
            | EventKind::FOREIGN_CLOSE => self.free(event.addr),
            EventKind::PRIMARY_RELEASE | EventKind::GREEN_DESTROY if aux1 == 1 => {
                let removed = self.blocks.release_primary_context(event.device);
                self.free_blocks(removed);
                true
            }
            EventKind::PHYS_CREATE
            | EventKind::PHYS_IMPORT
            | EventKind::PHYS_RETAIN
            | EventKind::PHYS_RELEASE
            | EventKind::MULTICAST_CREATE
            | EventKind::MAP
            | EventKind::UNMAP => self.on_physical_call(event, stack),
            EventKind::CONTEXT_CREATE | EventKind::CONTEXT_DESTROY => {
                self.on_context_call(event);
                true
            }
            kind if graphs::is_graph_event(kind) && event.flags & FLAG_CAPTURED == 0
                || graphs::is_node_event(kind) =>
            {
                self.on_graph_event(event, stack);
                true
            }
            _ => true,
        }
    }

    /// Applies the creation or the end of a context.
    fn on_context_call(&mut self, event: &Event) {
        let context = event.aux[0];
        if event.kind == EventKind::CONTEXT_CREATE {
            self.blocks.create_context(context);
        } else {
            let removed = self.blocks.destroy_context(context);
            self.free_blocks(removed);
        }
    }

    /// Applies a call about physical memory or its addresses. False for a free of unknown memory.
    fn on_physical_call(&mut self, event: &Event, stack: StackId) -> bool {
        let [handle, location] = event.aux;
        match event.kind {
            EventKind::PHYS_CREATE => {
                let place = physical::place_of_location(location, event.device);
                let piece = self.physical.create(handle, Some(place));
                self.push_alloc(key(space::PIECE, piece), place, event.size, stack);
            }
            EventKind::PHYS_IMPORT => self.physical.import(handle),
            EventKind::PHYS_RETAIN => return self.physical.retain(handle, event.addr),
            EventKind::MULTICAST_CREATE => {
                self.physical.create(handle, None);
            }
            EventKind::PHYS_RELEASE => {
                let release = self.physical.release(handle);
                self.free_piece(release.and_then(|release| release.released));
                return release.is_some();
            }
            EventKind::MAP => self.map(event, stack),
            EventKind::UNMAP => self.unmap(event.addr, event.size),
            _ => {}
        }
        true
    }

    /// Adds memory of another process or API, or a view of it.
    fn add_foreign(&mut self, event: &Event, stack: StackId) -> bool {
        let address = key(space::ADDRESS, event.addr);
        let [aux0, aux1] = event.aux;
        match event.kind {
            EventKind::FOREIGN_OPEN => {
                let context = (aux1 != 0).then_some(aux1);
                self.blocks.reopen(address) || self.add(address, MemoryPlace::Foreign, context, event, stack)
            }
            EventKind::EXTERNAL_IMPORT => {
                self.add(key(space::EXTERNAL, aux0), MemoryPlace::Foreign, None, event, stack)
            }
            // A view of memory that was counted at its import. A mapped array has no size.
            _ => {
                let space = if event.size == 0 { space::ARRAY } else { space::ADDRESS };
                self.blocks.insert(key(space, event.addr), DriverBlock::view(event, None));
                true
            }
        }
    }

    /// Adds an array: a new one, or a view of memory that is counted elsewhere.
    fn add_array(&mut self, event: &Event, stack: StackId) -> bool {
        let handle = key(space::ARRAY, event.addr);
        let context = Some(event.aux[0]);
        if event.flags & FLAG_UNBACKED == 0 {
            return self.add(handle, MemoryPlace::of_device(event.device), context, event, stack);
        }
        self.blocks.insert(handle, DriverBlock::view(event, context));
        true
    }

    fn push_alloc(&mut self, key: AllocationKey, place: MemoryPlace, bytes: u64, stack: StackId) {
        self.changes.push(DriverChange::Alloc { key, place, bytes, stack });
    }

    /// Adds a block with memory of its own. Always true.
    fn add(
        &mut self,
        key: AllocationKey,
        place: MemoryPlace,
        context: Option<u64>,
        event: &Event,
        stack: StackId,
    ) -> bool {
        let block = DriverBlock { place, device: event.device, context, open_count: 1, is_counted: true };
        if self.blocks.insert(key, block).is_some() {
            self.remove_range(event.addr);
        }
        self.push_alloc(key, place, event.size, stack);
        if key >> 60 == space::ADDRESS {
            match place {
                // PyTorch may have segments in managed memory, which it counts on the device.
                MemoryPlace::Managed => {
                    let device = MemoryPlace::of_device(event.device);
                    self.add_range(event.addr, event.size, device, false);
                }
                _ if place.is_device() => self.add_range(event.addr, event.size, place, false),
                _ => {}
            }
        }
        true
    }

    /// Closes a block once; false if there is none.
    fn close(&mut self, key: AllocationKey) -> bool {
        match self.blocks.close(key) {
            ClosedBlock::Unknown => return false,
            ClosedBlock::StillOpen => {}
            ClosedBlock::Removed(block) => self.free_block(key, block),
        }
        true
    }

    fn free_block(&mut self, key: AllocationKey, block: DriverBlock) {
        if block.is_counted {
            self.changes.push(DriverChange::Free { key, place: block.place });
        }
        if key >> 60 == space::ADDRESS {
            self.remove_range(key);
        }
    }

    /// Frees a block, or a block that a graph allocated, by its address. Freeing null is allowed.
    fn free(&mut self, addr: u64) -> bool {
        if addr == 0 {
            return true;
        }
        if let Some(effects) = self.graphs.free(addr) {
            self.apply_graph_effects(effects);
            return true;
        }
        self.close(key(space::ADDRESS, addr))
    }

    fn free_blocks(&mut self, removed: Vec<(AllocationKey, DriverBlock)>) {
        for (key, block) in removed {
            self.free_block(key, block);
        }
    }

    fn on_graph_event(&mut self, event: &Event, stack: StackId) {
        let outcome = self.graphs.on_event(event, self.pools.of_allocation(event), stack);
        self.apply_graph_effects(outcome.effects);
        for addr in outcome.frees {
            self.close(key(space::ADDRESS, addr));
        }
    }

    fn apply_graph_effects(&mut self, effects: Vec<GraphEffect>) {
        for effect in effects {
            match effect {
                GraphEffect::Alloc { addr, place, bytes, stack } => {
                    self.push_alloc(key(space::GRAPH, addr), place, bytes, stack);
                    if place.is_device() {
                        self.add_range(addr, bytes, place, false);
                    }
                }
                GraphEffect::Release { addr, place } => {
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
                self.push_alloc(key(space::MAPPING, event.addr), MemoryPlace::Foreign, event.size, stack);
            }
            Some(place) if place.is_device() => {
                self.add_range(event.addr, event.size, place, true);
            }
            _ => {}
        }
    }

    fn unmap(&mut self, addr: u64, bytes: u64) {
        for Unmapping { addr, place, released } in self.physical.unmap(addr, bytes) {
            self.remove_range(addr);
            if place == Some(MemoryPlace::Foreign) {
                self.changes
                    .push(DriverChange::Free { key: key(space::MAPPING, addr), place: MemoryPlace::Foreign });
            }
            self.free_piece(released);
        }
    }

    /// Frees a piece without references and mappings. Foreign pieces are freed by their mappings.
    fn free_piece(&mut self, released: Option<ReleasedPiece>) {
        if let Some(ReleasedPiece { piece, place: Some(place) }) = released
            && place != MemoryPlace::Foreign
        {
            self.changes.push(DriverChange::Free { key: key(space::PIECE, piece), place });
        }
    }

    fn add_range(&mut self, addr: u64, bytes: u64, place: MemoryPlace, is_mapped: bool) {
        self.ranges_created += 1;
        let range = MemoryRange { addr, bytes, place, serial: self.ranges_created, is_mapped };
        self.removed_ranges.extend(self.ranges.insert(addr, range));
        self.has_changed_ranges = true;
    }

    fn remove_range(&mut self, addr: u64) {
        if let Some(range) = self.ranges.remove(&addr) {
            self.removed_ranges.push(range);
            self.has_changed_ranges = true;
        }
    }

    /// True if managed memory begins at an address.
    pub(crate) fn is_managed(&self, addr: u64) -> bool {
        self.blocks.place(key(space::ADDRESS, addr)) == Some(MemoryPlace::Managed)
    }

    /// Number of ranges created so far, which is the latest creation number.
    pub(crate) fn ranges_created(&self) -> u64 {
        self.ranges_created
    }

    /// Device address ranges with memory behind them, by first address.
    pub(crate) fn ranges(&self) -> &BTreeMap<u64, MemoryRange> {
        &self.ranges
    }
}

#[cfg(test)]
mod tests;
