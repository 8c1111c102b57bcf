//! Allocations and frees of a device in a window, as rows of a profile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

use super::sampling::{ByteSampling, RowCounts};
use crate::export::ExportRun;

/// Allocations and frees of one device, in columns of equal length, by time.
#[derive(Debug, Default)]
pub(super) struct AllocationRows {
    /// Nanoseconds since the start of recording.
    pub(super) times_ns: Vec<u64>,
    /// The bytes that a block stands for; negative for frees.
    pub(super) weights_bytes: Vec<i64>,
    /// The stack that allocated or freed.
    pub(super) stacks: Vec<u32>,
    pub(super) addresses: Vec<u64>,
    pub(super) threads: Vec<u32>,
}

/// The rows of a run.
#[derive(Debug)]
pub(super) struct RunRows {
    pub(super) by_device: BTreeMap<u8, AllocationRows>,
    /// The time of the last event in the window; `None` if it has no events.
    pub(super) last_ns: Option<u64>,
}

impl AllocationRows {
    fn push(&mut self, time_ns: u64, weight_bytes: i64, stack: u32, block: (u64, u32)) {
        let (address, thread) = block;
        self.times_ns.push(time_ns);
        self.weights_bytes.push(weight_bytes);
        self.stacks.push(stack);
        self.addresses.push(address);
        self.threads.push(thread);
    }
}

/// Counts the rows of a window by size: its events, and the blocks that are live at its begin.
pub(super) fn count_rows(
    run: &mut ExportRun,
    layers: &BTreeMap<u8, BlockLayer>,
    counts: &mut RowCounts,
) -> anyhow::Result<()> {
    run.walk(&mut |walked| {
        for (block, is_alloc) in changes(walked, layers) {
            match (is_alloc, walked.is_inside) {
                (true, _) | (false, true) => counts.add(block.size_bytes),
                (false, false) => counts.remove(block.size_bytes),
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(())
}

/// The sampled rows of a window by device. Blocks that are live at its begin come first, with the
/// time of its first event.
pub(super) fn read_rows(
    run: &mut ExportRun,
    layers: &BTreeMap<u8, BlockLayer>,
    sampling: ByteSampling,
) -> anyhow::Result<RunRows> {
    let mut rows: BTreeMap<u8, AllocationRows> = BTreeMap::new();
    rows.extend(layers.keys().map(|device| (*device, AllocationRows::default())));
    let mut live_before: BTreeMap<(u8, u64), WalkedBlock> = BTreeMap::new();
    let end = run.walk(&mut |walked| {
        if walked.is_inside {
            for ((device, _), block) in std::mem::take(&mut live_before) {
                let (Some(rows), Some(bytes)) = (rows.get_mut(&device), sampling.weight(&block)) else {
                    continue;
                };
                rows.push(walked.time_ns, signed(bytes), block.stack, (block.addr, block.thread.0));
            }
        }
        for (block, is_alloc) in changes(walked, layers) {
            let key = (block.device, block.addr);
            let Some(bytes) = sampling.weight(block) else { continue };
            if !walked.is_inside {
                if is_alloc {
                    live_before.insert(key, *block);
                } else {
                    live_before.remove(&key);
                }
            } else if let Some(rows) = rows.get_mut(&block.device) {
                let bytes = if is_alloc { signed(bytes) } else { -signed(bytes) };
                rows.push(walked.time_ns, bytes, walked.stack, (block.addr, walked.event.thread.0));
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(RunRows { by_device: rows, last_ns: end.span_ns.map(|(_, last)| last) })
}

/// The blocks of the given layer of each device that an event allocates (true) or frees.
fn changes<'a>(
    walked: &WalkedEvent<'a>,
    layers: &'a BTreeMap<u8, BlockLayer>,
) -> impl Iterator<Item = (&'a WalkedBlock, bool)> {
    let changes = walked.changes.iter().map(|change| match change {
        BlockChange::Allocated(block) => (block, true),
        BlockChange::Freed(block) | BlockChange::Lost(block) => (block, false),
    });
    changes.filter(|(block, _)| layers.get(&block.device) == Some(&block.layer))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
