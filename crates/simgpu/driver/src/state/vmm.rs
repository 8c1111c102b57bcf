//! Virtual memory management: reservations, physical handles and mappings.
//!
//! Memory of a handle is freed after its last release and its last unmap, in either order, so a
//! tracer must not count at `cuMemRelease`. References and mappings are counted separately.

use std::collections::BTreeMap;

use super::space::AddressSpace;
use crate::result_code::{ApiResult, INVALID_VALUE, OUT_OF_MEMORY};

/// Alignment and size unit of handles, mappings and reservations.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Physical memory behind a handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Physical {
    pub(crate) size: u64,
    /// The device that is charged; `None` for host memory.
    pub(crate) device: Option<u32>,
    /// The `CUmemAllocationProp` passed at creation.
    pub(crate) prop: [u8; 32],
    references: u32,
    mappings: u32,
}

/// A handle mapped at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) handle: u64,
    pub(crate) accessible: bool,
}

/// Bytes that a device gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refund {
    pub(crate) device: u32,
    pub(crate) bytes: u64,
}

/// All reservations, handles and mappings.
#[derive(Debug)]
pub(crate) struct Vmm {
    space: AddressSpace,
    reservations: BTreeMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) handles: BTreeMap<u64, Physical>,
}

fn whole(size: u64) -> ApiResult {
    if size == 0 || !size.is_multiple_of(GRANULARITY) { Err(INVALID_VALUE) } else { Ok(()) }
}

