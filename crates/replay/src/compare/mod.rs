//! Compares two runs: what grew, shrank, appeared and disappeared, by line and in total.
//!
//! [`compare()`] compares, to the byte, quantities that are reproducible from run to run: peaks
//! of allocated, reserved and device bytes, each line's bytes at the peak, the fragmentation gap
//! and its causes, leaks, and out-of-memory errors. Times, addresses, threads and processes are
//! not compared.
//!
//! If both runs have steps from the same source, step k is compared with step k, up to the last
//! step that both completed. Warm-up steps do not count, as in the leak analysis. Runs of
//! different length can thus be compared. Quantities per step are medians; of an even number of
//! steps, the lower middle value. A line is listed too if the medians are equal and some steps
//! differ. *Retained* bytes are live at the end of the last compared step, or of the run if there
//! are no steps. Leaks without steps are judged over intervals of allocations, which differ between
//! runs that allocate in another order; they are counted in a note instead.
//!
//! Module `align` pairs the lines of both runs and `files` their files. The cost is that of the
//! alignment. `tests/compare.rs` checks that two runs of one program are equal, and that a change
//! is found at its line.

pub(crate) mod align;
pub(crate) mod backends;
pub(crate) mod difference;
pub(crate) mod files;
pub(crate) mod lines;
pub(crate) mod per_step;
pub(crate) mod profile;
pub(crate) mod totals;

use std::collections::{BTreeMap, BTreeSet};

pub use self::{
    backends::{
        AmplificationGap, Backend, BackendComparison, Incomparable, LeakingLine, LineOnBoth, PinnedByLeaks,
    },
    difference::{
        ChangeStatus, ComparedRun, Comparison, ComparisonNote, LeakChange, LeakSide, LineChange, OomChange,
        Worsening,
    },
    per_step::{PerStepTotals, analyse_by_steps, count_by_steps},
    profile::Profile,
    totals::{AmountChange, TotalChange, TotalQuantity},
};
use align::LinePair;
pub(crate) use profile::{DeviceProfile, LineOnDevice, LineProfile};

use crate::leak::growth::warm_up_values;
use crate::report::ComparedSteps;
use crate::report::{AssessmentStatus, GrowingSite, GrowthClass, Leak, Site};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// The steps that are compared, without those of the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparedRange {
    first: u32,
    /// One past the last step.
    end: u32,
    /// Both runs completed exactly these steps.
    is_all: bool,
}

impl ComparedRange {
    /// The steps of one run with this number of completed steps. `None` if there are none.
    pub(crate) fn of_run(steps_ended: u32) -> Option<Self> {
        Self::common_to(steps_ended, steps_ended)
    }

    /// The steps that both of two runs completed.
    fn common_to(one: u32, other: u32) -> Option<Self> {
        let end = one.min(other);
        (end > 0).then(|| Self { first: warm_up_values(end as usize) as u32, end, is_all: one == other })
    }

    /// Number of the last step.
    pub(crate) fn last(self) -> u32 {
        self.end - 1
    }

    /// Values of two series in the same steps. Long series are thinned: then only steps that both
    /// kept.
    pub(crate) fn pairs(self, one: &StepSeries, other: &StepSeries) -> Vec<(BlockTotals, BlockTotals)> {
        let ((stride, values), (other_stride, other_values)) = (one.values(self.end), other.values(self.end));
        // Strides are powers of two, so the larger one is a multiple of the other.
        let every = stride.max(other_stride);
        let steps = (self.first.next_multiple_of(every)..self.end).step_by(every as usize);
        steps
            .map(|step| (values[(step / stride) as usize], other_values[(step / other_stride) as usize]))
            .collect()
    }

    /// Values of two series at the end of the last step, or of the last step that both series kept.
    pub(crate) fn retained(self, one: &StepSeries, other: &StepSeries) -> (BlockTotals, BlockTotals) {
        if self.is_all {
            return (one.at(u32::MAX), other.at(u32::MAX));
        }
        self.pairs(one, other).last().copied().unwrap_or_default()
    }

