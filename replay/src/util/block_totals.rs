//! Bytes and blocks, counted without overflow.

/// Together; a damaged file may hold amounts that no number holds.
pub(crate) fn saturating_sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::saturating_add)
}

/// An amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockTotals {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl BlockTotals {
    /// One block more.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    /// One block less.
    pub(crate) fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}
