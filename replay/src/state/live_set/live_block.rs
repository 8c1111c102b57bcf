//! One live block.

use crate::callsite::symbols::StackId;

/// A block that has not been freed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveBlock {
    /// Bytes.
    pub bytes: u64,
    /// Who allocated it.
    pub stack: StackId,
    /// Steps begun when it was.
    pub step: u32,
    /// Which event of the book brought it, counted from 1.
    pub born: u64,
    /// What was asked for, where PyTorch's tracker said it.
    pub requested_bytes: Option<u64>,
}
