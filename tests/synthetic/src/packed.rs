//! Places blocks as PyTorch's allocator does: best fit, splitting, and merging with free
//! neighbours.

use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
/// Address of the first segment.
const BASE: u64 = 0x1000_0000_0000;

/// An allocator with two pools, for blocks up to 1 MiB and for larger ones.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    /// Free blocks of each pool by size and address.
    free: [BTreeSet<(u64, u64)>; 2],
    /// Free blocks by address: size, pool.
    by_addr: BTreeMap<u64, (u64, usize)>,
    pool_of_live: BTreeMap<u64, usize>,
    /// Sizes of the segments by address.
    segments: BTreeMap<u64, u64>,
    /// Address above all segments, from [`BASE`] on.
    end: u64,
}

fn pool(size: u64) -> usize {
    usize::from(size > MIB)
}

impl Packed {
    /// An allocator whose segments lie above this address: that of another stream.
    pub fn above(addr: u64) -> Self {
        Self { end: addr, ..Self::default() }
    }

    fn insert(&mut self, addr: u64, size: u64, pool: usize) {
        self.free[pool].insert((size, addr));
        self.by_addr.insert(addr, (size, pool));
    }

    fn remove(&mut self, addr: u64) -> (u64, usize) {
        let (size, pool) = self.by_addr.remove(&addr).expect("a free block");
        self.free[pool].remove(&(size, addr));
        (size, pool)
    }

    /// Allocates a block. Returns its address and size, or `None` if no free block is large enough.
    pub fn take(&mut self, wanted: u64) -> Option<(u64, u64)> {
        let pool = pool(wanted);
        let (size, addr) = *self.free[pool].range((wanted, 0)..).next()?;
        self.remove(addr);
        let rest = size - wanted;
        let is_split = if pool == 0 { rest >= 512 } else { rest > MIB };
        let size = if is_split { wanted } else { size };
        if is_split {
            self.insert(addr + wanted, rest, pool);
        }
        self.pool_of_live.insert(addr, pool);
        Some((addr, size))
    }

    /// Size of a new segment for a block.
    pub fn segment_bytes(wanted: u64) -> u64 {
        match wanted {
            0..=MIB => 2 * MIB,
            size if size < 10 * MIB => 20 * MIB,
            size => size.next_multiple_of(2 * MIB),
        }
    }

    /// Adds a segment large enough for the block. Segments are never adjacent.
    pub fn new_segment(&mut self, wanted: u64) -> (u64, u64) {
        let bytes = Self::segment_bytes(wanted);
        let addr = self.end.max(BASE) + 2 * MIB;
        self.end = addr + bytes;
        self.segments.insert(addr, bytes);
        self.insert(addr, bytes, pool(wanted));
        (addr, bytes)
    }

    /// Removes all segments without a live block. Returns their addresses and sizes.
    pub fn release_free_segments(&mut self) -> Vec<(u64, u64)> {
        let is_free =
            |(addr, bytes): &(&u64, &u64)| self.by_addr.get(addr).is_some_and(|(size, _)| size == *bytes);
        let free: Vec<_> =
            self.segments.iter().filter(is_free).map(|(addr, bytes)| (*addr, *bytes)).collect();
        for (addr, _) in &free {
            self.remove(*addr);
            self.segments.remove(addr);
        }
        free
    }

    pub fn give_back(&mut self, addr: u64, size: u64) {
        let pool = self.pool_of_live.remove(&addr).expect("a live block");
        let (mut begin, mut end) = (addr, addr + size);
        if self.by_addr.contains_key(&end) {
            end += self.remove(end).0;
        }
        let before = self.by_addr.range(..addr).next_back().map(|(at, (size, _))| (*at, at + size));
        if let Some((at, _)) = before.filter(|(_, end)| *end == addr) {
            self.remove(at);
            begin = at;
        }
        self.insert(begin, end - begin, pool);
    }
}
