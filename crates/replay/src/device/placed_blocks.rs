//! The live blocks of a kept state by address, in a few bytes each.
//!
//! A run with a leak has a million live blocks, in each of its states. A block is three LEB128
//! numbers: the distance of its address from the one before, and the zigzag differences of its
//! bytes and its stack. That takes 4 to 9 bytes in common traces, where a struct takes 24. The
//! blocks can only be read in order. The tests below check any values, and the size.

/// Address, bytes and stack of a live block.
pub(crate) type BlockPlace = (u64, u64, u32);

/// Blocks in the order of their addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacedBlocks {
    packed: Vec<u8>,
    count: usize,
}

impl PlacedBlocks {
    /// Packs blocks that ascend by address.
    pub(crate) fn pack(blocks: impl Iterator<Item = BlockPlace>) -> Self {
        let mut packed = Vec::new();
        let (mut before, mut count) = (BlockPlace::default(), 0);
        for block in blocks {
            push_number(&mut packed, block.0.wrapping_sub(before.0));
            push_number(&mut packed, zigzag(block.1.wrapping_sub(before.1)));
            push_number(&mut packed, zigzag(u64::from(block.2).wrapping_sub(u64::from(before.2))));
            before = block;
            count += 1;
        }
        packed.shrink_to_fit();
        Self { packed, count }
    }

    /// The blocks by address. Each costs three short loops.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = BlockPlace> + '_ {
        let (mut rest, mut before) = (self.packed.as_slice(), BlockPlace::default());
        (0..self.count).map(move |_| {
            before.0 = before.0.wrapping_add(take_number(&mut rest));
            before.1 = before.1.wrapping_add(unzigzag(take_number(&mut rest)));
            before.2 = u64::from(before.2).wrapping_add(unzigzag(take_number(&mut rest))) as u32;
            before
        })
    }

    /// Number of blocks, which costs no reading.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The same blocks with other numbers of their stacks.
    pub(crate) fn with_stacks(&self, mut number_of: impl FnMut(u32) -> u32) -> Self {
        Self::pack(self.iter().map(|(addr, bytes, stack)| (addr, bytes, number_of(stack))))
    }
}

fn push_number(packed: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        packed.push(value as u8 | 0x80);
        value >>= 7;
    }
    packed.push(value as u8);
}

fn take_number(rest: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0u64, 0);
    while let Some((byte, after)) = rest.split_first() {
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

/// Maps differences near zero to small numbers.
fn zigzag(difference: u64) -> u64 {
    let difference = difference.cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packed_blocks_are_read_back(
            mut blocks in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..200),
        ) {
            blocks.sort_unstable();
            let packed = PlacedBlocks::pack(blocks.iter().copied());
            prop_assert_eq!((packed.len(), packed.iter().len()), (blocks.len(), blocks.len()));
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), blocks.clone());
            let renumbered = packed.with_stacks(|stack| stack ^ 5);
            prop_assert!(renumbered.iter().zip(&blocks).all(|(new, old)| new == (old.0, old.1, old.2 ^ 5)));
        }
    }

    #[test]
    fn block_of_a_steady_leak_takes_a_few_bytes() {
        // A block of 4,096 bytes every 8 MiB, and every third of another stack.
        let blocks = (0..1000u64)
            .map(|index| (0x7f00_0000_0000 + (index << 23), 4096, 40 + u32::from(index.is_multiple_of(3))));
        let packed = PlacedBlocks::pack(blocks);
        assert!(packed.packed.capacity() <= 7 * packed.len(), "{} bytes", packed.packed.capacity());
    }
}
