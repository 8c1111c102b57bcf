//! Segments that PyTorch's tracker did not report, for the blocks in them.
//!
//! The tracker may be missing, or attached late. PyTorch's segments are allocations of the driver,
//! so the allocation that contains a block is its segment. A block outside all of them gets a
//! segment of its own size.

use gpumemtrace_replay::report::{SegmentChange, WalkedEvent, WalkedSegment};

use super::allocator::{AllocatorModel, SnapshotBlock, entry_of};
use super::entry::{SnapshotAction, SnapshotEntry};

impl AllocatorModel {
    /// Makes sure that the block which the event allocates lies in a segment.
    pub(super) fn cover_block(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        let end = event.addr.saturating_add(event.size);
        if self.is_covered(event.device, event.addr, end) {
            return;
        }
        let claimed = self.driver.claim(event.device, event.addr, end);
        self.inexact.driver_segments += claimed.len() as u64;
        for segment in claimed {
            self.add_segment(walked, segment);
        }
        if !self.is_covered(event.device, event.addr, end) {
            self.inexact.homeless_blocks += 1;
            let block = SnapshotBlock {
                bytes: event.size,
                requested_bytes: None,
                stream: None,
                pool: None,
                stack: walked.stack,
                is_pending: false,
            };
            self.add_own_segment(walked, (event.device, event.addr), &block);
        }
    }

    /// True if one segment, or adjacent pieces of an expandable one, contain these addresses.
    fn is_covered(&self, device: u8, begin: u64, end: u64) -> bool {
        let mut at = begin;
        loop {
            let Some(segment) = self.segments.first_in(device, at, 1) else { return false };
            at = segment.addr.saturating_add(segment.bytes);
            if at >= end || !segment.is_expandable {
                return at >= end;
            }
        }
    }

    /// Adds a segment of exactly one block.
    pub(super) fn add_own_segment(
        &mut self,
        walked: &WalkedEvent<'_>,
        (device, addr): (u8, u64),
        block: &SnapshotBlock,
    ) {
        self.add_segment(
            walked,
            WalkedSegment {
                device,
                addr,
                bytes: block.bytes,
                stream: None,
                pool: None,
                is_expandable: false,
                stack: block.stack,
                time_ns: walked.time_ns,
            },
        );
    }

    /// Adds a segment. Blocks in the segments that it replaces stay, unless they reach out of it.
    fn add_segment(&mut self, walked: &WalkedEvent<'_>, segment: WalkedSegment) {
        for border in [segment.addr, segment.addr.saturating_add(segment.bytes)] {
            self.free_range(walked, segment.device, border, border);
        }
        for change in self.segments.insert(segment).to_vec() {
            self.push_segment_entry(walked, &change);
        }
    }

    /// Removes the segment of one block with the block.
    pub(super) fn uncover_block(&mut self, walked: &WalkedEvent<'_>, (device, addr): (u8, u64), bytes: u64) {
        let segment = self.segments.first_in(device, addr, 1);
        let is_own = |segment: &WalkedSegment| {
            segment.stream.is_none()
                && (segment.addr, segment.bytes) == (addr, bytes)
                && !self.driver.is_segment(device, addr)
        };
        if let Some(segment) = segment.filter(is_own) {
            let changes = self.segments.remove(segment).to_vec();
            self.on_segment_changes(walked, &changes);
        }
    }

    /// Removes the driver's ranges that begin at these addresses, and their segments.
    pub(super) fn on_driver_free(&mut self, walked: &WalkedEvent<'_>, device: u8, addrs: (u64, u64)) {
        for segment in self.driver.remove(device, addrs) {
            let changes = self.segments.remove(segment).to_vec();
            self.on_segment_changes(walked, &changes);
        }
    }

    /// Adds the entries of segments that an event added and removed. Blocks in removed ones are
    /// freed first. PyTorch unmaps adjacent pieces at once, so they become one entry.
    pub(super) fn on_segment_changes(&mut self, walked: &WalkedEvent<'_>, changes: &[SegmentChange]) {
        let mut at_once: Option<WalkedSegment> = None;
        for change in changes {
            match (*change, &mut at_once) {
                (SegmentChange::Removed(next), Some(removed)) if is_continued(removed, &next) => {
                    removed.bytes = removed.bytes.saturating_add(next.bytes);
                }
                (SegmentChange::Removed(next), _) => self.remove_segment(walked, at_once.replace(next)),
                (SegmentChange::Added(_), _) => {
                    self.remove_segment(walked, at_once.take());
                    self.push_segment_entry(walked, change);
                }
            }
        }
        self.remove_segment(walked, at_once);
    }

    fn remove_segment(&mut self, walked: &WalkedEvent<'_>, removed: Option<WalkedSegment>) {
        if let Some(segment) = removed {
            let end = segment.addr.saturating_add(segment.bytes);
            self.free_range(walked, segment.device, segment.addr, end);
            self.push_segment_entry(walked, &SegmentChange::Removed(segment));
        }
    }

    fn push_segment_entry(&mut self, walked: &WalkedEvent<'_>, change: &SegmentChange) {
        use SnapshotAction::{SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap};
        let (segment, of_segment, of_mapping, has_stack) = match change {
            SegmentChange::Added(segment) => (segment, SegmentAlloc, SegmentMap, true),
            SegmentChange::Removed(segment) => (segment, SegmentFree, SegmentUnmap, false),
        };
        self.entries.push(SnapshotEntry {
            action: if segment.is_expandable { of_mapping } else { of_segment },
            addr: segment.addr,
            size: segment.bytes,
            stream: segment.stream.unwrap_or(0),
            pool: segment.pool,
            stack: has_stack.then_some(segment.stack),
            ..entry_of(walked, segment.device)
        });
    }
}

/// True if `next` is the piece of the same expandable segment after `removed`.
fn is_continued(removed: &WalkedSegment, next: &WalkedSegment) -> bool {
    let key = |segment: &WalkedSegment| (segment.is_expandable, segment.stream, segment.pool);
    removed.is_expandable
        && key(removed) == key(next)
        && removed.addr.saturating_add(removed.bytes) == next.addr
}
