//! The events before the moments at which the history kept exact states.
//!
//! Several events may have the time of a moment. The history says how many block events of the
//! device came before it, so the walk counts them.

use std::collections::BTreeMap;

use gpumemtrace_format::EventKind;
use gpumemtrace_replay::RunHistory;
use gpumemtrace_replay::report::WalkedEvent;

/// The sequence numbers of the last block events up to the moments of a history.
#[derive(Debug, Default)]
pub(crate) struct MomentEvents {
    /// By ordinal of the device.
    devices: BTreeMap<u8, CountedMoments>,
}

/// The moments of one device.
#[derive(Debug)]
struct CountedMoments {
    block_events: u64,
    /// Numbers of block events up to a moment, ascending.
    wanted: Vec<u64>,
    /// The sequence numbers of those that were passed.
    seqs: Vec<u64>,
}

impl MomentEvents {
    pub(super) fn new(history: &RunHistory) -> Self {
        let devices = history.devices.iter().map(|device| {
            let mut wanted: Vec<u64> = device.states.iter().map(|state| state.block_events).collect();
            wanted.retain(|events| *events > 0);
            wanted.sort_unstable();
            wanted.dedup();
            (device.ordinal, CountedMoments { block_events: 0, wanted, seqs: Vec::new() })
        });
        Self { devices: devices.collect() }
    }

    /// Takes the next event of the walk.
    #[inline]
    pub(super) fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if !matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE) {
            return;
        }
        let Some(device) = self.devices.get_mut(&event.device) else { return };
        device.block_events += 1;
        if device.wanted.get(device.seqs.len()) == Some(&device.block_events) {
            device.seqs.push(event.seq);
        }
    }

    /// The sequence number of the block event of this number on a device. `None` if no state of the
    /// history has this number, or if the walk ended before.
    pub(crate) fn seq_of(&self, device: u8, block_events: u64) -> Option<u64> {
        let device = self.devices.get(&device)?;
        let index = device.wanted.binary_search(&block_events).ok()?;
        device.seqs.get(index).copied()
    }
}
