//! Walks the events of a run once and fills the tables that have a row per event, block or step.

mod event_rows;
mod moments;
pub(crate) mod totals;

use std::ops::ControlFlow;

use gpumemtrace_cli::export::ExportRun;
use gpumemtrace_format::Event;
use gpumemtrace_replay::report::{BlockChange, BlockLayer, WalkedBlock, WalkedEvent};

use crate::file::cell::Text;
use crate::file::writer::TableWriter;
use crate::folder::PartitionFolder;
use crate::tables::allocations::AllocationRow;
use crate::tables::events::EventRow;
use crate::tables::steps::StepRow;
use crate::tables::{known_device, saturated};
use event_rows::EventRows;
pub(crate) use moments::MomentEvents;
use totals::{AllocatorTotals, LayerOnDevice, StepAndSiteTotals};

/// The site of memory without a known one.
const UNKNOWN_SITE: u32 = u32::MAX;
const LIVE: Text = Text::from_static("live");
const FREED: Text = Text::from_static("freed");
const LOST: Text = Text::from_static("lost");

/// What remains of a walk for the tables of sites and stacks.
pub(crate) struct WalkResult {
    /// Number of events in the window.
    pub(crate) events: u64,
    /// Totals by allocator, device and site.
    pub(crate) layers: Vec<(LayerOnDevice, AllocatorTotals)>,
    /// The events before the moments of the table `segments`.
    pub(crate) moments: MomentEvents,
    /// The stacks that the tables mention, ascending, with their sites.
    pub(crate) stacks: Vec<(u32, Option<u32>)>,
    /// Numbers above the range of a column, which are null.
    pub(crate) omitted_numbers: u64,
}

/// Walks a run and writes the tables `events`, `allocations` and `steps`.
pub(crate) fn walk_run(run: &mut ExportRun, folder: &mut PartitionFolder<'_>) -> anyhow::Result<WalkResult> {
    let (since_ns, until_ns) = run.window.span_ns;
    let rows = EventRows::new(&run.analysis);
    let mut walk = RunWalk {
        rows,
        events: folder.begin()?,
        allocations: folder.begin()?,
        steps: folder.begin()?,
        totals: StepAndSiteTotals::default(),
        moments: MomentEvents::new(&run.history),
        stacks: Vec::new(),
        step: None,
        step_start_ns: since_ns,
    };
    let end = run.walk(&mut |event| {
        walk.on_event(event);
        ControlFlow::Continue(())
    })?;
    for block in &end.live {
        walk.add_allocation(block, LIVE, None);
    }
    if walk.step.is_none() {
        walk.totals.begin_window();
    }
    walk.end_step(until_ns);
    walk.events.finish()?;
    walk.allocations.finish()?;
    walk.steps.finish()?;
    let stacks = (0..)
        .zip(&walk.stacks)
        .filter_map(|(stack, site)| site.map(|site| (stack, (site != UNKNOWN_SITE).then_some(site))));
    Ok(WalkResult {
        events: end.events,
        stacks: stacks.collect(),
        moments: walk.moments,
        layers: walk.totals.into_layers(),
        omitted_numbers: walk.rows.omitted_numbers,
    })
}

/// The state of a walk.
struct RunWalk {
    rows: EventRows,
    events: TableWriter<EventRow>,
    allocations: TableWriter<AllocationRow>,
    steps: TableWriter<StepRow>,
    totals: StepAndSiteTotals,
    moments: MomentEvents,
    /// By stack, its site if a table mentions it.
    stacks: Vec<Option<u32>>,
    /// The present step; `None` before the window.
    step: Option<u32>,
    step_start_ns: u64,
}

