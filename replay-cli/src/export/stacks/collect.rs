//! Collects the values of each stack while the events of a run are walked.
//!
//! `tests/suite/export/test_folded.py` compares the sums with the report.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::ThreadId;
use gpumemtrace_replay::report::{
    BlockChange, BlockLayer, Category, LeakKind, MemoryLayer, Report, WalkedBlock, WalkedEvent,
};

use super::peak_categories::PeakCategories;
use super::weight::StackWeight;
use crate::export::ExportRun;
use crate::export::window::{Amount, WindowRow, WindowTotals};

/// What distinguishes the rows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowKey {
    /// The stack, as in [`WalkedBlock::stack`].
    pub(crate) stack: u32,
    /// What formats with labels show beside the stack; `None` for other formats.
    pub(crate) labels: Option<RowLabels>,
}

/// The labels of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RowLabels {
    /// The stream of the blocks, if PyTorch's tracker reported it.
    pub(crate) stream: Option<u64>,
    /// The thread that allocated them.
    pub(crate) thread: ThreadId,
    /// Known for blocks that were live at the peak of the run.
    pub(crate) category: Option<Category>,
}

/// The blocks of one stack, and of one set of labels. Without `--until`, the end is that of the
/// program.
pub(crate) type StackRow = WindowRow<RowKey>;

/// The stacks of one device in one run.
#[derive(Debug)]
pub(crate) struct DeviceStacks {
    /// Index of the run in the job.
    pub(crate) run: usize,
    /// Ordinal of the device.
    pub(crate) device: u8,
    /// The device in words, and the run if there are several.
    pub(crate) name: String,
    /// Ordered by their keys.
    pub(crate) rows: Vec<StackRow>,
    /// The leaks of the whole run by stack.
    pub(crate) leaked: BTreeMap<u32, Amount>,
}

impl DeviceStacks {
    /// The stacks with at least one such block, by number.
    pub(crate) fn by_stack(&self, value: StackWeight) -> BTreeMap<u32, Amount> {
        let amount_of: fn(&StackRow) -> Amount = match value {
            StackWeight::Peak => |row| row.peak,
            StackWeight::End => |row| row.end,
            StackWeight::Allocated => |row| row.allocated,
            StackWeight::Leaked => return self.leaked.clone(),
        };
        let mut sums: BTreeMap<u32, Amount> = BTreeMap::new();
        for row in &self.rows {
            let amount = amount_of(row);
            sums.entry(row.key.stack).or_default().add(amount);
        }
        sums.retain(|_, amount| amount.blocks > 0);
        sums
    }

    /// The stacks of all values; numbers repeat.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().map(|row| row.key.stack).chain(self.leaked.keys().copied())
    }
}

/// The stacks of a run.
#[derive(Debug)]
pub(crate) struct CollectedRun {
    /// Ordered by their ordinals.
    pub(crate) devices: Vec<DeviceStacks>,
    /// Times of the first and the last event inside the window, since the start of recording.
    pub(crate) span_ns: Option<(u64, u64)>,
}

/// Walks the events of the run with this index in the report, up to the end of its window.
///
/// On a device with blocks of PyTorch's allocator these are counted, else driver memory. Rows have
/// labels if `has_labels`.
pub(crate) fn collect_stacks(
    run: &mut ExportRun,
    index: usize,
    report: &Report,
    has_labels: bool,
) -> anyhow::Result<CollectedRun> {
    run.end_before_teardown();
    let mut collector = StackCollector {
        devices: devices_of_run(report, index)
            .map(|(ordinal, layer)| (ordinal, CountedDevice::new(layer)))
            .collect(),
        categories: has_labels.then(|| PeakCategories::of_run(run)),
        is_inside: false,
    };
    let end = run.walk(&mut |walked| {
        collector.on_event(walked);
        ControlFlow::Continue(())
    })?;
    let mut devices: Vec<DeviceStacks> = Vec::new();
    for (ordinal, device) in collector.devices {
        devices.push(DeviceStacks {
            run: index,
            device: ordinal,
            name: device_name(report, index, ordinal),
            rows: sorted_rows(device.totals),
            leaked: leaked_by_stack(report, index, ordinal),
        });
    }
    Ok(CollectedRun { devices, span_ns: end.span_ns })
}

