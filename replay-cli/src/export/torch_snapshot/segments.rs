//! The `segments` of a snapshot: the state of the allocator at the end of the window.

use std::collections::BTreeSet;
use std::io;

use gpumemtrace_replay::report::WalkedSegment;

use super::allocator::{AllocatorModel, SnapshotBlock};
use super::frames::FrameTable;
use super::value_writer::{SharedValue, ValueWriter};

/// PyTorch's `kSmallBuffer`: segments and pages of this size hold small blocks.
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// A segment as PyTorch lists it: adjacent pieces of an expandable segment are one.
struct ListedSegment {
    first: WalkedSegment,
    bytes: u64,
    is_large: bool,
}

impl AllocatorModel {
    /// The stacks of all live blocks and segments.
    pub(super) fn stacks(&self, devices: u8) -> BTreeSet<u32> {
        let segments = (0..devices).flat_map(|device| self.segments.of_device(device));
        let stacks = segments.map(|segment| segment.stack);
        stacks.chain(self.blocks.values().map(|block| block.stack)).collect()
    }

    /// The highest ordinal with a live segment, plus 1.
    pub(super) fn device_count(&self) -> u8 {
        self.blocks.last_key_value().map_or(0, |((device, _), _)| device.saturating_add(1))
    }

    /// Writes the segments of the first `devices` devices by device and address.
    pub(super) fn write_segments(
        &self,
        devices: u8,
        frames: &FrameTable,
        out: &mut dyn ValueWriter,
    ) -> io::Result<()> {
        out.begin_list()?;
        for device in 0..devices {
            let mut listed: Option<ListedSegment> = None;
            for piece in self.segments.of_device(device) {
                match &mut listed {
                    Some(segment) if segment.extends_to(&piece) => {
                        segment.bytes = segment.bytes.saturating_add(piece.bytes);
                        segment.is_large |= piece.bytes > SMALL_SEGMENT_BYTES;
                    }
                    _ => {
                        let is_large = piece.bytes > SMALL_SEGMENT_BYTES;
                        let next = ListedSegment { first: piece, bytes: piece.bytes, is_large };
                        if let Some(complete) = listed.replace(next) {
                            self.write_segment(&complete, frames, out)?;
                        }
                    }
                }
            }
            if let Some(last) = listed {
                self.write_segment(&last, frames, out)?;
            }
        }
        out.end_list()
    }

    fn write_segment(
        &self,
        segment: &ListedSegment,
        frames: &FrameTable,
        out: &mut dyn ValueWriter,
    ) -> io::Result<()> {
        let WalkedSegment { device, addr, .. } = segment.first;
        let end = addr.saturating_add(segment.bytes);
        let blocks = || self.blocks.range((device, addr)..(device, end)).map(|((_, at), block)| (*at, block));
        let sum =
            |bytes: &dyn Fn(&SnapshotBlock) -> u64| blocks().map(|(_, block)| bytes(block)).sum::<u64>();
        out.begin_dict()?;
        out.key("device")?;
        out.unsigned(u64::from(device))?;
        out.key("address")?;
        out.unsigned(addr)?;
        out.key("total_size")?;
        out.unsigned(segment.bytes)?;
        out.key("allocated_size")?;
        out.unsigned(sum(&|block| if block.is_pending { 0 } else { block.bytes }))?;
        out.key("active_size")?;
        out.unsigned(sum(&|block| block.bytes))?;
        out.key("requested_size")?;
        out.unsigned(sum(&SnapshotBlock::shown_bytes))?;
        out.key("stream")?;
        out.unsigned(segment.first.stream.unwrap_or(0))?;
        out.key("segment_type")?;
        out.text(if segment.is_large { "large" } else { "small" })?;
        write_pool("segment_pool_id", segment.first.pool, out)?;
        out.key("is_expandable")?;
        out.boolean(segment.first.is_expandable)?;
        out.key("frames")?;
        frames.write_stack(Some(segment.first.stack), out)?;
        out.key("blocks")?;
        out.begin_list()?;
        let mut at = addr;
        for (block_addr, block) in blocks() {
            write_gap((at, block_addr), out)?;
            let state = if block.is_pending { "active_pending_free" } else { "active_allocated" };
            out.begin_dict()?;
            write_place((block_addr, block.bytes), (block.shown_bytes(), state), out)?;
            out.key("frames")?;
            frames.write_stack(Some(block.stack), out)?;
            out.end_dict()?;
            at = block_addr.saturating_add(block.bytes);
        }
        write_gap((at, end), out)?;
        out.end_list()?;
        out.end_dict()
    }
}

impl ListedSegment {
    fn extends_to(&self, piece: &WalkedSegment) -> bool {
        let WalkedSegment { addr, stream, pool, is_expandable, .. } = self.first;
        is_expandable
            && piece.is_expandable
            && addr.saturating_add(self.bytes) == piece.addr
            && (stream, pool) == (piece.stream, piece.pool)
    }
}

/// Writes an unused part of a segment as PyTorch does, as an inactive block.
fn write_gap((begin, end): (u64, u64), out: &mut dyn ValueWriter) -> io::Result<()> {
    if begin >= end {
        return Ok(());
    }
    out.begin_dict()?;
    write_place((begin, end - begin), (0, "inactive"), out)?;
    out.key("frames")?;
    out.begin_list()?;
    out.end_list()?;
    out.end_dict()
}

fn write_place(
    (addr, bytes): (u64, u64),
    (requested_bytes, state): (u64, &'static str),
    out: &mut dyn ValueWriter,
) -> io::Result<()> {
    out.key("address")?;
    out.unsigned(addr)?;
    out.key("size")?;
    out.unsigned(bytes)?;
    out.key("requested_size")?;
    out.unsigned(requested_bytes)?;
    out.key("state")?;
    out.text(state)
}

/// Writes the id of a pool with its key; nothing if it is unknown.
pub(super) fn write_pool(key: &'static str, pool: Option<u64>, out: &mut dyn ValueWriter) -> io::Result<()> {
    let Some(pool) = pool else { return Ok(()) };
    out.key(key)?;
    out.shared(SharedValue::Pool(pool), &mut |out| out.pair(pool >> 32, pool & 0xffff_ffff))
}