impl RunWalk {
    fn on_event(&mut self, walked: &WalkedEvent<'_>) {
        self.moments.on_event(walked);
        if walked.is_inside {
            if self.step != Some(walked.step) {
                self.begin_step(walked);
            }
            self.use_stack(walked.stack, walked.site);
            self.events.push(self.rows.row(walked));
        }
        for change in walked.changes {
            self.totals.on_change(change);
            match change {
                BlockChange::Freed(block) if walked.is_inside => {
                    self.add_allocation(block, FREED, Some(walked));
                }
                BlockChange::Lost(block) if walked.is_inside => self.add_allocation(block, LOST, None),
                BlockChange::Allocated(_) | BlockChange::Freed(_) | BlockChange::Lost(_) => {}
            }
        }
    }

    #[inline(never)] // Once per step.
    fn begin_step(&mut self, walked: &WalkedEvent<'_>) {
        if self.step.is_some() {
            self.end_step(walked.time_ns);
            self.step_start_ns = walked.time_ns;
        } else {
            self.totals.begin_window();
        }
        self.step = Some(walked.step);
    }

    fn end_step(&mut self, end_ns: u64) {
        let step = self.step.and_then(|step| self.rows.step(step));
        for ((layer, device), totals) in self.totals.take_step() {
            self.steps.push(StepRow {
                step,
                layer: layer_name(layer),
                device: known_device(device),
                start_ns: saturated(self.step_start_ns),
                end_ns: saturated(end_ns),
                allocations: saturated(totals.allocated.blocks),
                allocated_bytes: saturated(totals.allocated.bytes),
                frees: saturated(totals.freed.blocks),
                freed_bytes: saturated(totals.freed.bytes),
                peak_bytes: saturated(totals.peak_bytes),
                peak_ns: saturated(totals.peak_ns.unwrap_or(self.step_start_ns)),
                peak_seq: totals.peak_seq.map(saturated),
                end_bytes: saturated(totals.end.bytes),
                end_blocks: saturated(totals.end.blocks),
            });
        }
    }

    fn add_allocation(&mut self, block: &WalkedBlock, state: Text, end: Option<&WalkedEvent<'_>>) {
        self.use_stack(block.stack, block.site);
        let rows = &mut self.rows;
        let end_event: Option<&Event> = end.map(|end| end.event);
        self.allocations.push(AllocationRow {
            layer: layer_name(block.layer),
            device: known_device(block.device),
            address: rows.number(block.addr),
            size_bytes: rows.number(block.size_bytes),
            requested_bytes: block.requested_bytes.and_then(|bytes| rows.number(bytes)),
            stream: block.stream.and_then(|stream| rows.number(stream)),
            pool: block.pool.and_then(|pool| rows.number(pool)),
            stack: i64::from(block.stack),
            site: known_site(block.site),
            thread: i64::from(block.thread.0),
            start_seq: i64::try_from(block.seq).ok(),
            start_ns: saturated(block.time_ns),
            start_step: rows.step(block.step),
            state,
            end_seq: end_event.and_then(|event| i64::try_from(event.seq).ok()),
            end_ns: end.map(|end| saturated(end.time_ns)),
            end_step: end.and_then(|end| rows.step(end.step)),
            end_stack: end.map(|end| i64::from(end.stack)),
        });
    }

    #[inline]
    fn use_stack(&mut self, stack: u32, site: u32) {
        let index = stack as usize;
        if index >= self.stacks.len() {
            self.stacks.resize(index + 1, None);
        }
        // The memory of a CUDA graph has a stack and no site.
        if self.stacks[index].is_none_or(|known| known == UNKNOWN_SITE) {
            self.stacks[index] = Some(site);
        }
    }
}

/// The number of a call site; `None` if the analysis knows none.
pub(crate) fn known_site(site: u32) -> Option<i64> {
    (site != UNKNOWN_SITE).then_some(i64::from(site))
}

pub(crate) fn layer_name(layer: BlockLayer) -> Text {
    Text::from_static(match layer {
        BlockLayer::Torch => "torch",
        BlockLayer::Driver => "driver",
        BlockLayer::Host => "host",
        BlockLayer::Managed => "managed",
        BlockLayer::Foreign => "foreign",
    })
}
