//! Expandable segments: ranges of addresses, of which pages are mapped as needed.
//!
//! A segment has the addresses of 1 1/8 of the device's memory and belongs to one stream and size
//! class of a pool. Its blocks cover all of it; those without memory are
//! [`Unmapped`](crate::blocks::BlockState::Unmapped).

use super::ids::ArenaId;

/// The addresses of one expandable segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpandableArena {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// 2 MiB for small blocks, the size of a large segment for others.
    pub(crate) page_bytes: u64,
}

impl ExpandableArena {
    /// Bytes of addresses to reserve on a device with `device_bytes` of memory.
    pub(crate) fn bytes_to_reserve(device_bytes: u64, page_bytes: u64) -> u64 {
        (device_bytes + device_bytes / 8).next_multiple_of(page_bytes)
    }

    /// Address and bytes of the pages that a range touches.
    pub(crate) fn touched_pages(&self, addr: u64, bytes: u64) -> (u64, u64) {
        let begin = (addr - self.addr) / self.page_bytes * self.page_bytes;
        let end = (addr + bytes - self.addr).next_multiple_of(self.page_bytes);
        (self.addr + begin, end - begin)
    }

    /// Address and bytes of the pages that lie in a range; `None` if there are none.
    pub(crate) fn whole_pages(&self, addr: u64, bytes: u64) -> Option<(u64, u64)> {
        let begin = (addr - self.addr).next_multiple_of(self.page_bytes);
        let end = (addr + bytes - self.addr) / self.page_bytes * self.page_bytes;
        (begin < end).then(|| (self.addr + begin, end - begin))
    }
}

/// All expandable segments of a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArenaTable {
    table: Vec<ExpandableArena>,
    unused: Vec<ArenaId>,
}

impl ArenaTable {
    pub(crate) fn add(&mut self, arena: ExpandableArena) -> ArenaId {
        if let Some(id) = self.unused.pop() {
            self.table[id.0 as usize] = arena;
            return id;
        }
        self.table.push(arena);
        ArenaId(self.table.len() as u32 - 1)
    }

    pub(crate) fn get(&self, id: ArenaId) -> ExpandableArena {
        self.table[id.0 as usize]
    }

    /// Releases the entry of a segment without blocks.
    pub(crate) fn remove(&mut self, id: ArenaId) {
        self.unused.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_a_range_or_lie_in_it() {
        let arena = ExpandableArena { addr: 1000, bytes: 1000, page_bytes: 100 };
        assert_eq!(arena.touched_pages(1000, 1), (1000, 100));
        assert_eq!(arena.touched_pages(1100, 250), (1100, 300));
        assert_eq!(arena.whole_pages(1010, 250), Some((1100, 100)));
        assert_eq!(arena.whole_pages(1010, 180), None);
        assert_eq!(arena.whole_pages(1000, 100), Some((1000, 100)));
        assert_eq!(ExpandableArena::bytes_to_reserve(1000, 300), 1200);
    }
}
