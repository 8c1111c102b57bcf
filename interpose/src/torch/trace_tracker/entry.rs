//! One `TraceEntry` of PyTorch's allocator, read by the field offsets of its version.

use gpumemtrace_format::Detail;
use gpumemtrace_format::event::{NO_POOL, pack_pool_id};

use crate::torch::layouts::TraceEntryLayout;

pub(super) const ALLOC: u32 = 0;
pub(super) const FREE_REQUESTED: u32 = 1;
pub(super) const FREE_COMPLETED: u32 = 2;
pub(super) const SEGMENT_ALLOC: u32 = 3;
pub(super) const SEGMENT_FREE: u32 = 4;
pub(super) const SEGMENT_MAP: u32 = 5;
pub(super) const SEGMENT_UNMAP: u32 = 6;
pub(super) const SNAPSHOT: u32 = 7;
pub(super) const OOM: u32 = 8;
pub(super) const ANNOTATE: u32 = 9;

/// An upper limit for plausible device numbers.
const MAX_DEVICES: u8 = 64;
/// PyTorch splits segments at multiples of this.
const BLOCK_ALIGNMENT: u64 = 512;

/// The fields of an entry that are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TraceEntry {
    pub(super) action: u32,
    pub(super) device: u8,
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) pool: u64,
}

impl TraceEntry {
    pub(super) const EMPTY: Self = Self { action: 0, device: 0, addr: 0, size: 0, stream: 0, pool: 0 };

    /// # Safety
    /// `entry` points to a `TraceEntry` of the version that `layout` describes.
    #[inline]
    pub(super) unsafe fn read(entry: *const u64, layout: &TraceEntryLayout) -> Self {
        // SAFETY: the caller's promise; all fields are plain numbers at their natural alignment.
        let word = |offset: usize| unsafe { entry.byte_add(offset).read() };
        Self {
            // SAFETY: as above.
            action: unsafe { entry.byte_add(layout.action).cast::<u32>().read() },
            // SAFETY: as above; of a wider field this is the low byte.
            device: unsafe { entry.byte_add(layout.device).cast::<u8>().read() },
            addr: word(layout.addr),
            size: word(layout.size),
            stream: word(layout.stream),
            pool: layout.pool.map_or(NO_POOL, |pool| pack_pool_id(word(pool), word(pool + 8))),
        }
    }

    pub(super) fn detail(&self) -> Detail {
        Detail { requested_bytes: self.size, stream: self.stream, pool: self.pool }
    }

    /// True if the fields can be those of an entry. A segment is also compared with
    /// `driver_bytes`, the size that this thread last requested from the driver; 0 if unknown.
    pub(super) fn is_plausible(&self, actions: u32, driver_bytes: u64) -> bool {
        let matches_driver = match self.action {
            // An allocator that the program plugged into a pool may round up what it requests.
            SEGMENT_ALLOC => driver_bytes == 0 || self.size <= driver_bytes,
            SEGMENT_MAP => driver_bytes == 0 || self.size.is_multiple_of(driver_bytes),
            _ => true,
        };
        let has_address = self.action <= SEGMENT_UNMAP;
        let is_valid_range =
            !has_address || self.addr.is_multiple_of(BLOCK_ALIGNMENT) && self.addr != 0 && self.size > 0;
        self.action < actions && self.device < MAX_DEVICES && is_valid_range && matches_driver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(action: u32, addr: u64, size: u64) -> TraceEntry {
        TraceEntry { action, device: 1, addr, size, stream: 9, pool: 0 }
    }

    #[test]
    fn fields_are_read_at_the_offsets_of_the_layout() {
        let layout = TraceEntryLayout {
            release: "0.0",
            action: 0,
            device: 4,
            addr: 8,
            stream: 32,
            size: 40,
            pool: Some(48),
            actions: 9,
        };
        // Eight words: action and device, address, two of a shared_ptr, stream, size, pool.
        let words: [u64; 8] = [3 | 1 << 32, 0x1000, 11, 12, 9, 77, 2, 5];
        // SAFETY: the words cover all offsets of the layout.
        let read = unsafe { TraceEntry::read(words.as_ptr(), &layout) };
        assert_eq!(
            read,
            TraceEntry { action: 3, device: 1, addr: 0x1000, size: 77, stream: 9, pool: 2 << 32 | 5 }
        );
        assert_eq!(pack_pool_id(1 << 32, 0), NO_POOL);
    }

    #[test]
    fn segment_entries_must_match_the_driver_call() {
        let driver_bytes = 2 << 20;
        assert!(entry(SEGMENT_ALLOC, 0x20_0000, 2 << 20).is_plausible(9, driver_bytes));
        assert!(entry(SEGMENT_MAP, 0x20_0000, 20 << 20).is_plausible(9, driver_bytes));
        assert!(!entry(SEGMENT_ALLOC, 0x20_0000, 20 << 20).is_plausible(9, driver_bytes), "another size");
        assert!(!entry(ALLOC, 0x20_0001, 4).is_plausible(9, driver_bytes), "not aligned as a block");
        assert!(!entry(9, 0x20_0000, 4).is_plausible(9, driver_bytes), "no such action");
    }
}
