//! The allocator's blocks while events are walked, and the entries of a snapshot that each event
//! becomes.
//!
//! The viewer starts from the state at the end and undoes one entry after the other. It fails if a
//! block lies outside every segment, or if the free of an unknown block is undone. So the entries
//! are made from the state here, not from the events alone. A block that loses its memory without
//! a free is freed first, and a block without a known segment gets one (`coverage.rs`).

use std::collections::{BTreeMap, BTreeSet};

use gpumemtrace_format::event::{FLAG_FREED_AT_ONCE, NO_POOL};
use gpumemtrace_format::{Event, EventKind, NO_DEVICE};
use gpumemtrace_replay::LiveSegments;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

use super::driver_ranges::DriverRanges;
use super::entry::{SnapshotAction, SnapshotEntry};
use super::labels::MomentLabels;

/// First address of blocks that have a handle instead of an address.
const FIRST_HANDLE_ADDR: u64 = 1 << 50;
/// Distance of such blocks.
const HANDLE_ALIGNMENT: u64 = 1 << 21;

/// A block that is live, or freed while another stream still uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SnapshotBlock {
    /// Bytes that the block occupies.
    pub bytes: u64,
    /// Bytes that the program requested; `None` if unknown.
    pub requested_bytes: Option<u64>,
    pub stream: Option<u64>,
    pub pool: Option<u64>,
    pub stack: u32,
    /// Freed by the program, and still in use by a stream.
    pub is_pending: bool,
}

impl SnapshotBlock {
    /// The size in entries, as in PyTorch: what was requested, if known.
    pub(super) fn shown_bytes(&self) -> u64 {
        self.requested_bytes.unwrap_or(self.bytes)
    }
}

/// What the entries do not show as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Inexactness {
    /// Frees of blocks that were allocated before the recording.
    pub unknown_frees: u64,
    /// Blocks that lost their memory without a free.
    pub lost_frees: u64,
    /// Blocks with an unknown requested size.
    pub unrequested_blocks: u64,
    /// Segments taken from the driver's allocations.
    pub driver_segments: u64,
    /// Blocks outside all known memory, with a segment of their own.
    pub homeless_blocks: u64,
    /// Allocations without an address.
    pub handles: u64,
    /// Allocations on an unknown device.
    pub unknown_devices: u64,
}

/// The blocks and segments of all devices.
pub(super) struct AllocatorModel {
    pub(super) segments: LiveSegments,
    pub(super) inexact: Inexactness,
    pub(super) blocks: BTreeMap<(u8, u64), SnapshotBlock>,
    pub(super) entries: Vec<SnapshotEntry>,
    /// Devices with blocks of PyTorch's allocator. Others show the driver's memory.
    torch_devices: BTreeSet<u8>,
    pub(super) driver: DriverRanges,
    labels: MomentLabels,
    /// The address given to each live allocation that has a handle instead.
    handle_addrs: BTreeMap<(u8, u64), u64>,
    next_handle_addr: u64,
}

impl AllocatorModel {
    pub(super) fn new(torch_devices: BTreeSet<u8>, labels: MomentLabels) -> Self {
        Self {
            segments: LiveSegments::default(),
            inexact: Inexactness::default(),
            blocks: BTreeMap::new(),
            entries: Vec::new(),
            torch_devices,
            driver: DriverRanges::default(),
            labels,
            handle_addrs: BTreeMap::new(),
            next_handle_addr: FIRST_HANDLE_ADDR,
        }
    }

