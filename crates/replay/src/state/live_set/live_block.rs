//! A live block and its size.

use crate::callsite::call_context::CallContext;
use crate::util::ids::StackId;

/// A block that has not been freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveBlock {
    pub bytes: u64,
    /// The stack that allocated it.
    pub stack: StackId,
    /// Number of steps begun when it was allocated.
    pub step: u32,
    /// The event of the live set that allocated it, counted from 1.
    pub serial: u64,
    /// The requested size, if PyTorch's tracker reported it.
    pub requested_bytes: Option<u64>,
}

/// How a block ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BlockOutcome {
    /// The block is live at the end of the run.
    Live,
    /// The event of its free is missing.
    Unknown,
    /// The block was freed in this context.
    FreedIn(CallContext),
}

/// The size of a block and of the request that it serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSize {
    pub bytes: u64,
    /// The requested size, if PyTorch's tracker reported it.
    pub requested_bytes: Option<u64>,
}
