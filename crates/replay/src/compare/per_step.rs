//! Counts what each line allocates in each step, and the peak of each step.
//!
//! *Allocated in a step*: blocks that a line allocated between two step boundaries, freed or not.
//! *Peak of a step*: most live bytes on the device at any moment of the step, including those
//! from before. Blocks are those of PyTorch's allocator, or driver memory on a device without
//! PyTorch.
//!
//! Only comparisons and budgets need these numbers, so [`analyse_by_steps`] reads the trace a
//! second time. It uses the step source that the analysis found. Each event is O(1), and series
//! take memory only where they change ([`crate::timeline::step_series`]). `tests/compare.rs`
//! checks the medians.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::code_origin::UserCodePaths;
use crate::ingest::metal_totals::MetalTotals;
use crate::ingest::{Input, OpenTrace, TraceHead, read_event_slices};
use crate::pass::{Analysis, AnalysisOptions, analyse_with_head};
use crate::state::driver::{DriverChange, DriverState, MemoryPlace};
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::step_series::StepSeries;
use crate::timeline::steps::StepClock;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::SiteId;
use crate::util::seeded_map::SeededMap;

/// Series of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceSteps {
    /// Blocks and bytes allocated in each step, by line.
    pub(crate) lines: BTreeMap<SiteId, StepSeries>,
    /// Sum over all lines.
    pub(crate) allocated: StepSeries,
    /// Peak of each step in bytes.
    pub(crate) peak: StepSeries,
}

/// Totals per step of all devices, by ordinal.
#[derive(Debug, Default)]
pub struct PerStepTotals(pub(crate) BTreeMap<u8, DeviceSteps>);

/// A total that starts at zero in each step.
#[derive(Clone, Debug, Default)]
struct StepTotal {
    /// The step that `current` belongs to.
    step: u32,
    current: BlockTotals,
    series: StepSeries,
}

impl StepTotal {
    fn add(&mut self, step: u32, bytes: u64) {
        self.end_steps_before(step);
        self.current.add(bytes);
    }

    /// Records all steps before this one. Steps without an allocation are recorded as one change
    /// to zero.
    fn end_steps_before(&mut self, step: u32) {
        if self.step < step {
            self.series.record(self.step, self.current);
            self.current = BlockTotals::default();
            if self.step + 1 < step {
                self.series.record(self.step + 1, self.current);
            }
            self.step = step;
        }
    }
}

/// Counters of one device.
#[derive(Debug, Default)]
struct DeviceCounter {
    has_torch: bool,
    /// By the number of the site.
    lines: Vec<StepTotal>,
    allocated: StepTotal,
    live_bytes: u64,
    /// Most live bytes in the current step.
    step_peak_bytes: u64,
    peak: StepSeries,
}

impl DeviceCounter {
    fn add_allocation(&mut self, site: SiteId, step: u32, bytes: u64) {
        let index = site.0 as usize;
        if index >= self.lines.len() {
            self.lines.resize(index + 1, StepTotal::default());
        }
        self.lines[index].add(step, bytes);
        self.allocated.add(step, bytes);
    }

    fn set_live(&mut self, bytes: u64) {
        self.live_bytes = bytes;
        self.step_peak_bytes = self.step_peak_bytes.max(bytes);
    }

    fn end_step(&mut self, step: u32) {
        self.peak.record(step, BlockTotals { bytes: self.step_peak_bytes, blocks: 0 });
        self.step_peak_bytes = self.live_bytes;
    }

    fn finish(mut self, steps: u32) -> DeviceSteps {
        self.allocated.end_steps_before(steps);
        let lines = self.lines.into_iter().zip(0..).map(|(mut line, id)| {
            line.end_steps_before(steps);
            (SiteId(id), line.series)
        });
        DeviceSteps {
            lines: lines.filter(|(_, series)| !series.is_empty()).collect(),
            allocated: self.allocated.series,
            peak: self.peak,
        }
    }
}

/// Analyses a trace and counts per step. Without steps, the totals are empty. Errors as
/// [`crate::analyse`] does.
pub fn analyse_by_steps(
    input: Input<'_>,
    own: UserCodePaths,
) -> Result<(Analysis, PerStepTotals), OpenError> {
    let open = input.open;
    let (mut analysis, head) =
        analyse_with_head(input, AnalysisOptions { user_code: own, ..AnalysisOptions::default() })?;
    let per_step = count_by_steps(open, &head, &mut analysis)?;
    Ok((analysis, per_step))
}