/// The devices of a run with the layer that the report describes.
pub(crate) fn devices_of_run(report: &Report, run: usize) -> impl Iterator<Item = (u8, BlockLayer)> {
    let peaks = report.peak.iter().flatten().filter(move |peak| peak.trace == run);
    peaks.filter_map(|peak| {
        let layer = match peak.layer {
            MemoryLayer::Torch => BlockLayer::Torch,
            MemoryLayer::Device => BlockLayer::Driver,
        };
        Some((u8::try_from(peak.device).ok()?, layer))
    })
}

/// `GPU 1`; of several runs `rank 3, GPU 1`, or the process if it has no rank.
pub(crate) fn device_name(report: &Report, run: usize, device: u8) -> String {
    let several = report.traces.len() > 1;
    let info = report.traces.get(run).filter(|_| several);
    match info.map(|info| (info.rank, info.pid)) {
        Some((Some(rank), _)) => format!("rank {rank}, GPU {device}"),
        Some((None, Some(pid))) => format!("process {pid}, GPU {device}"),
        Some((None, None)) => format!("trace {}, GPU {device}", run + 1),
        None => format!("GPU {device}"),
    }
}

/// The leaks of memory of a device, by stack.
fn leaked_by_stack(report: &Report, run: usize, device: u8) -> BTreeMap<u32, Amount> {
    let leaks = report.leaks.iter().flatten();
    let of_device = leaks.filter(|leak| leak.trace == run && leak.device == u32::from(device));
    let blocks = of_device.filter(|leak| matches!(leak.kind, LeakKind::Tensors | LeakKind::Device));
    let mut leaked: BTreeMap<u32, Amount> = BTreeMap::new();
    for (stack, bytes, blocks) in blocks.flat_map(|leak| &leak.by_stack) {
        leaked.entry(*stack).or_default().add(Amount { bytes: *bytes, blocks: *blocks });
    }
    leaked
}

struct StackCollector {
    devices: BTreeMap<u8, CountedDevice>,
    categories: Option<PeakCategories>,
    is_inside: bool,
}

impl StackCollector {
    fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        if let Some(categories) = &mut self.categories {
            categories.on_event(walked);
        }
        if walked.is_inside && !self.is_inside {
            self.is_inside = true;
            self.devices.values_mut().for_each(|device| device.totals.begin_window());
        }
        for change in walked.changes {
            let (BlockChange::Allocated(block) | BlockChange::Freed(block) | BlockChange::Lost(block)) =
                change;
            let key = self.key_of(block);
            let Some(device) = self.devices.get_mut(&block.device) else { continue };
            if device.layer != block.layer {
                continue;
            }
            match change {
                BlockChange::Allocated(block) => device.totals.allocate(key, block),
                BlockChange::Freed(block) | BlockChange::Lost(block) => device.totals.free(key, block),
            }
        }
    }

    fn key_of(&self, block: &WalkedBlock) -> RowKey {
        let labels = self.categories.as_ref().map(|categories| RowLabels {
            stream: block.stream,
            thread: block.thread,
            category: categories.category_of(block),
        });
        RowKey { stack: block.stack, labels }
    }
}

/// The totals of one device in the layer that the report describes.
struct CountedDevice {
    layer: BlockLayer,
    totals: WindowTotals<RowKey>,
}

impl CountedDevice {
    fn new(layer: BlockLayer) -> Self {
        Self { layer, totals: WindowTotals::default() }
    }
}

/// The rows by key.
fn sorted_rows(totals: WindowTotals<RowKey>) -> Vec<StackRow> {
    let mut rows = totals.into_rows();
    rows.sort_unstable_by_key(|row| row.key);
    rows
}