    /// Median over the steps, of bytes and blocks separately.
    pub(crate) fn median(self, series: &StepSeries) -> BlockTotals {
        self.medians(series, series).0
    }

    /// Medians of two series over the same steps.
    pub(crate) fn medians(self, one: &StepSeries, other: &StepSeries) -> (BlockTotals, BlockTotals) {
        let (one, other): (Vec<BlockTotals>, Vec<BlockTotals>) = self.pairs(one, other).into_iter().unzip();
        (median(&one), median(&other))
    }

    /// Mean growth in bytes per step, from the end of the first step to the end of the last.
    /// `None` for a single step.
    pub(crate) fn growth(self, series: &StepSeries) -> Option<f64> {
        let steps = self.last().checked_sub(self.first).filter(|steps| *steps > 0)?;
        let (from, to) = (series.at(self.first).bytes, series.at(self.last()).bytes);
        Some((to as f64 - from as f64) / f64::from(steps))
    }
}

fn median(values: &[BlockTotals]) -> BlockTotals {
    let middle = |of: fn(&BlockTotals) -> u64| {
        let mut values: Vec<u64> = values.iter().map(of).collect();
        values.sort_unstable();
        values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    };
    BlockTotals { bytes: middle(|held| held.bytes), blocks: middle(|held| held.blocks) }
}

/// Compares the run `before` a change with the run `after` it.
pub fn compare(before: &Profile<'_>, after: &Profile<'_>) -> Comparison {
    let mut notes = Vec::new();
    let steps = common_steps(before, after, &mut notes);
    let aligned = align::align_lines(&before.lines_to_align(steps), &after.lines_to_align(steps));
    let mut comparison = Comparison::new([ComparedRun::of(before), ComparedRun::of(after)], notes);
    comparison.steps = steps.map(|steps| ComparedSteps {
        first: u64::from(steps.first),
        last: u64::from(steps.last()),
        count: u64::from(steps.end - steps.first),
    });
    (comparison.totals, comparison.equal_totals) = totals(before, after, steps);
    comparison.lines = lines::compare_lines(before, after, steps, &aligned);
    let names = SharedLineIds::new(before, after, &aligned);
    comparison.across_backends = backends::across(before, after, &names);
    if before.steps.is_some() && after.steps.is_some() {
        comparison.leaks = leaks(before, after, &names);
    } else if !(before.leaks.is_empty() && after.leaks.is_empty()) {
        let (old, new) = (before.leaks.len(), after.leaks.len());
        comparison.notes.push(ComparisonNote::LeaksNotCompared { before: old, after: new }.into());
    }
    comparison.ooms = ooms(before, after, &aligned);
    comparison.conclude();
    comparison
}

fn common_steps(
    before: &Profile<'_>,
    after: &Profile<'_>,
    notes: &mut Vec<ComparisonNote>,
) -> Option<ComparedRange> {
    let source = |profile: &Profile<'_>| profile.analysis.step_source();
    match (source(before), source(after)) {
        (Some(one), Some(other)) if one == other => {
            ComparedRange::common_to(before.steps.unwrap_or(0), after.steps.unwrap_or(0))
        }
        (Some(one), Some(other)) => {
            notes.push(ComparisonNote::StepSourcesDiffer { before: one, after: other });
            None
        }
        (None, None) => {
            notes.push(ComparisonNote::NoSteps);
            None
        }
        (one, _) => {
            notes.push(ComparisonNote::NoStepsInRun { run: usize::from(one.is_some()) });
            None
        }
    }
}

