//! Identifiers of blocks, pools, arenas and events. Blocks name their pool and pools name their
//! free blocks, so all of them live here.

/// Index of a block in the [`BlockTable`](super::blocks::BlockTable). Reused after the block is
/// removed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct BlockId(pub(super) u32);

impl BlockId {
    /// Sorts before every other id.
    pub(crate) const LEAST: Self = Self(0);
}

/// A block that the program holds, for callers that keep track of their blocks themselves. It must
/// be freed at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramBlock(pub(super) BlockId);

/// Index of a pool in the [`PoolTable`](super::pools::PoolTable). Index 0 is the default pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolIndex(pub(super) u32);

/// Index of an expandable segment in the [`ArenaTable`](super::arenas::ArenaTable).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaId(pub(super) u32);

/// Both halves of PyTorch's `MempoolId_t`; `(0, 0)` is the default pool.
pub type PoolId = (u64, u64);

/// Names a free that was begun and not finished. An address cannot: the block may be completed
/// early, and then serve another request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FreeTicket(pub(super) u64);

/// Handle of a driver event that was recorded on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventId(
    /// The backend's number for the event.
    pub u64,
);