/// Counts per step in an analysed trace. Without steps, the totals are empty. Errors as
/// [`crate::analyse`] does.
pub fn count_by_steps(
    open: &OpenTrace<'_>,
    head: &TraceHead,
    analysis: &mut Analysis,
) -> Result<PerStepTotals, OpenError> {
    if analysis.step_rule.source().is_none() {
        return Ok(PerStepTotals::default());
    }
    let mut pass = PerStepPass::new(analysis);
    let mut totals = MetalTotals::new(&head.meta);
    read_event_slices(open, head, &mut |events| {
        for event in totals.fill_totals(events) {
            pass.account(event, analysis);
        }
        ControlFlow::Continue(())
    })?;
    Ok(pass.finish(analysis.steps))
}

/// The second pass over the events.
struct PerStepPass {
    names: StepRangeNames,
    clock: StepClock,
    backward: AutogradTracker,
    driver: DriverState,
    /// Live driver allocations on devices without PyTorch, by key.
    driver_blocks: SeededMap<u64, LiveDriverBlock>,
    devices: BTreeMap<u8, DeviceCounter>,
    time_ns: u64,
    step: u32,
}

/// A live driver allocation.
struct LiveDriverBlock {
    ordinal: u8,
    bytes: u64,
}

impl PerStepPass {
    fn new(analysis: &Analysis) -> Self {
        let devices = analysis.devices.iter().map(|(ordinal, device)| {
            (*ordinal, DeviceCounter { has_torch: device.has_torch(), ..DeviceCounter::default() })
        });
        Self {
            names: StepRangeNames::new(analysis.symbols.definitions().codes.values()),
            clock: StepClock::new(analysis.step_rule),
            backward: AutogradTracker::default(),
            driver: DriverState::default(),
            driver_blocks: SeededMap::default(),
            devices: devices.collect(),
            time_ns: 0,
            step: 0,
        }
    }

    fn account(&mut self, event: &Event, analysis: &mut Analysis) {
        self.time_ns = self.time_ns.max(event.time_ns);
        let (stack, facts) = self.backward.resolve_stack(event, &mut analysis.symbols);
        let hint = self.names.step_hint(event, facts.step_hint);
        if self.clock.begins_step(event, stack, hint) {
            self.devices.values_mut().for_each(|device| device.end_step(self.step));
            self.step += 1;
        }
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let Some(device) = self.devices.get_mut(&event.device) else { return };
                if event.kind == EventKind::BLOCK_ALLOC {
                    device.add_allocation(facts.site, self.step, event.size);
                }
                device.set_live(event.aux[0]);
            }
            kind if kind.is_driver_call() => {
                self.driver.on_driver_call(event, stack);
                for index in 0..self.driver.changes.len() {
                    self.account_driver_change(self.driver.changes[index], facts.site);
                }
            }
            _ => {}
        }
    }

    fn account_driver_change(&mut self, change: DriverChange, site: SiteId) {
        match change {
            DriverChange::Alloc { key, place: MemoryPlace::Device(ordinal), bytes, .. } => {
                let device = self.devices.get_mut(&ordinal).filter(|device| !device.has_torch);
                let Some(device) = device else { return };
                device.add_allocation(site, self.step, bytes);
                device.set_live(device.live_bytes.saturating_add(bytes));
                self.driver_blocks.insert(key, LiveDriverBlock { ordinal, bytes });
            }
            DriverChange::Alloc { .. } => {}
            DriverChange::Free { key, .. } => {
                let Some(LiveDriverBlock { ordinal, bytes }) = self.driver_blocks.remove(&key) else {
                    return;
                };
                if let Some(device) = self.devices.get_mut(&ordinal) {
                    device.set_live(device.live_bytes.saturating_sub(bytes));
                }
            }
        }
    }

    fn finish(self, steps: u32) -> PerStepTotals {
        PerStepTotals(
            self.devices.into_iter().map(|(ordinal, device)| (ordinal, device.finish(steps))).collect(),
        )
    }
}