impl Vmm {
    /// Manages the addresses `base..base + len`.
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self {
            space: AddressSpace::new(base, len),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            handles: BTreeMap::new(),
        }
    }

    /// Returns whether an address lies in the reservation window.
    pub(crate) fn owns(&self, addr: u64) -> bool {
        self.space.contains(addr)
    }

    /// Reserves addresses, at `hint` if that range is free.
    pub(crate) fn reserve(&mut self, size: u64, align: u64, hint: u64) -> ApiResult<u64> {
        whole(size)?;
        if align != 0 && !align.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let aligned = hint.is_multiple_of(align.max(GRANULARITY));
        let addr = if hint != 0 && aligned && self.space.take_at(hint, size) {
            hint
        } else {
            self.space.take(size, align.max(GRANULARITY)).ok_or(OUT_OF_MEMORY)?
        };
        self.reservations.insert(addr, size);
        Ok(addr)
    }

    /// Frees a whole reservation; fails while anything is mapped in it.
    pub(crate) fn unreserve(&mut self, addr: u64, size: u64) -> ApiResult {
        let exact = self.reservations.get(&addr) == Some(&size);
        if !exact || self.mappings.range(addr..addr + size).next().is_some() {
            return Err(INVALID_VALUE);
        }
        self.reservations.remove(&addr);
        self.space.give_back(addr, size);
        Ok(())
    }

    /// Registers physical memory, already charged to `device`.
    pub(crate) fn create(
        &mut self,
        handle: u64,
        size: u64,
        device: Option<u32>,
        prop: [u8; 32],
    ) -> ApiResult {
        whole(size)?;
        self.handles.insert(handle, Physical { size, device, prop, references: 1, mappings: 0 });
        Ok(())
    }

    /// Drops one reference; returns the bytes freed, if any.
    pub(crate) fn release(&mut self, handle: u64) -> ApiResult<Option<Refund>> {
        let physical =
            self.handles.get_mut(&handle).filter(|physical| physical.references > 0).ok_or(INVALID_VALUE)?;
        physical.references -= 1;
        Ok(self.drop_if_unreferenced(handle))
    }

    /// Returns the memory of a handle; released handles are invalid, even while mapped.
    pub(crate) fn held_memory(&self, handle: u64) -> ApiResult<Physical> {
        self.handles.get(&handle).copied().filter(|physical| physical.references > 0).ok_or(INVALID_VALUE)
    }

    /// Adds a reference to a handle.
    pub(crate) fn add_reference(&mut self, handle: u64) -> ApiResult {
        let physical = self.handles.get_mut(&handle).ok_or(INVALID_VALUE)?;
        physical.references += 1;
        Ok(())
    }

    /// Adds a reference to the handle mapped at an address, and returns that handle.
    pub(crate) fn retain(&mut self, addr: u64) -> ApiResult<u64> {
        let handle = self.mapping_at(addr).ok_or(INVALID_VALUE)?.1.handle;
        self.handles.get_mut(&handle).ok_or(INVALID_VALUE)?.references += 1;
        Ok(handle)
    }

    /// Maps part of a handle into a reservation.
    pub(crate) fn map(&mut self, addr: u64, size: u64, offset: u64, handle: u64) -> ApiResult {
        whole(size)?;
        let end = addr.checked_add(size).ok_or(INVALID_VALUE)?;
        let physical =
            self.handles.get_mut(&handle).filter(|physical| physical.references > 0).ok_or(INVALID_VALUE)?;
        let inside = offset.checked_add(size).is_some_and(|end| end <= physical.size);
        let reserved =
            self.reservations.range(..=addr).next_back().is_some_and(|(&start, &len)| end <= start + len);
        let overlaps = self
            .mappings
            .range(..end)
            .next_back()
            .is_some_and(|(&start, mapping)| start + mapping.size > addr);
        let aligned = addr.is_multiple_of(GRANULARITY) && offset.is_multiple_of(GRANULARITY);
        if !(inside && reserved && aligned) || overlaps {
            return Err(INVALID_VALUE);
        }
        physical.mappings += 1;
        self.mappings.insert(addr, Mapping { size, handle, accessible: false });
        Ok(())
    }

    /// Returns the mappings that exactly cover `addr..addr + size`.
    fn tiles(&self, addr: u64, size: u64) -> ApiResult<Vec<u64>> {
        let end = addr.checked_add(size).filter(|&end| end > addr).ok_or(INVALID_VALUE)?;
        let mut next = addr;
        let mut found = Vec::new();
        for (&start, mapping) in self.mappings.range(addr..end) {
            if start != next {
                return Err(INVALID_VALUE);
            }
            found.push(start);
            next = start + mapping.size;
        }
        if next == end { Ok(found) } else { Err(INVALID_VALUE) }
    }

    /// Makes whole mappings accessible.
    pub(crate) fn set_access(&mut self, addr: u64, size: u64) -> ApiResult {
        for start in self.tiles(addr, size)? {
            if let Some(mapping) = self.mappings.get_mut(&start) {
                mapping.accessible = true;
            }
        }
        Ok(())
    }

    /// Unmaps whole mappings; returns the bytes freed.
    pub(crate) fn unmap(&mut self, addr: u64, size: u64) -> ApiResult<Vec<Refund>> {
        let mut refunds = Vec::new();
        for start in self.tiles(addr, size)? {
            let Some(mapping) = self.mappings.remove(&start) else { continue };
            if let Some(physical) = self.handles.get_mut(&mapping.handle) {
                physical.mappings -= 1;
            }
            refunds.extend(self.drop_if_unreferenced(mapping.handle));
        }
        Ok(refunds)
    }

    fn drop_if_unreferenced(&mut self, handle: u64) -> Option<Refund> {
        let physical = self.handles.get(&handle)?;
        if physical.references > 0 || physical.mappings > 0 {
            return None;
        }
        let refund = physical.device.map(|device| Refund { device, bytes: physical.size });
        self.handles.remove(&handle);
        refund
    }

    /// Returns the mapping that contains an address.
    pub(crate) fn mapping_at(&self, addr: u64) -> Option<(u64, Mapping)> {
        let (&start, &mapping) = self.mappings.range(..=addr).next_back()?;
        (addr - start < mapping.size).then_some((start, mapping))
    }

    /// Returns whether all of `addr..addr + size` is accessible.
    pub(crate) fn accessible(&self, addr: u64, size: u64) -> bool {
        let mut next = addr;
        let end = addr.saturating_add(size.max(1));
        while next < end {
            match self.mapping_at(next) {
                Some((start, mapping)) if mapping.accessible => next = start + mapping.size,
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = GRANULARITY;
    const BASE: u64 = 1 << 40;

    fn vmm() -> Vmm {
        Vmm::new(BASE, 1 << 40)
    }

    fn mapped(vmm: &mut Vmm) -> u64 {
        let addr = vmm.reserve(8 * G, 0, 0).unwrap();
        vmm.create(1, 2 * G, Some(0), [0; 32]).unwrap();
        vmm.map(addr, 2 * G, 0, 1).unwrap();
        addr
    }

    #[test]
    fn memory_is_freed_after_last_release_and_last_unmap() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        assert_eq!(vmm.release(1), Ok(None), "still mapped");
        assert_eq!(vmm.unmap(addr, 2 * G), Ok(vec![Refund { device: 0, bytes: 2 * G }]));

        let addr = vmm.reserve(2 * G, 0, 0).unwrap();
        vmm.create(2, 2 * G, Some(0), [0; 32]).unwrap();
        vmm.map(addr, 2 * G, 0, 2).unwrap();
        assert_eq!(vmm.unmap(addr, 2 * G), Ok(vec![]), "still referenced");
        assert_eq!(vmm.release(2), Ok(Some(Refund { device: 0, bytes: 2 * G })));
    }

    #[test]
    fn retained_handle_needs_second_release() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        assert_eq!(vmm.retain(addr + 5), Ok(1));
        assert_eq!(vmm.release(1), Ok(None));
        assert_eq!(vmm.unmap(addr, 2 * G), Ok(vec![]));
        assert!(vmm.release(1).unwrap().is_some());
        assert_eq!(vmm.release(1), Err(INVALID_VALUE), "a handle that is gone");
    }

    #[test]
    fn handle_mapped_twice_is_freed_with_second_unmap() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        vmm.map(addr + 2 * G, 2 * G, 0, 1).unwrap();
        vmm.release(1).unwrap();
        assert_eq!(vmm.unmap(addr, 2 * G), Ok(vec![]));
        assert_eq!(vmm.unmap(addr + 2 * G, 2 * G).unwrap().len(), 1);
    }

    #[test]
    fn partly_covered_mappings_are_refused() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        for (at, size) in [(addr, G), (addr + G, G), (addr, 3 * G), (addr + 2 * G, G)] {
            assert_eq!(vmm.unmap(at, size), Err(INVALID_VALUE));
            assert_eq!(vmm.set_access(at, size), Err(INVALID_VALUE));
        }
        assert_eq!(vmm.set_access(addr, 2 * G), Ok(()));
        assert!(vmm.accessible(addr + G, G) && !vmm.accessible(addr + G, G + 1));
    }

    #[test]
    fn range_over_several_mappings_is_unmapped_at_once() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        vmm.create(2, G, Some(1), [0; 32]).unwrap();
        vmm.map(addr + 2 * G, G, 0, 2).unwrap();
        vmm.release(1).unwrap();
        vmm.release(2).unwrap();
        assert_eq!(vmm.unmap(addr, 3 * G).unwrap().len(), 2);
    }

    #[test]
    fn mappings_must_not_overlap_or_leave_reservation() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        vmm.create(2, 8 * G, Some(0), [0; 32]).unwrap();
        for (at, size, offset) in [
            (addr + G, G, 0),
            (addr, 2 * G, 0),
            (addr + 7 * G, 2 * G, 0),
            (addr - G, G, 0),
            (addr + 2 * G, G, 8 * G),
            (addr + 2 * G + 4096, G, 0),
            (addr + 2 * G, G / 2, 0),
        ] {
            assert_eq!(vmm.map(at, size, offset, 2), Err(INVALID_VALUE), "{at:#x} {size}");
        }
    }

    #[test]
    fn reservation_is_freed_whole_and_empty() {
        let mut vmm = vmm();
        let addr = mapped(&mut vmm);
        assert_eq!(vmm.unreserve(addr, 8 * G), Err(INVALID_VALUE));
        vmm.unmap(addr, 2 * G).unwrap();
        assert_eq!(vmm.unreserve(addr, 4 * G), Err(INVALID_VALUE));
        assert_eq!(vmm.unreserve(addr, 8 * G), Ok(()));
        assert_eq!(vmm.reserve(G, 0, addr + G), Ok(addr + G), "a hint that is free is taken");
    }
}
