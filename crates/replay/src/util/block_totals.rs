//! Byte and block counts that saturate: sizes in a damaged trace may overflow `u64`.

/// Saturating sum of byte counts.
pub(crate) fn saturating_sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::saturating_add)
}

/// How much memory a set of blocks takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockTotals {
    pub bytes: u64,
    pub blocks: u64,
}

impl BlockTotals {
    /// Counts one more block of `bytes`.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks += 1;
    }

    /// Counts one block of `bytes` less.
    pub(crate) fn remove(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.blocks = self.blocks.saturating_sub(1);
    }
}
