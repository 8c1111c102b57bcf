//! The reproducible quantities of a run: the input of comparisons and budget checks.
//!
//! A [`Profile`] has values that a second run of the same program reproduces exactly. Nothing in
//! it depends on addresses, times, threads or process ids. Building one costs one visit of each
//! site and stack. `tests/compare.rs` checks that runs with other addresses, times and threads
//! have no differences.

use std::collections::{BTreeMap, BTreeSet};

use super::align::AlignLine;
use super::files;
use super::per_step::PerStepTotals;
use super::totals::TotalQuantity;
use crate::callsite::site_key::SiteKey;
use crate::device::DeviceState;
use crate::leak;
use crate::pass::Analysis;
use crate::report::{Leak, LeakAssessment, Site};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::{SiteId, StackId};
use crate::util::seeded_map::SeededMap;
use gpumemtrace_format::NO_DEVICE;

/// Innermost functions kept per line.
const MAX_CALLEES: usize = 64;

/// The reproducible quantities of one run.
#[derive(Debug)]
pub struct Profile<'a> {
    /// The analysis that it was built from.
    pub analysis: &'a Analysis,
    /// Number of steps that ended. `None` if the trace has no steps.
    pub(crate) steps: Option<u32>,
    /// Profiles by device ordinal.
    pub(crate) devices: BTreeMap<u8, DeviceProfile>,
    /// Lines that allocated, and other lines that leaks or out-of-memory errors name.
    pub(crate) lines: Vec<LineProfile>,
    /// Findings of the leak analysis, as in the report.
    pub leaks: Vec<Leak>,
    /// What was judged, and what grew without being called a leak.
    pub(crate) assessment: LeakAssessment,
    /// Number of out-of-memory errors by line, of those that the analysis lists.
    pub(crate) ooms: BTreeMap<SiteId, u64>,
}

/// Quantities of one device.
#[derive(Debug, Default)]
pub(crate) struct DeviceProfile {
    /// Totals of the device in bytes, by name. Unknown ones are missing.
    pub(crate) totals: BTreeMap<TotalQuantity, u64>,
    /// Live blocks at step ends.
    pub(crate) held: StepSeries,
    /// Live blocks at the end of the program.
    pub(crate) end: BlockTotals,
    /// Blocks allocated in each step.
    pub(crate) allocated: StepSeries,
    /// Peak of each step in bytes.
    pub(crate) peak: StepSeries,
}

/// Quantities of one line.
#[derive(Debug)]
pub(crate) struct LineProfile {
    /// Number of the site in the analysis.
    pub(crate) id: SiteId,
    /// The line, without a stack.
    pub(crate) site: Site,
    /// Quantities by device ordinal.
    pub(crate) devices: BTreeMap<u8, LineOnDevice>,
    /// Innermost functions that allocated on behalf of the line, as `FILE:FUNCTION`.
    callees: BTreeSet<String>,
}

/// Quantities of one line on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineOnDevice {
    /// Live blocks at the device's peak.
    pub(crate) at_peak: BlockTotals,
    /// Live blocks at step ends.
    pub(crate) held: StepSeries,
    /// Live blocks at the end of the program.
    pub(crate) end: BlockTotals,
    /// Blocks allocated in each step.
    pub(crate) allocated: StepSeries,
    /// Number of blocks allocated in the whole run.
    pub(crate) blocks: u64,
    /// The stack with most live bytes at the peak.
    pub(crate) stack: Option<StackId>,
}

impl<'a> Profile<'a> {
    /// Lines of native code, for a symbolizer to name in place.
    pub fn native_sites_mut(&mut self) -> impl Iterator<Item = &mut Site> {
        self.lines.iter_mut().map(|line| &mut line.site).filter(|site| site.module.is_some())
    }

