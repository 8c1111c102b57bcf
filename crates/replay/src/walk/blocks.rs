//! The live blocks of all allocators by address, while events are walked.

use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{Event, EventKind, NO_DEVICE};

use crate::report::{BlockChange, BlockLayer, WalkedBlock};
use crate::state::driver::{DriverChange, DriverState, MemoryPlace};
use crate::util::ids::StackId;
use crate::util::seeded_map::SeededMap;

/// The live blocks by layer, device and address.
#[derive(Debug, Default)]
pub(super) struct LiveBlockTable {
    live: SeededMap<(BlockLayer, u8, u64), WalkedBlock>,
    driver: DriverState,
    changes: Vec<BlockChange>,
}

/// Where and when an event happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockOrigin {
    pub stack: u32,
    pub site: u32,
    /// Nanoseconds since the start of recording.
    pub time_ns: u64,
    pub step: u32,
}

impl LiveBlockTable {
    /// Applies an event; returns the changes that it makes.
    pub(super) fn on_event(&mut self, event: &Event, origin: BlockOrigin) -> &[BlockChange] {
        self.changes.clear();
        match event.kind {
            EventKind::BLOCK_ALLOC => {
                let detail = event.detail;
                self.insert(WalkedBlock {
                    layer: BlockLayer::Torch,
                    device: event.device,
                    requested_bytes: detail.map(|detail| detail.requested_bytes),
                    stream: detail.map(|detail| detail.stream),
                    pool: detail.map(|detail| detail.pool).filter(|pool| *pool != NO_POOL),
                    ..new_block(event, origin)
                });
            }
            EventKind::BLOCK_FREE => self.remove((BlockLayer::Torch, event.device, event.addr)),
            kind if kind.is_driver_call() => self.on_driver_call(event, origin),
            _ => {}
        }
        &self.changes
    }

    #[inline(never)] // Few events are driver calls.
    fn on_driver_call(&mut self, event: &Event, origin: BlockOrigin) {
        self.driver.on_driver_call(event, StackId(origin.stack));
        for change in std::mem::take(&mut self.driver.changes) {
            match change {
                DriverChange::Alloc { key, place, bytes, stack } => {
                    let (layer, device) = layer_of(place);
                    // A graph's memory has the stack of the node, and no known site.
                    let site = if stack.0 == origin.stack { origin.site } else { u32::MAX };
                    let origin = BlockOrigin { stack: stack.0, site, ..origin };
                    let block = new_block(event, origin);
                    self.insert(WalkedBlock { layer, device, addr: key, size_bytes: bytes, ..block });
                }
                DriverChange::Free { key, place } => {
                    let (layer, device) = layer_of(place);
                    self.remove((layer, device, key));
                }
            }
        }
    }

    fn insert(&mut self, block: WalkedBlock) {
        let lost = self.live.insert((block.layer, block.device, block.addr), block);
        self.changes.extend(lost.map(BlockChange::Lost));
        self.changes.push(BlockChange::Allocated(block));
    }

    fn remove(&mut self, key: (BlockLayer, u8, u64)) {
        self.changes.extend(self.live.remove(&key).map(BlockChange::Freed));
    }

    /// The live blocks by layer, device and address.
    pub(super) fn into_sorted(self) -> Vec<WalkedBlock> {
        let mut live: Vec<WalkedBlock> = self.live.into_values().collect();
        live.sort_unstable_by_key(|block| (block.layer, block.device, block.addr));
        live
    }
}

/// A driver block of the event, to be completed.
fn new_block(event: &Event, origin: BlockOrigin) -> WalkedBlock {
    let BlockOrigin { stack, site, time_ns, step } = origin;
    WalkedBlock {
        layer: BlockLayer::Driver,
        device: event.device,
        addr: event.addr,
        size_bytes: event.size,
        requested_bytes: None,
        stream: None,
        pool: None,
        stack,
        site,
        time_ns,
        step,
        seq: event.seq,
        thread: event.thread,
    }
}

fn layer_of(place: MemoryPlace) -> (BlockLayer, u8) {
    match place {
        MemoryPlace::Device(device) => (BlockLayer::Driver, device),
        MemoryPlace::UnknownDevice => (BlockLayer::Driver, NO_DEVICE),
        MemoryPlace::Host => (BlockLayer::Host, NO_DEVICE),
        MemoryPlace::Managed => (BlockLayer::Managed, NO_DEVICE),
        MemoryPlace::Foreign => (BlockLayer::Foreign, NO_DEVICE),
    }
}
