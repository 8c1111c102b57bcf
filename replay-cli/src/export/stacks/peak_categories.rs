//! The categories of the blocks of a run's peak.

use std::collections::BTreeMap;

use gpumemtrace_format::EventKind;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, Category, MemoryLayer, WalkedBlock, WalkedEvent};
use gpumemtrace_replay::{Section, add_peak_blocks, report};

use crate::export::ExportRun;

/// The categories of blocks of PyTorch's allocator that are live at the peak of their device.
///
/// The report numbers the allocator's events on each device. The number of the event that allocated
/// a block identifies it here.
#[derive(Debug, Default)]
pub(super) struct PeakCategories {
    /// By device and number of the event; with the address.
    blocks: BTreeMap<(u8, u64), (u64, Category)>,
    /// Number of events so far by device.
    events: BTreeMap<u8, u64>,
    /// By sequence number of the event that allocated the block.
    found: BTreeMap<u64, Category>,
}

impl PeakCategories {
    pub(super) fn of_run(run: &ExportRun) -> Self {
        let analyses = std::slice::from_ref(&run.analysis);
        let mut peaks = report(analyses, &[Section::Peak]);
        add_peak_blocks(&mut peaks, analyses);
        let mut categories = Self::default();
        for peak in peaks.peak.into_iter().flatten().filter(|peak| peak.layer == MemoryLayer::Torch) {
            let Ok(device) = u8::try_from(peak.device) else { continue };
            for row in peak.blocks.into_iter().flatten() {
                categories.blocks.insert((device, row.allocated_at_event), (row.addr, row.category));
            }
        }
        categories
    }

    /// Takes the next event of the walk.
    pub(super) fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if self.blocks.is_empty() || !matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            return;
        }
        let number = self.events.entry(event.device).or_default();
        *number += 1;
        for change in walked.changes {
            if let BlockChange::Allocated(block) = change
                && block.layer == BlockLayer::Torch
                && let Some((addr, category)) = self.blocks.get(&(block.device, *number))
                && *addr == block.addr
            {
                self.found.insert(block.seq, *category);
            }
        }
    }

    /// The category of a block that was live at the peak, once its allocation was passed.
    pub(super) fn category_of(&self, block: &WalkedBlock) -> Option<Category> {
        self.found.get(&block.seq).copied().filter(|_| block.layer == BlockLayer::Torch)
    }
}
