//! PyTorch's rules for the size of a block.
//!
//! They are those of `round_size` and `should_split` in
//! [CUDACachingAllocator.cpp](https://github.com/pytorch/pytorch/blob/v2.9.1/c10/cuda/CUDACachingAllocator.cpp),
//! unchanged since PyTorch 2.1.

use crate::values::AllocatorSettings;

/// PyTorch's smallest block, and the unit of sizes.
const MIN_BLOCK_BYTES: u64 = 512;
/// Blocks up to this size come from the small pool, which always splits its free ranges.
const MAX_SMALL_BYTES: u64 = 1 << 20;

/// How the allocator rounds and splits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RoundingRules {
    /// For sizes of 1 MiB to 32 GiB, by power of two; empty without divisions.
    divisions: Vec<u64>,
    max_split_bytes: Option<u64>,
    splits_all: bool,
    /// What is added to a request before it is rounded.
    padding_bytes: u64,
}

impl RoundingRules {
    pub(crate) fn new(settings: &AllocatorSettings) -> Self {
        Self {
            divisions: settings.roundup_divisions.clone(),
            max_split_bytes: settings.max_split_bytes.filter(|bytes| *bytes > 0),
            splits_all: settings.expandable_segments,
            padding_bytes: 0,
        }
    }

    /// The rules of an allocator that adds bytes to each request.
    pub(crate) fn with_padding(self, padding_bytes: u64) -> Self {
        Self { padding_bytes, ..self }
    }

    /// The size that a request is rounded up to.
    pub(crate) fn round(&self, requested: u64) -> u64 {
        let requested = requested.saturating_add(self.padding_bytes);
        if requested < MIN_BLOCK_BYTES {
            return MIN_BLOCK_BYTES;
        }
        let power = requested.ilog2().clamp(20, 35) - 20;
        let divisions = self.divisions.get(power as usize).copied().unwrap_or(0);
        if divisions > 1 && requested > MIN_BLOCK_BYTES.saturating_mul(divisions) {
            return round_to_division(requested, divisions);
        }
        requested.checked_next_multiple_of(MIN_BLOCK_BYTES).unwrap_or(requested)
    }

    /// The size of a block for a request in a free range of `room` bytes.
    pub(crate) fn block_bytes(&self, requested: u64, room: u64, is_expandable: bool) -> u64 {
        let rounded = self.round(requested);
        let Some(rest) = room.checked_sub(rounded) else { return rounded };
        let is_split = if rounded <= MAX_SMALL_BYTES || is_expandable || self.splits_all {
            rest >= MIN_BLOCK_BYTES
        } else {
            rest > MAX_SMALL_BYTES && self.max_split_bytes.is_none_or(|most| rounded < most)
        };
        if is_split { rounded } else { room }
    }
}

/// Rounds up to the next of `divisions` equal parts between two powers of two.
fn round_to_division(bytes: u64, divisions: u64) -> u64 {
    if bytes.is_power_of_two() {
        return bytes;
    }
    let floor = 1u64 << bytes.ilog2();
    let part = floor >> divisions.ilog2();
    match part {
        0 => floor.checked_mul(2).unwrap_or(bytes),
        part => bytes.checked_next_multiple_of(part).unwrap_or(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sizes_are_multiples_of_512_and_divisions_round_further() {
        let plain = RoundingRules::default();
        for (requested, bytes) in [(0, 512), (1, 512), (512, 512), (513, 1024), (3 * MIB + 1, 3 * MIB + 512)]
        {
            assert_eq!(plain.round(requested), bytes);
        }
        let settings = AllocatorSettings { roundup_divisions: vec![4; 16], ..AllocatorSettings::default() };
        let divided = RoundingRules::new(&settings);
        // The example in PyTorch's documentation: 1200 becomes 1280 (of 1024 to 2048 in 4 parts).
        assert_eq!(round_to_division(1200, 4), 1280);
        assert_eq!(divided.round(1200), 1536, "too small for divisions");
        assert_eq!(divided.round(5 * MIB + 1), 6 * MIB);
        assert_eq!(divided.round(8 * MIB), 8 * MIB);
    }

    #[test]
    fn large_blocks_keep_a_rest_of_up_to_one_mebibyte() {
        let rules = RoundingRules::default();
        assert_eq!(rules.block_bytes(2 * MIB, 3 * MIB, false), 3 * MIB);
        assert_eq!(rules.block_bytes(2 * MIB, 3 * MIB + 512, false), 2 * MIB);
        assert_eq!(rules.block_bytes(2 * MIB, 3 * MIB, true), 2 * MIB, "expandable segments split all");
        assert_eq!(rules.block_bytes(4, 1024, false), 512, "and so does the small pool");
        let settings = AllocatorSettings { max_split_bytes: Some(32 * MIB), ..AllocatorSettings::default() };
        assert_eq!(RoundingRules::new(&settings).block_bytes(40 * MIB, 60 * MIB, false), 60 * MIB);
    }
}
