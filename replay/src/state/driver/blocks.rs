//! Blocks that a program knows by an address or an array's handle.
//!
//! A block made in a context dies with it, and the call that ends the context names no block. Consequence: each block knows
//! its context. The primary context's handle need not be known: it is the one that no recorded call created.

use gpumemtrace_format::Event;

use super::{AllocationKey, MemoryPlace};

use crate::util::seeded_map::{SeededMap, SeededSet};

/// A live block.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriverBlock {
    /// Where it lies.
    pub(super) place: MemoryPlace,
    /// The device whose context it was made in.
    pub(super) device: u8,
    /// The context that it dies with; none for what outlives its context.
    pub(super) context: Option<u64>,
    /// How often it was opened.
    pub(super) times: u32,
    /// Whether its bytes count; a view of other memory has none of its own.
    pub(super) counted: bool,
}

impl DriverBlock {
    /// Addresses or a handle without memory of its own.
    pub(super) fn view(event: &Event, context: Option<u64>) -> Self {
        Self { place: MemoryPlace::Foreign, device: event.device, context, times: 1, counted: false }
    }
}

/// What became of a block that was ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndedBlock {
    /// There is none.
    Unknown,
    /// It was opened more often.
    StillOpen,
    /// It is gone.
    Gone(DriverBlock),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct DriverBlocks {
    live: SeededMap<AllocationKey, DriverBlock>,
    /// Contexts that recorded calls created: all but the primary ones.
    created: SeededSet<u64>,
}

impl DriverBlocks {
    /// A new block; the one it took the place of, whose end was not seen.
    pub(super) fn insert(&mut self, key: AllocationKey, block: DriverBlock) -> Option<DriverBlock> {
        self.live.insert(key, block)
    }

    /// Another process's memory opened once more, at the address it already has.
    pub(super) fn open_again(&mut self, key: AllocationKey) -> bool {
        let open =
            self.live.get_mut(&key).filter(|block| block.place == MemoryPlace::Foreign && block.counted);
        open.map(|block| block.times += 1).is_some()
    }

    /// Ends one use.
    pub(super) fn remove(&mut self, key: AllocationKey) -> EndedBlock {
        let Some(block) = self.live.get_mut(&key) else { return EndedBlock::Unknown };
        block.times -= 1;
        let block = *block;
        if block.times > 0 {
            return EndedBlock::StillOpen;
        }
        self.live.remove(&key);
        EndedBlock::Gone(block)
    }

    /// A context was created.
    pub(super) fn context_begins(&mut self, context: u64) {
        self.created.insert(context);
    }

    /// A created context ended: the blocks that went with it.
    pub(super) fn context_ends(&mut self, context: u64) -> Vec<(AllocationKey, DriverBlock)> {
        self.created.remove(&context);
        self.take(|block, _| block.context == Some(context))
    }

    /// A device's primary context ended: the blocks that went with it.
    pub(super) fn primary_context_ends(&mut self, device: u8) -> Vec<(AllocationKey, DriverBlock)> {
        self.take(|block, created| {
            block.device == device && block.context.is_some_and(|context| !created.contains(&context))
        })
    }

    fn take(
        &mut self,
        dies: impl Fn(&DriverBlock, &SeededSet<u64>) -> bool,
    ) -> Vec<(AllocationKey, DriverBlock)> {
        let dying = self.live.iter().filter(|(_, block)| dies(block, &self.created));
        let mut dying: Vec<_> = dying.map(|(key, block)| (*key, *block)).collect();
        dying.sort_unstable_by_key(|(key, _)| *key);
        for (key, _) in &dying {
            self.live.remove(key);
        }
        dying
    }
}
