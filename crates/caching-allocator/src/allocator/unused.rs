//! Reserved memory that the program does not use.

use super::CachingAllocator;
use crate::backend::CacheBackend;
use crate::stats::StatKind;

/// Reserved bytes beyond those that the program requested, by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnusedBytes {
    /// Bytes by which live blocks are larger than requested.
    pub rounding_bytes: u64,
    /// Blocks that the program freed while another stream still used them.
    pub pending_free_bytes: u64,
    /// Segments, and pages of expandable segments, without a block.
    pub cached_bytes: u64,
    /// Free bytes beside the blocks of a segment, or of a page.
    pub pinned_bytes: u64,
}

impl<B: CacheBackend> CachingAllocator<B> {
    /// The reserved bytes that the program did not request. O(free blocks).
    pub fn unused_bytes(&self) -> UnusedBytes {
        let (allocated_bytes, _) = self.held_bytes();
        let requested_bytes = self.stats.current(StatKind::RequestedBytes) - self.pending_requested_bytes;
        let mut unused = UnusedBytes {
            rounding_bytes: allocated_bytes - requested_bytes,
            pending_free_bytes: self.stats.current(StatKind::ActiveBytes) - allocated_bytes,
            ..UnusedBytes::default()
        };
        for id in self.pools.free_blocks() {
            let block = &self.blocks[id];
            let cached_bytes = match block.arena {
                Some(arena) => {
                    let pages = self.arenas.get(arena).whole_pages(block.addr, block.bytes);
                    pages.map_or(0, |(_, bytes)| bytes)
                }
                None if block.is_split() => 0,
                None => block.bytes,
            };
            unused.cached_bytes += cached_bytes;
            unused.pinned_bytes += block.bytes - cached_bytes;
        }
        unused
    }
}