/// The totals that differ, and those that are known and equal.
fn totals(
    before: &Profile<'_>,
    after: &Profile<'_>,
    steps: Option<ComparedRange>,
) -> (Vec<TotalChange>, Vec<TotalQuantity>) {
    let (mut all, mut equal) = (Vec::new(), Vec::new());
    let mut add_total = |device, name: TotalQuantity, before: Option<u64>, after| {
        if before.is_some() && before == after {
            equal.push(name.clone());
        }
        all.extend(TotalChange::of(device, name, before, after));
    };
    let counts = [
        (TotalQuantity::Steps, before.steps.map(u64::from), after.steps.map(u64::from)),
        (TotalQuantity::Ooms, Some(before.analysis.oom_count), Some(after.analysis.oom_count)),
    ];
    for (name, before, after) in counts {
        add_total(None, name, before, after);
    }
    let ordinals: BTreeSet<u8> = before.devices.keys().chain(after.devices.keys()).copied().collect();
    let none = DeviceProfile::default();
    for ordinal in ordinals {
        let (old, new) =
            (before.devices.get(&ordinal).unwrap_or(&none), after.devices.get(&ordinal).unwrap_or(&none));
        // A run without anything of a device did not use it, if its trace is complete.
        let unused = [before, after].map(|profile| {
            let is_used = profile.devices.contains_key(&ordinal);
            (!is_used).then(|| profile.analysis.incomplete.is_empty().then_some(0))
        });
        let mut add = |name, before, after| {
            add_total(Some(ordinal), name, unused[0].unwrap_or(before), unused[1].unwrap_or(after));
        };
        let names: BTreeSet<&TotalQuantity> = old.totals.keys().chain(new.totals.keys()).collect();
        let mut names: Vec<&TotalQuantity> = names.into_iter().collect();
        names.sort_by_cached_key(ToString::to_string);
        for name in names {
            // An owner that is not listed held nothing.
            let known = |profile: &DeviceProfile| {
                let is_part = matches!(name, TotalQuantity::HeldBy(_))
                    && profile.totals.contains_key(&TotalQuantity::PeakDevice);
                profile.totals.get(name).copied().or(is_part.then_some(0))
            };
            add(name.clone(), known(old), known(new));
        }
        let Some(steps) = steps else {
            add(TotalQuantity::Retained, Some(old.end.bytes), Some(new.end.bytes));
            continue;
        };
        let (old_end, new_end) = steps.retained(&old.held, &new.held);
        add(TotalQuantity::Retained, Some(old_end.bytes), Some(new_end.bytes));
        let (old_peak, new_peak) = steps.medians(&old.peak, &new.peak);
        add(TotalQuantity::PeakPerStep, Some(old_peak.bytes), Some(new_peak.bytes));
        let (old, new) = steps.medians(&old.allocated, &new.allocated);
        add(TotalQuantity::BytesPerStep, Some(old.bytes), Some(new.bytes));
        add(TotalQuantity::AllocationsPerStep, Some(old.blocks), Some(new.blocks));
    }
    (all, equal)
}

/// Gives lines that are aligned the same number.
struct SharedLineIds<'a>([BTreeMap<&'a str, usize>; 2]);

impl<'a> SharedLineIds<'a> {
    fn new(before: &'a Profile<'_>, after: &'a Profile<'_>, aligned: &[LinePair]) -> Self {
        let id = |profile: &'a Profile<'_>, index: usize| &*profile.lines[index].site.id;
        let mut numbers = [BTreeMap::new(), BTreeMap::new()];
        for (number, pair) in aligned.iter().enumerate() {
            numbers[0].insert(id(before, pair.before), number);
            numbers[1].insert(id(after, pair.after), number);
        }
        Self(numbers)
    }

    /// The number of a line of the run with this index. `Err` with the line's id if it is not
    /// aligned.
    fn number_of_site<'b>(&self, run: usize, site: &'b Site) -> Result<usize, &'b str> {
        self.0[run].get(&*site.id).copied().ok_or(&site.id)
    }
}

/// Whether the run would show this leak of the other run: it was judged, and does not list the call
/// site as one that may leak.
fn is_judged(run: usize, profile: &Profile<'_>, leak: &Leak, names: &SharedLineIds<'_>) -> bool {
    let number = names.number_of_site(1 - run, &leak.site).ok();
    let may_leak = |growing: &GrowingSite| {
        growing.device == leak.device
            && number.is_some()
            && names.number_of_site(run, &growing.site).ok() == number
            && !matches!(growing.class, GrowthClass::GrowingSizes | GrowthClass::Filling)
    };
    profile.assessment.status != AssessmentStatus::NotAssessed
        && !profile.assessment.growth.iter().any(may_leak)
}

