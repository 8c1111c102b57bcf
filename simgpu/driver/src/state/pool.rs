//! A stream-ordered memory pool.
//!
//! Programs see a pool's appetite, not only its blocks: memory is taken from the device in chunks, freed blocks stay in the pool,
//! and a chunk goes back only when it is empty and the pool holds more than its release threshold -> blocks are cut by first fit from
//! all chunks as one space (a block may lie across neighbouring chunks), and giving chunks back is a step of its own, run where the real
//! driver runs it (at synchronisation, and under need).

use std::collections::BTreeMap;

use super::space::{AddressSpace, round_up};

/// Blocks in a pool start and end at multiples of this.
const BLOCK_ALIGN: u64 = 512;
/// Chunks are at least this large while the device has room.
pub(crate) const CHUNK: u64 = 32 << 20;

/// One pool of one device.
#[derive(Debug)]
pub(crate) struct Pool {
    space: AddressSpace,
    /// Address -> length of what the device gave.
    chunks: BTreeMap<u64, u64>,
    /// Destroyed by the program while blocks were live in it.
    pub(crate) closed: bool,
    /// Another process's: blocks of it can be mapped, none can be made.
    pub(crate) imported: bool,
    /// May be made visible to other processes.
    pub(crate) shareable: bool,
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
}

impl Default for Pool {
    fn default() -> Self {
        let space = AddressSpace::empty();
        Self {
            space,
            chunks: BTreeMap::new(),
            closed: false,
            imported: false,
            shareable: false,
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
        }
    }
}

impl Pool {
    /// A pool of this process.
    pub(crate) fn made(shareable: bool) -> Self {
        Self { shareable, ..Self::default() }
    }

    /// Another process's pool.
    pub(crate) fn imported() -> Self {
        Self { imported: true, ..Self::default() }
    }

    /// Bytes that a request of `size` takes in a pool.
    pub(crate) fn span(size: u64) -> Option<u64> {
        round_up(size, BLOCK_ALIGN)
    }

    /// Cuts a block from the chunks at hand.
    pub(crate) fn cut(&mut self, span: u64) -> Option<u64> {
        let addr = self.space.take(span, BLOCK_ALIGN)?;
        self.used += span;
        self.used_high = self.used_high.max(self.used);
        Some(addr)
    }

    /// Adds a chunk that the device gave.
    pub(crate) fn add_chunk(&mut self, base: u64, len: u64) {
        self.chunks.insert(base, len);
        self.space.give_back(base, len);
        self.reserved += len;
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// Takes a block back; it stays in the pool.
    pub(crate) fn put(&mut self, addr: u64, span: u64) {
        self.space.give_back(addr, span);
        self.used -= span;
    }

    /// Removes empty chunks, highest first, while more than `keep` bytes are held; the caller gives them to the device.
    pub(crate) fn shed(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut given = Vec::new();
        for (base, len) in self.chunks.clone().into_iter().rev() {
            if self.reserved <= keep {
                break;
            }
            if self.space.take_at(base, len) {
                self.chunks.remove(&base);
                self.reserved -= len;
                given.push((base, len));
            }
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_stays_until_the_threshold_says_otherwise() {
        let mut pool = Pool { threshold: CHUNK, ..Pool::default() };
        pool.add_chunk(0x1000_0000, CHUNK);
        pool.add_chunk(0x2000_0000, CHUNK);
        let addr = pool.cut(1 << 20).unwrap();
        assert_eq!(addr, 0x1000_0000);
        assert_eq!(
            pool.shed(pool.threshold),
            [(0x2000_0000, CHUNK)],
            "an empty chunk above the threshold goes"
        );
        pool.put(addr, 1 << 20);
        assert_eq!(pool.shed(pool.threshold), [], "the last chunk is within the threshold");
        assert_eq!(pool.shed(0), [(0x1000_0000, CHUNK)]);
        assert_eq!(
            (pool.reserved, pool.used, pool.reserved_high, pool.used_high),
            (0, 0, 2 * CHUNK, 1 << 20)
        );
    }

    #[test]
    fn a_chunk_with_a_live_block_is_never_shed() {
        let mut pool = Pool::default();
        pool.add_chunk(0, CHUNK);
        pool.cut(512).unwrap();
        assert_eq!(pool.shed(0), []);
    }

    #[test]
    fn a_block_may_lie_across_neighbouring_chunks() {
        let mut pool = Pool::default();
        pool.add_chunk(0, CHUNK);
        pool.add_chunk(CHUNK, CHUNK);
        let first = pool.cut(20 << 20).unwrap();
        assert_eq!(pool.cut(20 << 20), Some(20 << 20), "the rest of the first chunk is not lost");
        pool.put(first, 20 << 20);
        assert_eq!(pool.shed(0), [], "the second block holds both chunks");
    }
}