    /// Builds the profile of an analysis and the totals per step of the same trace. Runs the leak
    /// analysis.
    pub fn new(analysis: &'a Analysis, per_step: &PerStepTotals) -> Self {
        let mut devices = BTreeMap::new();
        let mut lines: BTreeMap<SiteId, LineProfile> = BTreeMap::new();
        for (ordinal, state) in analysis.devices.iter().filter(|(ordinal, _)| *ordinal != NO_DEVICE) {
            let steps = per_step.0.get(ordinal);
            devices.insert(*ordinal, profile_device(analysis, state, steps));
            let live_set = state.main();
            let at_end: BTreeMap<SiteId, BlockTotals> = live_set.end_sites().into_iter().collect();
            for (id, entry) in live_set.sites() {
                let line = lines.entry(id).or_insert_with(|| LineProfile::new(analysis, id));
                for stack in live_set.stacks_of(id) {
                    line.add_callee(analysis, stack);
                }
                let on_device = LineOnDevice {
                    at_peak: live_set.at_peak(entry),
                    held: entry.series().clone(),
                    end: at_end.get(&id).copied().unwrap_or_default(),
                    allocated: steps.and_then(|steps| steps.lines.get(&id)).cloned().unwrap_or_default(),
                    blocks: entry.allocated(),
                    stack: live_set.main_stack_at_peak(id).or_else(|| live_set.stacks_of(id).next()),
                };
                line.devices.insert(*ordinal, on_device);
            }
        }
        let found = leak::find_leaks(0, analysis);
        let (leaks, assessment) = (found.leaks, leak::assessment::assess(0, analysis, found.growth));
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
            assessment,
            ooms,
        }
    }

    /// The properties of the lines that alignment compares, over the steps that both runs are
    /// compared in.
    pub(super) fn lines_to_align(&self, steps: Option<super::ComparedRange>) -> Vec<AlignLine> {
        let mut first_lines: SeededMap<(&str, &str), Vec<i64>> = SeededMap::default();
        for code in self.analysis.symbols.definitions().codes.values() {
            first_lines.entry((&code.file, &code.name)).or_default().push(i64::from(code.first_line));
        }
        // The last definition of the function above the line, if several have the same name.
        let first_line = |site: &Site| {
            let (file, function, line) =
                (site.file.as_deref()?, site.function.as_deref()?, i64::from(site.line?));
            first_lines.get(&(file, function))?.iter().copied().filter(|first| *first <= line).max()
        };
        let to_align = |line: &LineProfile| {
            let site = &line.site;
            let is_python = site.module.is_none();
            let position = match site.line {
                Some(number) => Some(i64::from(number) - first_line(site).filter(|_| is_python).unwrap_or(0)),
                None => site.offset.map(|offset| offset as i64),
            };
            AlignLine {
                file: site.file.clone(),
                module: site.module.clone(),
                function: site.function.clone(),
                is_backward: site.is_backward,
                position,
                callees: line.callees.clone(),
                amounts: line.sum_amounts(steps),
            }
        };
        self.lines.iter().map(to_align).collect()
    }
}

impl LineProfile {
    fn new(analysis: &Analysis, id: SiteId) -> Self {
        let site = analysis.symbols.site(id, None);
        Self { id, site, devices: BTreeMap::new(), callees: BTreeSet::new() }
    }

    fn add_callee(&mut self, analysis: &Analysis, stack: StackId) {
        let innermost = analysis.symbols.innermost(stack);
        if innermost == self.id || self.callees.len() >= MAX_CALLEES {
            return;
        }
        if let SiteKey::Python { file: Some(file), function: Some(function), .. } =
            &analysis.symbols.sites[innermost.0 as usize]
        {
            self.callees.insert(format!("{}:{function}", files::file_name(file)));
        }
    }

    /// Sums over all devices: at the peak, retained, allocated per step.
    fn sum_amounts(&self, steps: Option<super::ComparedRange>) -> [BlockTotals; 3] {
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

fn profile_device(
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
        totals.insert(TotalQuantity::PeakDevice, state.driver_peak.bytes());
        for (owner, bytes) in state.attribution.entries(&analysis.owners) {
            totals.insert(TotalQuantity::HeldBy(owner), bytes);
        }
    }
    if let Some(at_peak) = &state.gap_at_peak {
        let gap = &at_peak.gap;
        totals.insert(TotalQuantity::Gap, gap.bytes);
        for (cause, bytes) in gap.bytes_by_cause() {
            totals.insert(TotalQuantity::GapCause(cause), bytes);
        }
    }
    DeviceProfile {
        totals,
        held: state.main().series().clone(),
        end: state.main().end_total(),
        allocated: steps.map(|steps| steps.allocated.clone()).unwrap_or_default(),
        peak: steps.map(|steps| steps.peak.clone()).unwrap_or_default(),
    }
}
