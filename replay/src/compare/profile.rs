//! What of a run is compared, and held against budgets: plain values, each of which the same run has again.
//!
//! Constraint: addresses, times, threads and process numbers differ from run to run, and a comparison that lists them is read by
//! nobody. Consequence: nothing here depends on them, and whatever does not is compared exactly.

use std::collections::{BTreeMap, BTreeSet};

use super::align::AlignLine;
use super::files;
use super::per_step::PerStepTotals;
use super::totals::TotalQuantity;
use crate::callsite::site_key::SiteKey;
use crate::callsite::symbols::{SiteId, StackId};
use crate::leak;
use crate::pass::Analysis;
use crate::report::{Leak, Site};
use crate::state::device::DeviceState;
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::seeded_map::SeededMap;
use gpumemtrace_format::NO_DEVICE;

/// Most innermost functions that are told of a line.
const MAX_BELOW: usize = 64;

/// A run.
#[derive(Debug)]
pub struct Profile<'a> {
    /// Where it comes from.
    pub analysis: &'a Analysis,
    /// Steps that ended; `None` if nothing is called a step.
    pub(crate) steps: Option<u32>,
    /// By ordinal.
    pub(crate) devices: BTreeMap<u8, DeviceProfile>,
    /// Lines that allocated, and lines that findings name.
    pub(crate) lines: Vec<LineProfile>,
    /// Findings, as the report has them.
    pub leaks: Vec<Leak>,
    /// Out of memory: by whom, how often, of the first ones.
    pub(crate) ooms: BTreeMap<SiteId, u64>,
}

/// A device.
#[derive(Debug, Default)]
pub(crate) struct DeviceProfile {
    /// Quantities of the whole device, by name, in bytes; those that are not known are not there.
    pub(crate) totals: BTreeMap<TotalQuantity, u64>,
    /// Live bytes at step ends.
    pub(crate) held: StepSeries,
    /// Live at the end.
    pub(crate) end: BlockTotals,
    /// Allocated in each step.
    pub(crate) allocated: StepSeries,
    /// The peak of each step.
    pub(crate) peak: StepSeries,
}

/// A line.
#[derive(Debug)]
pub(crate) struct LineProfile {
    /// Whose number it has in the analysis.
    pub(crate) id: SiteId,
    /// Its name, without a stack.
    pub(crate) site: Site,
    /// By ordinal.
    pub(crate) devices: BTreeMap<u8, LineOnDevice>,
    below: BTreeSet<String>,
}

/// A line on a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineOnDevice {
    /// What it held at the device's peak.
    pub(crate) at_peak: BlockTotals,
    /// What it held at step ends.
    pub(crate) held: StepSeries,
    /// What it held at the end.
    pub(crate) end: BlockTotals,
    /// What it allocated in each step.
    pub(crate) allocated: StepSeries,
    /// What it allocated in all.
    pub(crate) blocks: u64,
    /// The stack that held most at the peak.
    pub(crate) stack: Option<StackId>,
}

impl<'a> Profile<'a> {
    /// Lines of native code, for a symbolizer to name.
    pub fn native_sites_mut(&mut self) -> impl Iterator<Item = &mut Site> {
        self.lines.iter_mut().map(|line| &mut line.site).filter(|site| site.module.is_some())
    }

    /// Of a trace.
    pub fn new(analysis: &'a Analysis, amounts: &PerStepTotals) -> Self {
        let mut devices = BTreeMap::new();
        let mut lines: BTreeMap<SiteId, LineProfile> = BTreeMap::new();
        for (ordinal, state) in analysis.devices.iter().filter(|(ordinal, _)| *ordinal != NO_DEVICE) {
            let steps = amounts.0.get(ordinal);
            devices.insert(*ordinal, device(analysis, state, steps));
            let live_set = state.main();
            for (id, entry) in live_set.sites() {
                let line = lines.entry(id).or_insert_with(|| LineProfile::new(analysis, id));
                for stack in live_set.stacks_of(id) {
                    line.add_below(analysis, stack);
                }
                let on_device = LineOnDevice {
                    at_peak: live_set.at_peak(entry),
                    held: entry.series().clone(),
                    end: entry.now(),
                    allocated: steps.and_then(|steps| steps.lines.get(&id)).cloned().unwrap_or_default(),
                    blocks: entry.allocated(),
                    stack: live_set.main_stack_at_peak(id).or_else(|| live_set.stacks_of(id).next()),
                };
                line.devices.insert(*ordinal, on_device);
            }
        }
        let (leaks, _) = leak::leaks(0, analysis);
        let mut ooms: BTreeMap<SiteId, u64> = BTreeMap::new();
        for record in &analysis.ooms {
            *ooms.entry(analysis.symbols.stack_info(record.stack).site).or_default() += 1;
        }
        let named: BTreeSet<&str> = leaks.iter().map(|leak| &*leak.site.id).collect();
        for id in analysis.symbols.all_sites().filter(|_| !(ooms.is_empty() && named.is_empty())) {
            let is_named = || ooms.contains_key(&id) || named.contains(&*analysis.symbols.stable_id(id));
            if !lines.contains_key(&id) && is_named() {
                lines.insert(id, LineProfile::new(analysis, id));
            }
        }
        Self {
            analysis,
            steps: analysis.step_rule.source().map(|_| analysis.steps),
            devices,
            lines: lines.into_values().collect(),
            leaks,
            ooms,
        }
    }

