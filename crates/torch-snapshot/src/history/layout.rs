//! The segments and blocks of a device at one moment.

use std::collections::BTreeMap;

use super::RoundingRules;

/// A segment, or a mapped piece of an expandable one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentPiece {
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: u64,
    pub(crate) is_expandable: bool,
}

/// A block that a tensor holds, or that waits for another stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldBlock {
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) pool: u64,
    /// Freed, and still used by another stream.
    pub(crate) is_pending: bool,
}

/// Segments and blocks by address, and their sums.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceLayout {
    segments: BTreeMap<u64, SegmentPiece>,
    blocks: BTreeMap<u64, HeldBlock>,
    /// Bytes of blocks that tensors hold.
    pub(crate) live_bytes: u64,
    /// Sum of the bytes of all segments.
    pub(crate) reserved_bytes: u64,
}

impl DeviceLayout {
    /// Adds a segment in place of what was at its addresses.
    pub(crate) fn map(&mut self, addr: u64, piece: SegmentPiece) {
        self.unmap(addr, piece.bytes);
        if piece.bytes > 0 {
            self.reserved_bytes = self.reserved_bytes.saturating_add(piece.bytes);
            self.segments.insert(addr, piece);
        }
    }

    /// Removes a range of segments; those across its borders are cut.
    pub(crate) fn unmap(&mut self, addr: u64, bytes: u64) {
        let end = addr.saturating_add(bytes);
        let before = self.segments.range(..addr).next_back();
        let first = before.filter(|(at, piece)| at.saturating_add(piece.bytes) > addr).map(|(at, _)| *at);
        let inside = self.segments.range(addr..end.max(addr)).map(|(at, _)| *at);
        for at in first.into_iter().chain(inside).collect::<Vec<u64>>() {
            let Some(piece) = self.segments.remove(&at) else { continue };
            self.reserved_bytes = self.reserved_bytes.saturating_sub(piece.bytes);
            let piece_end = at.saturating_add(piece.bytes);
            for (from, to) in [(at, addr.min(piece_end)), (end.max(at), piece_end)] {
                if let Some(rest @ 1..) = to.checked_sub(from) {
                    self.reserved_bytes = self.reserved_bytes.saturating_add(rest);
                    self.segments.insert(from, SegmentPiece { bytes: rest, ..piece });
                }
            }
        }
    }

    /// The segment that contains an address, and its first address.
    pub(crate) fn segment_at(&self, addr: u64) -> Option<(u64, &SegmentPiece)> {
        let (at, piece) = self.segments.range(..=addr).next_back()?;
        (addr - at < piece.bytes).then_some((*at, piece))
    }

    /// The size of a block that PyTorch allocates here for a request; the rounded request in no
    /// known segment.
    pub(crate) fn size_at(&self, addr: u64, requested: u64, rules: &RoundingRules) -> u64 {
        let Some((at, piece)) = self.segment_at(addr) else { return rules.round(requested) };
        if piece.is_expandable {
            return rules.round(requested);
        }
        let segment_end = at.saturating_add(piece.bytes);
        let next = self.blocks.range(addr.saturating_add(1)..).next().map_or(u64::MAX, |(at, _)| *at);
        rules.block_bytes(requested, segment_end.min(next) - addr, false)
    }

    /// Adds a block. Returns the block that was held at this address, if its free is missing.
    pub(crate) fn hold(&mut self, addr: u64, block: HeldBlock) -> Option<HeldBlock> {
        let replaced = self.blocks.insert(addr, block);
        self.live_bytes = self.live_bytes.saturating_sub(replaced.map_or(0, live_bytes_of));
        self.live_bytes = self.live_bytes.saturating_add(live_bytes_of(block));
        replaced
    }

    /// The block at an address.
    pub(crate) fn block_at(&self, addr: u64) -> Option<&HeldBlock> {
        self.blocks.get(&addr)
    }

    /// Lets a block wait for other streams: it is not live, and its range is not free.
    pub(crate) fn set_pending(&mut self, addr: u64) {
        if let Some(block) = self.blocks.get_mut(&addr) {
            self.live_bytes = self.live_bytes.saturating_sub(live_bytes_of(*block));
            block.is_pending = true;
        }
    }

    /// Makes the range of a block free.
    pub(crate) fn release(&mut self, addr: u64) -> Option<HeldBlock> {
        let block = self.blocks.remove(&addr)?;
        self.live_bytes = self.live_bytes.saturating_sub(live_bytes_of(block));
        Some(block)
    }
}

fn live_bytes_of(block: HeldBlock) -> u64 {
    if block.is_pending { 0 } else { block.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64) -> SegmentPiece {
        SegmentPiece { bytes, stream: 0, pool: 0, is_expandable: false }
    }

    fn block(bytes: u64) -> HeldBlock {
        HeldBlock { bytes, requested: bytes, stream: 0, pool: 0, is_pending: false }
    }

    #[test]
    fn unmapping_the_middle_leaves_two_pieces() {
        let mut layout = DeviceLayout::default();
        layout.map(100, piece(60));
        layout.unmap(120, 20);
        assert_eq!(layout.reserved_bytes, 40);
        assert!(layout.segment_at(119).is_some() && layout.segment_at(120).is_none());
        assert_eq!(layout.segment_at(159).map(|(at, piece)| (at, piece.bytes)), Some((140, 20)));
    }

    #[test]
    fn last_block_of_a_segment_takes_a_small_rest() {
        const MIB: u64 = 1 << 20;
        let (mut layout, rules) = (DeviceLayout::default(), RoundingRules::default());
        layout.map(0, piece(20 * MIB));
        assert_eq!(layout.size_at(0, 19 * MIB, &rules), 20 * MIB);
        assert_eq!(layout.size_at(0, 18 * MIB, &rules), 18 * MIB);
        layout.hold(5 * MIB, block(15 * MIB));
        assert_eq!(layout.size_at(0, 4 * MIB + 1, &rules), 5 * MIB, "up to the next block");
    }

    #[test]
    fn pending_blocks_are_not_live_and_keep_their_range() {
        let mut layout = DeviceLayout::default();
        layout.map(0, piece(4096));
        layout.hold(0, block(512));
        layout.hold(512, block(512));
        layout.set_pending(0);
        assert_eq!((layout.live_bytes, layout.block_at(0).is_some()), (512, true));
        assert!(layout.release(0).is_some());
        assert_eq!(layout.live_bytes, 512);
    }
}
