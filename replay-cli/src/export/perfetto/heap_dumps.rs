//! What each stack allocated and freed, at some moments of the window.
//!
//! A second walk of the events counts both from the start of the recording, so the totals are exact
//! and never fall. Memory grows with the stacks and the moments.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use gpumemtrace_format::EventKind;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedEvent};
use gpumemtrace_replay::{KeyframeReason, RunHistory};

use crate::export::ExportRun;
use crate::export::window::Amount;

/// Most dumps of a device at marks and errors.
const MAX_EVENT_DUMPS: usize = 32;

/// The totals of one stack from the start of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackTotals {
    pub(super) allocated: Amount,
    pub(super) freed: Amount,
}

impl StackTotals {
    /// Adds what has come since `before`.
    pub(super) fn add_growth(&mut self, before: Self, now: Self) {
        self.allocated.add(now.allocated.minus(before.allocated));
        self.freed.add(now.freed.minus(before.freed));
    }
}

/// The totals that changed since the dump before.
#[derive(Debug)]
pub(super) struct HeapDump {
    pub(super) time_ns: u64,
    /// By stack of the walk.
    pub(super) changed: BTreeMap<u32, StackTotals>,
}

/// The moments to dump, in nanoseconds since the start of recording.
#[derive(Clone, Debug, Default)]
pub(super) struct HeapMoments {
    /// The sequence number of the event that reached the peak of the window, by device.
    pub(super) peaks: BTreeMap<u8, u64>,
    /// Moments after all events up to a time.
    pub(super) times_ns: Vec<u64>,
}

/// The heap of one device: the blocks of PyTorch's allocator, else of the driver.
#[derive(Debug)]
pub(super) struct DeviceHeap {
    pub(super) layer: BlockLayer,
    pub(super) dumps: Vec<HeapDump>,
    totals: HashMap<u32, StackTotals>,
    changed: BTreeMap<u32, StackTotals>,
    event_dumps: usize,
    /// Number of marks and errors without a dump.
    pub(super) omitted: u64,
}

impl DeviceHeap {
    fn on_change(&mut self, change: &BlockChange) {
        let (block, is_alloc) = match change {
            BlockChange::Allocated(block) => (block, true),
            BlockChange::Freed(block) | BlockChange::Lost(block) => (block, false),
        };
        if block.layer != self.layer {
            return;
        }
        let totals = self.totals.entry(block.stack).or_default();
        let sum = if is_alloc { &mut totals.allocated } else { &mut totals.freed };
        sum.add(Amount::of_block(block));
        self.changed.insert(block.stack, *totals);
    }

    /// Keeps the present totals as those of a moment. A later dump of the same time replaces it.
    fn dump(&mut self, time_ns: u64) {
        let changed = std::mem::take(&mut self.changed);
        match self.dumps.last_mut() {
            Some(last) if last.time_ns == time_ns => last.changed.extend(changed),
            _ => self.dumps.push(HeapDump { time_ns, changed }),
        }
    }

    fn dump_at_event(&mut self, time_ns: u64) {
        if self.event_dumps < MAX_EVENT_DUMPS {
            self.event_dumps += 1;
            self.dump(time_ns);
        } else {
            self.omitted += 1;
        }
    }
}

/// The end of the program on all devices, in nanoseconds since the start of recording: before the
/// interpreter frees everything.
pub(super) fn program_end_ns(history: &RunHistory) -> u64 {
    let states = history.devices.iter().flat_map(|device| &device.states);
    let ends = states.filter(|state| state.why == KeyframeReason::End).map(|state| state.time_ns);
    ends.max().unwrap_or(history.duration_ns)
}

/// Walks the events of a window and dumps the heaps at the peak, at marks, at errors and at the
/// moments given.
pub(super) fn read_heaps(
    run: &mut ExportRun,
    moments: &HeapMoments,
) -> anyhow::Result<BTreeMap<u8, DeviceHeap>> {
    let heaps = run.history.devices.iter().map(|device| {
        let layer = if device.has_torch { BlockLayer::Torch } else { BlockLayer::Driver };
        let heap = DeviceHeap {
            layer,
            dumps: Vec::new(),
            totals: HashMap::new(),
            changed: BTreeMap::new(),
            event_dumps: 0,
            omitted: 0,
        };
        (device.ordinal, heap)
    });
    let mut reader = HeapReader { heaps: heaps.collect(), moments, passed: 0 };
    run.walk(&mut |walked| {
        reader.on_event(walked);
        ControlFlow::Continue(())
    })?;
    reader.dump_times(u64::MAX);
    Ok(reader.heaps)
}

struct HeapReader<'a> {
    heaps: BTreeMap<u8, DeviceHeap>,
    moments: &'a HeapMoments,
    /// Number of the times that are over.
    passed: usize,
}

impl HeapReader<'_> {
    fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        let event = walked.event;
        if walked.is_inside {
            self.dump_times(walked.time_ns);
            if event.kind == EventKind::MARK {
                self.heaps.values_mut().for_each(|heap| heap.dump_at_event(walked.time_ns));
            }
        }
        for change in walked.changes {
            let (BlockChange::Allocated(block) | BlockChange::Freed(block) | BlockChange::Lost(block)) =
                change;
            if let Some(heap) = self.heaps.get_mut(&block.device) {
                heap.on_change(change);
            }
        }
        if walked.is_inside
            && let Some(heap) = self.heaps.get_mut(&event.device)
        {
            if event.kind == EventKind::BLOCK_OOM {
                heap.dump_at_event(walked.time_ns);
            } else if self.moments.peaks.get(&event.device) == Some(&event.seq) {
                heap.dump(walked.time_ns);
            }
        }
    }

    /// Dumps the moments before an event of this time.
    fn dump_times(&mut self, time_ns: u64) {
        while let Some(moment_ns) = self.moments.times_ns.get(self.passed).filter(|moment| **moment < time_ns)
        {
            self.heaps.values_mut().for_each(|heap| heap.dump(*moment_ns));
            self.passed += 1;
        }
    }
}