    /// What alignment needs of the lines. `steps` are those in which both runs are compared.
    pub(super) fn lines_to_align(&self, steps: Option<super::ComparedRange>) -> Vec<AlignLine> {
        let mut starts: SeededMap<(&str, &str), Vec<i64>> = SeededMap::default();
        for code in self.analysis.symbols.definitions().codes.values() {
            starts.entry((&code.file, &code.name)).or_default().push(i64::from(code.first_line));
        }
        let start = |site: &Site| {
            let (file, function, line) =
                (site.file.as_deref()?, site.function.as_deref()?, i64::from(site.line?));
            starts.get(&(file, function))?.iter().copied().filter(|first| *first <= line).max()
        };
        let to_align = |line: &LineProfile| {
            let site = &line.site;
            let is_python = site.module.is_none();
            let place = match site.line {
                Some(number) => Some(i64::from(number) - start(site).filter(|_| is_python).unwrap_or(0)),
                None => site.offset.map(|offset| offset as i64),
            };
            AlignLine {
                file: site.file.clone(),
                module: site.module.clone(),
                function: site.function.clone(),
                is_backward: site.is_backward,
                place,
                below: line.below.clone(),
                amounts: line.amounts(steps),
            }
        };
        self.lines.iter().map(to_align).collect()
    }
}

impl LineProfile {
    fn new(analysis: &Analysis, id: SiteId) -> Self {
        let site = analysis.symbols.site(id, None);
        Self { id, site, devices: BTreeMap::new(), below: BTreeSet::new() }
    }

    fn add_below(&mut self, analysis: &Analysis, stack: StackId) {
        let innermost = analysis.symbols.innermost(stack);
        if innermost == self.id || self.below.len() >= MAX_BELOW {
            return;
        }
        if let SiteKey::Python { file: Some(file), function: Some(function), .. } =
            &analysis.symbols.sites[innermost.0 as usize]
        {
            self.below.insert(format!("{}:{function}", files::name(file)));
        }
    }

    /// On all devices together: at the peak, retained, in a step.
    fn amounts(&self, steps: Option<super::ComparedRange>) -> [BlockTotals; 3] {
        let mut all = [BlockTotals::default(); 3];
        for on in self.devices.values() {
            let retained = steps.map_or(on.end, |steps| steps.retained(&on.held, &on.held).0);
            let allocated = steps
                .map_or(BlockTotals { bytes: 0, blocks: on.blocks }, |steps| steps.median(&on.allocated));
            for (sum, one) in all.iter_mut().zip([on.at_peak, retained, allocated]) {
                sum.bytes = sum.bytes.saturating_add(one.bytes);
                sum.blocks = sum.blocks.saturating_add(one.blocks);
            }
        }
        all
    }
}

fn device(
    analysis: &Analysis,
    state: &DeviceState,
    steps: Option<&super::per_step::DeviceSteps>,
) -> DeviceProfile {
    let mut totals = BTreeMap::new();
    if state.has_torch() {
        totals.insert(TotalQuantity::PeakLive, state.torch.peak().live);
        totals.insert(TotalQuantity::PeakReserved, state.reserved_peak.reserved);
    }
    if !state.driver.is_empty() {
        totals.insert(TotalQuantity::PeakDevice, state.peak_device);
        for (owner, bytes) in state.attribution.entries(&analysis.owners) {
            totals.insert(TotalQuantity::HeldBy(owner), bytes);
        }
    }
    if let Some((_, _, gap)) = &state.gap_at_peak {
        totals.insert(TotalQuantity::Gap, gap.bytes);
        for (cause, bytes) in gap.parts() {
            totals.insert(TotalQuantity::GapCause(cause), bytes);
        }
    }
    DeviceProfile {
        totals,
        held: state.main().series().clone(),
        end: state.main().total(),
        allocated: steps.map(|steps| steps.allocated.clone()).unwrap_or_default(),
        peak: steps.map(|steps| steps.peak.clone()).unwrap_or_default(),
    }
}