    /// Applies an event; returns the entries that it becomes.
    pub(super) fn on_event(&mut self, walked: &WalkedEvent<'_>) -> &[SnapshotEntry] {
        self.entries.clear();
        let Self { labels, entries, .. } = self;
        labels.pass(walked, |text| entries.push(label_entry(walked, None, text)));
        let is_torch = self.torch_devices.contains(&walked.event.device);
        match walked.event.kind {
            EventKind::BLOCK_ALLOC => self.on_block_alloc(walked),
            EventKind::BLOCK_FREE => self.on_block_free(walked),
            EventKind::BLOCK_FREE_COMPLETED => self.on_free_completed(walked),
            EventKind::BLOCK_OOM | EventKind::TORCH_SNAPSHOT => self.on_message(walked),
            EventKind::MAP if is_torch => self.driver.map(walked),
            EventKind::UNMAP if is_torch => {
                let Event { device, addr, size, .. } = *walked.event;
                self.on_driver_free(walked, device, (addr, addr.saturating_add(size)));
            }
            _ => {}
        }
        let changes = self.segments.on_event(walked).to_vec();
        self.on_segment_changes(walked, &changes);
        for change in walked.changes {
            match change {
                BlockChange::Allocated(block) if block.layer == BlockLayer::Driver => {
                    self.on_driver_alloc(walked, block);
                }
                BlockChange::Freed(block) | BlockChange::Lost(block) if block.layer == BlockLayer::Driver => {
                    if self.torch_devices.contains(&block.device) {
                        let addrs = (block.addr, block.addr.saturating_add(1));
                        self.on_driver_free(walked, block.device, addrs);
                    } else {
                        self.free_driver_block(walked, block);
                    }
                }
                _ => {}
            }
        }
        &self.entries
    }

    fn on_block_alloc(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        self.free_range(walked, event.device, event.addr, event.addr.saturating_add(event.size));
        self.cover_block(walked);
        let detail = event.detail;
        let block = SnapshotBlock {
            bytes: event.size,
            requested_bytes: detail.map(|detail| detail.requested_bytes),
            stream: detail.map(|detail| detail.stream),
            pool: detail.map(|detail| detail.pool).filter(|pool| *pool != NO_POOL),
            stack: walked.stack,
            is_pending: false,
        };
        self.inexact.unrequested_blocks += u64::from(detail.is_none());
        self.insert_block(walked, (event.device, event.addr), block);
    }

    fn insert_block(&mut self, walked: &WalkedEvent<'_>, at: (u8, u64), block: SnapshotBlock) {
        self.push_block_entry(walked, SnapshotAction::Alloc, at, &block);
        self.blocks.insert(at, block);
    }

    fn on_block_free(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        let at = (event.device, event.addr);
        match self.blocks.get(&at).copied() {
            Some(block) if !block.is_pending => {
                self.push_block_entry(walked, SnapshotAction::FreeRequested, at, &block);
                if event.detail.is_some() && event.flags & FLAG_FREED_AT_ONCE == 0 {
                    self.blocks.insert(at, SnapshotBlock { is_pending: true, ..block });
                } else {
                    self.complete_free(walked, at, &block);
                }
            }
            _ => self.inexact.unknown_frees += 1,
        }
    }

    fn on_free_completed(&mut self, walked: &WalkedEvent<'_>) {
        let at = (walked.event.device, walked.event.addr);
        if let Some(block) = self.blocks.get(&at).copied().filter(|block| block.is_pending) {
            self.complete_free(walked, at, &block);
        }
    }

    fn complete_free(&mut self, walked: &WalkedEvent<'_>, at: (u8, u64), block: &SnapshotBlock) {
        self.push_block_entry(walked, SnapshotAction::FreeCompleted, at, block);
        self.blocks.remove(&at);
        self.uncover_block(walked, at, block.bytes);
    }

    /// Frees the blocks with addresses from `begin` to `end`: their memory is no longer theirs.
    pub(super) fn free_range(&mut self, walked: &WalkedEvent<'_>, device: u8, begin: u64, end: u64) {
        let before = self.blocks.range((device, 0)..(device, begin)).next_back();
        let reaches_in = before.filter(|((_, addr), block)| addr.saturating_add(block.bytes) > begin);
        let inside = self.blocks.range((device, begin)..(device, end.max(begin)));
        let lost: Vec<_> = reaches_in.into_iter().chain(inside).map(|(at, block)| (*at, *block)).collect();
        for (at, block) in lost {
            if !block.is_pending {
                self.inexact.lost_frees += 1;
                self.push_block_entry(walked, SnapshotAction::FreeRequested, at, &block);
            }
            self.complete_free(walked, at, &block);
        }
    }

