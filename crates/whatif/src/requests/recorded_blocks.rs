//! Numbers for the blocks of a recording, which predictions use as indices.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use gpumemtrace_caching_allocator::AddressHasher;

/// A block of the recording. Its number is reused once its memory is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordedBlock(pub u32);

impl RecordedBlock {
    /// The number as an index.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

type BlocksByAddress = HashMap<u64, RecordedBlock, BuildHasherDefault<AddressHasher>>;

/// The numbers of the blocks by their addresses in the recording.
#[derive(Debug, Default)]
pub(crate) struct BlockNumbers {
    live: BlocksByAddress,
    /// Freed blocks that another stream still uses.
    pending: BlocksByAddress,
    unused: Vec<RecordedBlock>,
    next: u32,
    /// The number of each block among all allocations.
    births: Vec<u64>,
    allocations: u64,
}

impl BlockNumbers {
    /// A number for a new block.
    pub(crate) fn add(&mut self, addr: u64) -> RecordedBlock {
        let block = self.unused.pop().unwrap_or_else(|| {
            self.next += 1;
            RecordedBlock(self.next - 1)
        });
        self.births.resize(self.next as usize, 0);
        self.births[block.index()] = self.allocations;
        self.allocations += 1;
        // Its free is missing in the recording. The number stays taken, so the block stays live.
        self.live.insert(addr, block);
        block
    }

    /// The block that is freed; `None` if it was allocated before the recording.
    pub(crate) fn free(&mut self, addr: u64, is_immediate: bool) -> Option<RecordedBlock> {
        let block = self.live.remove(&addr)?;
        if is_immediate {
            self.unused.push(block);
        } else {
            self.pending.insert(addr, block);
        }
        Some(block)
    }

    /// Number of live blocks.
    pub(crate) fn count_live(&self) -> usize {
        self.live.len()
    }

    /// All live blocks, the oldest first; `None` while other streams use freed ones.
    pub(crate) fn by_age(&self) -> Option<Vec<RecordedBlock>> {
        let mut live: Vec<RecordedBlock> = self.live.values().copied().collect();
        live.sort_unstable_by_key(|block| self.births[block.index()]);
        self.pending.is_empty().then_some(live)
    }

    /// The freed block that no stream uses any more; `None` if its free was not recorded.
    pub(crate) fn complete(&mut self, addr: u64) -> Option<RecordedBlock> {
        let block = self.pending.remove(&addr)?;
        self.unused.push(block);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_reused_when_the_memory_is_free() {
        let mut numbers = BlockNumbers::default();
        let [one, other] = [numbers.add(0x200), numbers.add(0x400)];
        assert_ne!(one, other);
        assert_eq!(numbers.free(0x200, false), Some(one));
        assert_eq!(numbers.free(0x200, true), None, "freed before");
        assert_ne!(numbers.add(0x600), one, "another stream uses it");
        assert_eq!((numbers.complete(0x200), numbers.complete(0x200)), (Some(one), None));
        assert_eq!(numbers.add(0x800), one);
        assert_eq!(numbers.free(0x400, true), Some(other));
        assert_eq!(numbers.add(0x200), other);
    }
}
