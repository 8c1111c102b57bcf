//! What happened on each device: the state before the first event, then the events.
//!
//! A snapshot has the state of the allocator at its end and the events before it. Blocks that are
//! freed, or live at the end, without an allocation among the events existed before them:
//! [`start`] finds those. Events have requested sizes only. The size of a block follows from the
//! free range in which PyTorch placed it: [`layout`]. [`accelerator`] finds out which rules apply.

mod accelerator;
mod layout;
mod ranges;
mod rounding;
mod start;

pub(crate) use accelerator::Accelerator;
pub(crate) use layout::{DeviceLayout, HeldBlock, SegmentPiece};
pub(crate) use rounding::RoundingRules;
pub(crate) use start::{EndFact, HistoryStart};

use crate::values::{EventRun, TorchSnapshot};

/// The history of one device.
#[derive(Debug)]
pub(crate) struct TorchDeviceHistory {
    pub(crate) ordinal: u8,
    pub(crate) runs: Vec<EventRun>,
    pub(crate) start: HistoryStart,
}

/// The histories of all devices that have events or segments.
#[derive(Debug)]
pub(crate) struct DeviceHistories {
    pub(crate) snapshot: TorchSnapshot,
    pub(crate) rules: RoundingRules,
    pub(crate) devices: Vec<TorchDeviceHistory>,
    pub(crate) facts: HistoryFacts,
}

/// What is known of a history besides its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HistoryFacts {
    /// Events of all devices.
    pub(crate) events: u64,
    /// Blocks that existed before the first event of their device, and their bytes.
    pub(crate) start_blocks: u64,
    pub(crate) start_bytes: u64,
    /// Events before the first one were recorded, and are no longer there.
    pub(crate) is_overwritten: bool,
    /// Events that contradict each other or the state at the end.
    pub(crate) contradictions: u64,
    /// The kind of the devices, if it is another than CUDA.
    pub(crate) accelerator: Option<Accelerator>,
    /// What the allocator adds to each request before it rounds.
    pub(crate) padding_bytes: u64,
}

impl DeviceHistories {
    pub(crate) fn of(snapshot: TorchSnapshot) -> Self {
        let (accelerator, padding_bytes) = accelerator::find_accelerator(&snapshot);
        let rules = RoundingRules::new(&snapshot.settings).with_padding(padding_bytes);
        let from_segments = snapshot.segments.iter().map(|segment| usize::from(segment.device) + 1).max();
        let count = snapshot.traces.len().max(from_segments.unwrap_or(0));
        let mut facts = HistoryFacts { accelerator, padding_bytes, ..HistoryFacts::default() };
        let mut devices = Vec::new();
        let knows_pools = start::events_know_pools(&snapshot);
        for ordinal in (0..count).filter_map(|ordinal| u8::try_from(ordinal).ok()) {
            let runs = snapshot.traces.get(usize::from(ordinal)).cloned().unwrap_or_default();
            let start = HistoryStart::find(&snapshot, &rules, (ordinal, &runs), knows_pools);
            let events: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
            facts.events += events;
            facts.start_blocks += start.blocks.len() as u64;
            facts.start_bytes = start
                .blocks
                .iter()
                .fold(facts.start_bytes, |sum, block| sum.saturating_add(block.held.bytes));
            facts.contradictions += start.contradictions;
            let settings = &snapshot.settings;
            let is_full = settings.max_entries.is_some_and(|most| most > 0 && events >= most);
            // A block has a stack only if its allocation was recorded. One event is no history:
            // recording only the state (`enabled="state"`) keeps one.
            let lost_allocation = events > 1 && start.blocks.iter().any(|block| block.stack.is_some());
            facts.is_overwritten |= settings.overflowed == Some(true) || is_full || lost_allocation;
            if events > 0 || !start.segments.is_empty() {
                devices.push(TorchDeviceHistory { ordinal, runs, start });
            }
        }
        Self { snapshot, rules, devices, facts }
    }
}
