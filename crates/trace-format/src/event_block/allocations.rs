//! The encoder's table of the allocations in a block.

use crate::event::{Detail, Event, EventKind};

const MIN_SLOTS: usize = 1024;

/// What a free need not repeat.
#[derive(Clone, Copy)]
struct BlockAllocation {
    addr: u64,
    size: u64,
    /// Number of its detail, from 1; 0 for none. Details are kept apart, because many allocations
    /// have none and this table is accessed at random.
    detail: u32,
    /// Number of frees up to its own; 0 if it is live.
    freed_at: u32,
    kind: EventKind,
    device: u8,
}

/// The allocations of the block so far, by address.
pub(super) struct AllocationTable {
    all: Vec<BlockAllocation>,
    frees: u32,
    details: Vec<Detail>,
    /// Hash table with the number of the last allocation at an address, from 1. A power of two
    /// slots, at most half of them in use.
    slots: Vec<u32>,
}

impl AllocationTable {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), frees: 0, details: Vec::new(), slots: vec![0; MIN_SLOTS] }
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.frees = 0;
        self.details.clear();
        self.slots.fill(0);
    }

    /// The slot of the last allocation of this kind at this address, or the slot for it.
    #[inline]
    fn slot(&self, kind: EventKind, addr: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while let Some(number) = self.slots[at].checked_sub(1) {
            let found = &self.all[number as usize];
            if found.addr == addr && found.kind == kind {
                break;
            }
            at = (at + 1) & mask;
        }
        at
    }

    /// Adds an allocation and returns its REUSE: the number of frees since the one at its address,
    /// with that one; 0 if the block has none.
    #[inline]
    pub(super) fn allocate(&mut self, event: &Event) -> u64 {
        let Event { addr, size, kind, device, .. } = *event;
        self.details.extend(event.detail);
        let detail = if event.detail.is_some() { self.details.len() as u32 } else { 0 };
        self.all.push(BlockAllocation { addr, size, detail, freed_at: 0, kind, device });
        if 2 * self.all.len() > self.slots.len() {
            self.grow();
        }
        let slot = self.slot(kind, addr);
        let before = std::mem::replace(&mut self.slots[slot], self.all.len() as u32);
        let freed_at = before.checked_sub(1).map_or(0, |number| self.all[number as usize].freed_at);
        if freed_at > 0 { u64::from(self.frees - freed_at) + 1 } else { 0 }
    }

    #[cold]
    fn grow(&mut self) {
        self.slots = vec![0; 2 * self.slots.len()];
        for number in 0..self.all.len() - 1 {
            let BlockAllocation { kind, addr, .. } = self.all[number];
            let slot = self.slot(kind, addr);
            self.slots[slot] = number as u32 + 1;
        }
    }

    /// Frees an allocation and returns its AGE: how many allocations ago it was made; 0 if the
    /// block does not hold it, or if the free says something else of it.
    #[inline]
    pub(super) fn free(&mut self, event: &Event, of: EventKind) -> u64 {
        let number = self.slots[self.slot(of, event.addr)] as usize;
        let count = self.all.len();
        let Some(made) = number.checked_sub(1).and_then(|at| self.all.get_mut(at)) else { return 0 };
        let is_same = made.device == event.device
            && (of != EventKind::BLOCK_ALLOC || made.size == event.size)
            && match event.detail {
                Some(detail) => made.detail > 0 && self.details[made.detail as usize - 1] == detail,
                None => made.detail == 0,
            };
        if !is_same {
            return 0;
        }
        self.frees += 1;
        made.freed_at = self.frees;
        (count - number) as u64 + 1
    }
}
