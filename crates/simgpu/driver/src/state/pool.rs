//! A stream-ordered memory pool.
//!
//! The pool takes memory from the device in chunks and keeps freed blocks. It returns a chunk if
//! the chunk is empty and the pool exceeds its release threshold. Blocks are allocated first fit
//! over all chunks as one space, so a block may span neighbouring chunks. Chunks are returned where
//! the real driver returns them: at synchronisation, and if an allocation would fail otherwise.

use std::collections::BTreeMap;

use super::location::Location;
use super::space::{AddressSpace, round_up};

/// Alignment of blocks in a pool.
const BLOCK_ALIGN: u64 = 512;
/// Chunk size while the device has that much free.
pub(crate) const CHUNK: u64 = 32 << 20;

/// One pool of one window.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) location: Location,
    space: AddressSpace,
    /// Address -> length of each chunk.
    chunks: BTreeMap<u64, u64>,
    /// The program destroyed the pool while it had live blocks.
    pub(crate) closed: bool,
    /// From another process: its blocks can be mapped, but none allocated.
    pub(crate) imported: bool,
    /// Can be shared with other processes.
    pub(crate) shareable: bool,
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
}

impl Pool {
    /// A new pool of this process.
    pub(crate) fn new(location: Location) -> Self {
        Self {
            location,
            space: AddressSpace::empty(),
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

    /// Returns the bytes that a request of `size` takes in a pool.
    pub(crate) fn span(size: u64) -> Option<u64> {
        round_up(size, BLOCK_ALIGN)
    }

    /// Allocates a block from the present chunks.
    pub(crate) fn cut(&mut self, span: u64) -> Option<u64> {
        let addr = self.space.take(span, BLOCK_ALIGN)?;
        self.used += span;
        self.used_high = self.used_high.max(self.used);
        Some(addr)
    }

    /// Adds a chunk that the device allocated.
    pub(crate) fn add_chunk(&mut self, base: u64, len: u64) {
        self.chunks.insert(base, len);
        self.space.give_back(base, len);
        self.reserved += len;
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    /// Frees a block; its memory stays in the pool.
    pub(crate) fn put(&mut self, addr: u64, span: u64) {
        self.space.give_back(addr, span);
        self.used -= span;
    }

    /// Removes and returns empty chunks, highest first, while more than `keep` bytes are held.
    pub(crate) fn release_empty_chunks(&mut self, keep: u64) -> Vec<(u64, u64)> {
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

    fn empty_pool() -> Pool {
        Pool::new(Location::of_device(0))
    }

    #[test]
    fn freed_block_stays_below_release_threshold() {
        let mut pool = Pool { threshold: CHUNK, ..empty_pool() };
        pool.add_chunk(0x1000_0000, CHUNK);
        pool.add_chunk(0x2000_0000, CHUNK);
        let addr = pool.cut(1 << 20).unwrap();
        assert_eq!(addr, 0x1000_0000);
        assert_eq!(
            pool.release_empty_chunks(pool.threshold),
            [(0x2000_0000, CHUNK)],
            "an empty chunk above the threshold goes"
        );
        pool.put(addr, 1 << 20);
        assert_eq!(pool.release_empty_chunks(pool.threshold), [], "the last chunk is within the threshold");
        assert_eq!(pool.release_empty_chunks(0), [(0x1000_0000, CHUNK)]);
        assert_eq!(
            (pool.reserved, pool.used, pool.reserved_high, pool.used_high),
            (0, 0, 2 * CHUNK, 1 << 20)
        );
    }

    #[test]
    fn chunk_with_live_block_stays() {
        let mut pool = empty_pool();
        pool.add_chunk(0, CHUNK);
        pool.cut(512).unwrap();
        assert_eq!(pool.release_empty_chunks(0), []);
    }

    #[test]
    fn block_may_span_neighbouring_chunks() {
        let mut pool = empty_pool();
        pool.add_chunk(0, CHUNK);
        pool.add_chunk(CHUNK, CHUNK);
        let first = pool.cut(20 << 20).unwrap();
        assert_eq!(pool.cut(20 << 20), Some(20 << 20), "the rest of the first chunk is not lost");
        pool.put(first, 20 << 20);
        assert_eq!(pool.release_empty_chunks(0), [], "the second block holds both chunks");
    }
}