fn leaks(before: &Profile<'_>, after: &Profile<'_>, names: &SharedLineIds<'_>) -> Vec<LeakChange> {
    let mut new: Vec<&Leak> = after.leaks.iter().collect();
    let mut changes = Vec::new();
    for leak in &before.leaks {
        let same = names.number_of_site(0, &leak.site).ok().and_then(|number| {
            let is_same = |other: &&Leak| {
                (other.kind, other.device) == (leak.kind, leak.device)
                    && names.number_of_site(1, &other.site) == Ok(number)
            };
            new.iter().position(is_same)
        });
        let (old_side, new_side) = (LeakSide::of(leak), same.map(|at| LeakSide::of(new.remove(at))));
        let status = match &new_side {
            None if is_judged(1, after, leak, names) => ChangeStatus::Disappeared,
            None => ChangeStatus::Unjudged,
            Some(new_side) => match old_side.rate().partial_cmp(&new_side.rate()) {
                Some(std::cmp::Ordering::Equal) => continue,
                Some(std::cmp::Ordering::Less) => ChangeStatus::Grew,
                Some(std::cmp::Ordering::Greater) => ChangeStatus::Shrank,
                None => ChangeStatus::Changed,
            },
        };
        changes.push(LeakChange {
            device: leak.device,
            kind: leak.kind,
            status,
            before: Some(old_side),
            after: new_side,
        });
    }
    changes.extend(new.into_iter().map(|leak| LeakChange {
        device: leak.device,
        kind: leak.kind,
        status: if is_judged(0, before, leak, names) {
            ChangeStatus::Appeared
        } else {
            ChangeStatus::Unjudged
        },
        before: None,
        after: Some(LeakSide::of(leak)),
    }));
    changes.sort_by_key(|change| (change.status, std::cmp::Reverse(change.bytes())));
    changes
}

fn ooms(before: &Profile<'_>, after: &Profile<'_>, aligned: &[LinePair]) -> Vec<OomChange> {
    let count = |profile: &Profile<'_>, line: Option<usize>| {
        line.and_then(|line| profile.ooms.get(&profile.lines[line].id)).copied().unwrap_or(0)
    };
    let mut changes = Vec::new();
    for line in all_lines(before, after, aligned) {
        let (old, new) = (count(before, line.before), count(after, line.after));
        if old != new {
            let site = |profile: &Profile<'_>, line: Option<usize>| {
                line.map(|line| profile.lines[line].site.clone())
            };
            changes.push(OomChange {
                before: site(before, line.before),
                after: site(after, line.after),
                count: AmountChange::new(old, new),
            });
        }
    }
    changes
}

/// Indexes of one line in the profiles of both runs. `None` where a run does not have the line.
#[derive(Clone, Copy)]
struct LineInRuns {
    before: Option<usize>,
    after: Option<usize>,
}

/// Lines of both runs, then those of the first alone, then those of the second alone.
fn all_lines(before: &Profile<'_>, after: &Profile<'_>, aligned: &[LinePair]) -> Vec<LineInRuns> {
    let old: BTreeSet<usize> = aligned.iter().map(|pair| pair.before).collect();
    let new: BTreeSet<usize> = aligned.iter().map(|pair| pair.after).collect();
    let in_both =
        aligned.iter().map(|pair| LineInRuns { before: Some(pair.before), after: Some(pair.after) });
    let only_before = (0..before.lines.len())
        .filter(|line| !old.contains(line))
        .map(|line| LineInRuns { before: Some(line), after: None });
    let only_after = (0..after.lines.len())
        .filter(|line| !new.contains(line))
        .map(|line| LineInRuns { before: None, after: Some(line) });
    in_both.chain(only_before).chain(only_after).collect()
}
