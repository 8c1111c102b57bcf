//! The memory of the simulated device, for models.
//!
//! simgpu allocates first fit and rounds to 2 MiB. All segments of PyTorch are multiples of that,
//! so a model with this device sees the same addresses as PyTorch on simgpu.

use std::collections::BTreeMap;

const GRANULARITY: u64 = 2 << 20;

/// Device memory, handed out first fit from address 0.
#[derive(Clone, Debug)]
pub struct FirstFitDevice {
    card_bytes: u64,
    used_bytes: u64,
    /// Allocated ranges: address to bytes.
    taken: BTreeMap<u64, u64>,
    /// Free ranges below the highest address that was ever allocated: address to bytes.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl FirstFitDevice {
    /// A device without allocations.
    pub fn new(card_bytes: u64) -> Self {
        Self { card_bytes, used_bytes: 0, taken: BTreeMap::new(), free: BTreeMap::new(), end: 0 }
    }

    /// Bytes that are not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.card_bytes - self.used_bytes
    }

    /// The card's size in bytes.
    pub fn card_bytes(&self) -> u64 {
        self.card_bytes
    }

    /// Takes memory without an address; returns false if the card has too little.
    pub fn charge(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.free_bytes();
        self.used_bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Gives back memory of [`charge`](Self::charge).
    pub fn refund(&mut self, bytes: u64) {
        self.used_bytes -= bytes;
    }

    /// Allocates at the lowest address that fits; `None` if the card has too little memory.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(GRANULARITY)?;
        if bytes > self.free_bytes() {
            return None;
        }
        let hole = self.free.iter().find(|(_, hole)| **hole >= bytes).map(|(&addr, &hole)| (addr, hole));
        let addr = if let Some((addr, hole)) = hole {
            self.free.remove(&addr);
            if hole > bytes {
                self.free.insert(addr + bytes, hole - bytes);
            }
            addr
        } else {
            // A hole at the end grows.
            let start = self.free.last_key_value().filter(|(addr, hole)| **addr + **hole == self.end);
            let start = start.map_or(self.end, |(&addr, _)| addr);
            self.free.remove(&start);
            self.end = start + bytes;
            start
        };
        self.used_bytes += bytes;
        self.taken.insert(addr, bytes);
        Some(addr)
    }

    /// Frees what [`allocate`](Self::allocate) returned; returns false for another address.
    pub fn free(&mut self, addr: u64) -> bool {
        let Some(bytes) = self.taken.remove(&addr) else { return false };
        self.used_bytes -= bytes;
        let (mut start, mut hole) = (addr, bytes);
        if let Some((&before, &size)) = self.free.range(..addr).next_back()
            && before + size == addr
        {
            self.free.remove(&before);
            (start, hole) = (before, hole + size);
        }
        if let Some(size) = self.free.remove(&(addr + bytes)) {
            hole += size;
        }
        self.free.insert(start, hole);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_hole_that_fits_is_taken() {
        let mut device = FirstFitDevice::new(16 * GRANULARITY);
        let addrs: Vec<u64> = (0..4).filter_map(|_| device.allocate(2 * GRANULARITY)).collect();
        assert_eq!(addrs, [0, 2, 4, 6].map(|at| at * GRANULARITY));
        assert!(device.free(addrs[0]) && device.free(addrs[2]) && device.free(addrs[3]));
        assert_eq!(device.allocate(3 * GRANULARITY), Some(4 * GRANULARITY), "the hole at the end grows");
        assert_eq!(device.allocate(1), Some(0));
        assert_eq!(device.free_bytes(), 10 * GRANULARITY);
        assert_eq!(device.allocate(11 * GRANULARITY), None, "too little memory");
        assert!(!device.free(GRANULARITY));
    }
}
