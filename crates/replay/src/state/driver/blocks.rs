//! Driver allocations that the program identifies by an address or an array handle.
//!
//! Destroying a context frees its blocks without naming them, so each block stores its context. The
//! handle of a primary context is not recorded: it is the one that no recorded call created. The
//! end of a context visits all live blocks; all other changes are hash map operations.

use gpumemtrace_format::Event;

use super::{AllocationKey, MemoryPlace};

use crate::util::seeded_map::{SeededMap, SeededSet};

/// A live allocation of the driver, or a view of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriverBlock {
    pub(super) place: MemoryPlace,
    /// The device of the context in which it was allocated.
    pub(super) device: u8,
    /// The context that frees it when destroyed; `None` for blocks that outlive their context.
    pub(super) context: Option<u64>,
    /// Number of times that it is open.
    pub(super) open_count: u32,
    /// False for a view of other memory, which has no bytes of its own.
    pub(super) is_counted: bool,
}

impl DriverBlock {
    /// An address range or handle without memory of its own.
    pub(super) fn view(event: &Event, context: Option<u64>) -> Self {
        Self { place: MemoryPlace::Foreign, device: event.device, context, open_count: 1, is_counted: false }
    }
}

/// The result of closing a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClosedBlock {
    /// No block has this key.
    Unknown,
    /// The block was opened more often.
    StillOpen,
    /// The block is removed.
    Removed(DriverBlock),
}

/// The live blocks of a process.
#[derive(Debug, Default)]
pub(super) struct DriverBlocks {
    live: SeededMap<AllocationKey, DriverBlock>,
    /// Contexts created by recorded calls, which are all but the primary contexts.
    created_contexts: SeededSet<u64>,
}

impl DriverBlocks {
    /// Adds a block. Returns the block that had the key, if its free was lost.
    pub(super) fn insert(&mut self, key: AllocationKey, block: DriverBlock) -> Option<DriverBlock> {
        self.live.insert(key, block)
    }

    /// The place of the block with a key.
    pub(super) fn place(&self, key: AllocationKey) -> Option<MemoryPlace> {
        self.live.get(&key).map(|block| block.place)
    }

    /// Opens memory of another process once more. False if it is not open at this address.
    pub(super) fn reopen(&mut self, key: AllocationKey) -> bool {
        let open =
            self.live.get_mut(&key).filter(|block| block.place == MemoryPlace::Foreign && block.is_counted);
        open.map(|block| block.open_count += 1).is_some()
    }

    /// Closes a block once, and removes it if it is no longer open.
    pub(super) fn close(&mut self, key: AllocationKey) -> ClosedBlock {
        let Some(block) = self.live.get_mut(&key) else { return ClosedBlock::Unknown };
        block.open_count -= 1;
        let block = *block;
        if block.open_count > 0 {
            return ClosedBlock::StillOpen;
        }
        self.live.remove(&key);
        ClosedBlock::Removed(block)
    }

    /// Registers a context that a recorded call created.
    pub(super) fn create_context(&mut self, context: u64) {
        self.created_contexts.insert(context);
    }

    /// Removes the blocks of a created context, in order of their keys.
    pub(super) fn destroy_context(&mut self, context: u64) -> Vec<(AllocationKey, DriverBlock)> {
        self.created_contexts.remove(&context);
        self.remove_matching(|block, _| block.context == Some(context))
    }

    /// Removes the blocks of a device's primary context, in order of their keys.
    pub(super) fn release_primary_context(&mut self, device: u8) -> Vec<(AllocationKey, DriverBlock)> {
        self.remove_matching(|block, created| {
            block.device == device && block.context.is_some_and(|context| !created.contains(&context))
        })
    }

    fn remove_matching(
        &mut self,
        matches: impl Fn(&DriverBlock, &SeededSet<u64>) -> bool,
    ) -> Vec<(AllocationKey, DriverBlock)> {
        let matching = self.live.iter().filter(|(_, block)| matches(block, &self.created_contexts));
        let mut removed: Vec<_> = matching.map(|(key, block)| (*key, *block)).collect();
        removed.sort_unstable_by_key(|(key, _)| *key);
        for (key, _) in &removed {
            self.live.remove(key);
        }
        removed
    }
}
