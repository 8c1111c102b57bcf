//! What each line allocates in each step, and the most that a device holds in each.
//!
//! Definitions. *Allocated in a step* by a line: the blocks that it was given between two step beginnings, and their bytes, whether
//! they were freed or not. *Peak of a step*: the most that was live on the device at any moment of it, what the step began
//! with included. Blocks are those of PyTorch's allocator; on a device where it was not seen, the driver's.
//!
//! Constraint: only comparisons and budgets ask for this, and the one pass over the events has no time to spare. Consequence:
//! it is a pass of its own, after the analysis, with the rule of steps that this has found; and, as everything by steps, kept
//! where it changes only ([`crate::timeline::step_series`]).

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::{Event, EventKind};

use crate::callsite::autograd::AutogradTracker;
use crate::callsite::code_origin::UserCodePaths;
use crate::callsite::symbols::SiteId;
use crate::ingest::metal_totals::MetalTotals;
use crate::ingest::{Input, read_event_slices};
use crate::pass::{Analysis, AnalysisOptions, analyse_with_head};
use crate::state::driver::{DriverChange, DriverState, MemoryPlace};
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::step_series::StepSeries;
use crate::timeline::steps::StepClock;
use crate::util::block_totals::BlockTotals;
use crate::util::seeded_map::SeededMap;

/// By steps, a device.
#[derive(Debug, Default)]
pub(crate) struct DeviceSteps {
    /// Of each line: blocks and bytes allocated in each step.
    pub(crate) lines: BTreeMap<SiteId, StepSeries>,
    /// All lines together.
    pub(crate) allocated: StepSeries,
    /// The peak of each step, in bytes.
    pub(crate) peak: StepSeries,
}

/// By steps, all devices by ordinal.
#[derive(Debug, Default)]
pub struct PerStepTotals(pub(crate) BTreeMap<u8, DeviceSteps>);

/// Something that is counted anew in each step.
#[derive(Clone, Debug, Default)]
struct StepAmount {
    step: u32,
    now: BlockTotals,
    series: StepSeries,
}

impl StepAmount {
    fn add(&mut self, step: u32, bytes: u64) {
        self.end_before(step);
        self.now.add(bytes);
    }

    /// All steps before this one have ended.
    fn end_before(&mut self, step: u32) {
        if self.step < step {
            self.series.record(self.step, self.now);
            self.now = BlockTotals::default();
            if self.step + 1 < step {
                self.series.record(self.step + 1, self.now);
            }
            self.step = step;
        }
    }
}

#[derive(Debug, Default)]
struct DeviceCounter {
    has_torch: bool,
    lines: Vec<StepAmount>,
    allocated: StepAmount,
    live: u64,
    /// Most in this step.
    most: u64,
    peak: StepSeries,
}

impl DeviceCounter {
    fn allocated(&mut self, site: SiteId, step: u32, bytes: u64) {
        let at = site.0 as usize;
        if at >= self.lines.len() {
            self.lines.resize(at + 1, StepAmount::default());
        }
        self.lines[at].add(step, bytes);
        self.allocated.add(step, bytes);
    }

    fn holds(&mut self, bytes: u64) {
        self.live = bytes;
        self.most = self.most.max(bytes);
    }

    fn step_ends(&mut self, step: u32) {
        self.peak.record(step, BlockTotals { bytes: self.most, blocks: 0 });
        self.most = self.live;
    }

    fn finish(mut self, steps: u32) -> DeviceSteps {
        self.allocated.end_before(steps);
        let lines = self.lines.into_iter().zip(0..).map(|(mut line, id)| {
            line.end_before(steps);
            (SiteId(id), line.series)
        });
        DeviceSteps {
            lines: lines.filter(|(_, series)| !series.is_empty()).collect(),
            allocated: self.allocated.series,
            peak: self.peak,
        }
    }
}

/// Analyses a trace, and counts by steps.
pub fn analyse_by_steps(
    input: Input<'_>,
    own: UserCodePaths,
) -> Result<(Analysis, PerStepTotals), OpenError> {
    let open = input.open;
    let (mut analysis, head) =
        analyse_with_head(input, AnalysisOptions { user_code: own, ..AnalysisOptions::default() })?;
    if analysis.step_source.name().is_none() {
        return Ok((analysis, PerStepTotals::default()));
    }
    let mut count = PerStepPass::new(&analysis);
    let mut totals = MetalTotals::new(&head.meta);
    read_event_slices(open, &head, &mut |events| {
        for event in totals.fill_totals(events) {
            count.event(event, &mut analysis);
        }
        ControlFlow::Continue(())
    })?;
    let amounts = count.finish(analysis.steps);
    Ok((analysis, amounts))
}

struct PerStepPass {
    names: StepRangeNames,
    clock: StepClock,
    backward: AutogradTracker,
    driver: DriverState,
    /// Driver memory by key, where PyTorch was not seen: its device and bytes.
    held: SeededMap<u64, (u8, u64)>,
    devices: BTreeMap<u8, DeviceCounter>,
    time_ns: u64,
    step: u32,
}

impl PerStepPass {
    fn new(analysis: &Analysis) -> Self {
        let devices = analysis.devices.iter().map(|(ordinal, device)| {
            (*ordinal, DeviceCounter { has_torch: device.has_torch(), ..DeviceCounter::default() })
        });
        Self {
            names: StepRangeNames::new(analysis.symbols.definitions().codes.values()),
            clock: StepClock::new(analysis.step_source),
            backward: AutogradTracker::default(),
            driver: DriverState::default(),
            held: SeededMap::default(),
            devices: devices.collect(),
            time_ns: 0,
            step: 0,
        }
    }

    fn event(&mut self, event: &Event, analysis: &mut Analysis) {
        self.time_ns = self.time_ns.max(event.time_ns);
        let (stack, facts) = self.backward.resolve_stack(event, &mut analysis.symbols);
        let what = self.names.step_hint(event, facts.optimizer);
        for _ in 0..self.clock.count_begins(event, stack, what, self.time_ns) {
            self.devices.values_mut().for_each(|device| device.step_ends(self.step));
            self.step += 1;
        }
        match event.kind {
            EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE => {
                let Some(device) = self.devices.get_mut(&event.device) else { return };
                if event.kind == EventKind::BLOCK_ALLOC {
                    device.allocated(facts.site, self.step, event.size);
                }
                device.holds(event.aux[0]);
            }
            kind if kind.is_driver_call() => {
                self.driver.on_driver_call(event, stack);
                for index in 0..self.driver.changes.len() {
                    self.driver_changed(self.driver.changes[index], facts.site);
                }
            }
            _ => {}
        }
    }

    fn driver_changed(&mut self, change: DriverChange, site: SiteId) {
        match change {
            DriverChange::Alloc { key, place: MemoryPlace::Device(ordinal), bytes, .. } => {
                let device = self.devices.get_mut(&ordinal).filter(|device| !device.has_torch);
                let Some(device) = device else { return };
                device.allocated(site, self.step, bytes);
                device.holds(device.live.saturating_add(bytes));
                self.held.insert(key, (ordinal, bytes));
            }
            DriverChange::Alloc { .. } => {}
            DriverChange::Free { key, .. } => {
                let Some((ordinal, bytes)) = self.held.remove(&key) else { return };
                if let Some(device) = self.devices.get_mut(&ordinal) {
                    device.holds(device.live.saturating_sub(bytes));
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