    fn on_message(&mut self, walked: &WalkedEvent<'_>) {
        let Event { kind, device, addr, size, aux, detail, .. } = *walked.event;
        let entry = match (kind, detail) {
            (EventKind::BLOCK_OOM, None) => {
                let text = format!("out of memory: {size} bytes requested; free device memory is unknown");
                label_entry(walked, Some(device), text)
            }
            (EventKind::BLOCK_OOM, Some(detail)) => SnapshotEntry {
                action: SnapshotAction::OutOfMemory,
                addr,
                stream: detail.stream,
                pool: Some(detail.pool).filter(|pool| *pool != NO_POOL),
                ..entry_of(walked, device)
            },
            _ => SnapshotEntry {
                action: SnapshotAction::Snapshot,
                pool: Some(aux[1]).filter(|pool| *pool != NO_POOL),
                ..entry_of(walked, device)
            },
        };
        self.entries.push(entry);
    }

    /// Shows driver memory of a device without PyTorch as a block in a segment of its own.
    fn on_driver_alloc(&mut self, walked: &WalkedEvent<'_>, allocated: &WalkedBlock) {
        if self.torch_devices.contains(&allocated.device) {
            self.driver.alloc(allocated);
            return;
        }
        if allocated.device == NO_DEVICE {
            self.inexact.unknown_devices += 1;
            return;
        }
        let addr = self.place_driver_block(allocated);
        let block = SnapshotBlock {
            bytes: allocated.size_bytes,
            requested_bytes: Some(allocated.size_bytes),
            stream: None,
            pool: None,
            stack: allocated.stack,
            is_pending: false,
        };
        self.free_range(walked, allocated.device, addr, addr.saturating_add(block.bytes));
        self.add_own_segment(walked, (allocated.device, addr), &block);
        self.insert_block(walked, (allocated.device, addr), block);
    }

    /// The address of a block. Handles get addresses that no other block ever had.
    fn place_driver_block(&mut self, block: &WalkedBlock) -> u64 {
        if block.addr != 0 && block.addr < FIRST_HANDLE_ADDR {
            return block.addr;
        }
        self.inexact.handles += 1;
        let addr = self.next_handle_addr;
        let bytes = block.size_bytes.max(1).checked_next_multiple_of(HANDLE_ALIGNMENT);
        self.next_handle_addr = addr.saturating_add(bytes.unwrap_or(u64::MAX));
        self.handle_addrs.insert((block.device, block.addr), addr);
        addr
    }

    fn free_driver_block(&mut self, walked: &WalkedEvent<'_>, freed: &WalkedBlock) {
        let handle = self.handle_addrs.remove(&(freed.device, freed.addr));
        let at = (freed.device, handle.unwrap_or(freed.addr));
        if let Some(block) = self.blocks.get(&at).copied() {
            if !block.is_pending {
                self.push_block_entry(walked, SnapshotAction::FreeRequested, at, &block);
            }
            self.complete_free(walked, at, &block);
        }
    }

    fn push_block_entry(
        &mut self,
        walked: &WalkedEvent<'_>,
        action: SnapshotAction,
        (device, addr): (u8, u64),
        block: &SnapshotBlock,
    ) {
        self.entries.push(SnapshotEntry {
            action,
            addr,
            size: block.shown_bytes(),
            stream: block.stream.unwrap_or(0),
            pool: block.pool,
            stack: (action == SnapshotAction::Alloc).then_some(block.stack),
            ..entry_of(walked, device)
        });
    }
}

/// An entry with the size, stack and time of an event.
pub(super) fn entry_of(walked: &WalkedEvent<'_>, device: u8) -> SnapshotEntry {
    SnapshotEntry {
        action: SnapshotAction::UserDefined,
        device: Some(device),
        addr: 0,
        size: walked.event.size,
        stream: 0,
        pool: None,
        stack: Some(walked.stack),
        time_ns: walked.time_ns,
        label: None,
    }
}

fn label_entry(walked: &WalkedEvent<'_>, device: Option<u8>, text: String) -> SnapshotEntry {
    let stack = device.map(|_| walked.stack);
    SnapshotEntry { device, size: 0, stack, label: Some(text), ..entry_of(walked, 0) }
}

#[cfg(test)]
#[path = "allocator_tests.rs"]
mod tests;
