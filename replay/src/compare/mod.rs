//! Two runs side by side: what grew, shrank, appeared and went, by line and as a whole.
//!
//! Definition. Quantities that the same program has again in each run are compared exactly, to the byte: the peaks of live, reserved
//! and device bytes and what each line held at the peak of live bytes; the gap at the peak of reserved bytes and its causes;
//! findings; out-of-memory events. Times, addresses, threads and processes are not compared.
//!
//! *By steps*: where both runs tell their steps in the same way, step k of the one is held against step k of the other, up to the
//! last step that both have ended; the first ones of a long run do not count, as in the leak analysis. So runs of
//! different length can be compared. What is told of all these steps is the median (of an even number, the lower one); a line is
//! listed also where the medians are equal and some steps are not. *Retained* is what is live at the end of the last of these
//! steps; where there are no steps, at the end. Findings without steps are judged over equal times, which no two runs have: they
//! are not compared, and a note says how many there are.
//!
//! Which line is which is said in `align`, which file is which in `files`.

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
        ChangeStatus, ComparedRun, ComparedSteps, Comparison, ComparisonNote, LeakChange, LeakSide,
        LineChange, OomChange,
    },
    per_step::{PerStepTotals, analyse_by_steps},
    profile::Profile,
    totals::{AmountChange, TotalChange, TotalQuantity},
};
pub(crate) use profile::{DeviceProfile, LineOnDevice, LineProfile};

use crate::leak::growth::warm_up;
use crate::report::{Leak, Site};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

/// The steps that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComparedRange {
    first: u32,
    end: u32,
    /// No run has ended more.
    is_all: bool,
}

impl ComparedRange {
    /// Of so many that have ended. `None` if that is none.
    pub(crate) fn of(ended: u32) -> Option<Self> {
        Self::common(ended, ended)
    }

    fn common(one: u32, other: u32) -> Option<Self> {
        let end = one.min(other);
        (end > 0).then(|| Self { first: warm_up(end as usize) as u32, end, is_all: one == other })
    }

    /// The last one.
    pub(crate) fn last(self) -> u32 {
        self.end - 1
    }

    /// Values of two series in the same steps; not in all, where one of them has not kept all.
    pub(crate) fn pairs(self, one: &StepSeries, other: &StepSeries) -> Vec<(BlockTotals, BlockTotals)> {
        let ((stride, values), (other_stride, other_values)) = (one.values(self.end), other.values(self.end));
        // Both are powers of two.
        let every = stride.max(other_stride);
        let steps = (self.first.next_multiple_of(every)..self.end).step_by(every as usize);
        steps
            .map(|step| (values[(step / stride) as usize], other_values[(step / other_stride) as usize]))
            .collect()
    }

    /// Values of two series at the end of the last step, or of the last one that both have kept.
    pub(crate) fn retained(self, one: &StepSeries, other: &StepSeries) -> (BlockTotals, BlockTotals) {
        if self.is_all {
            return (one.at(u32::MAX), other.at(u32::MAX));
        }
        self.pairs(one, other).last().copied().unwrap_or_default()
    }

    /// The middle one of the values; bytes and blocks each for itself.
    pub(crate) fn median(self, series: &StepSeries) -> BlockTotals {
        self.medians(series, series).0
    }

    /// Of two series in the same steps.
    pub(crate) fn medians(self, one: &StepSeries, other: &StepSeries) -> (BlockTotals, BlockTotals) {
        let (one, other): (Vec<BlockTotals>, Vec<BlockTotals>) = self.pairs(one, other).into_iter().unzip();
        (median(&one), median(&other))
    }

    /// Growth in a step: from the end of the first to that of the last, evenly.
    pub(crate) fn growth(self, held: &StepSeries) -> Option<f64> {
        let steps = self.last().checked_sub(self.first).filter(|steps| *steps > 0)?;
        let (from, to) = (held.at(self.first).bytes, held.at(self.last()).bytes);
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

/// Compares the run before with the run after.
pub fn compare(before: &Profile<'_>, after: &Profile<'_>) -> Comparison {
    let mut notes = Vec::new();
    let steps = common_steps(before, after, &mut notes);
    let aligned = align::align(&before.lines_to_align(steps), &after.lines_to_align(steps));
    let mut comparison = Comparison::new([ComparedRun::of(before), ComparedRun::of(after)], notes);
    comparison.steps = steps.map(|steps| ComparedSteps {
        first: u64::from(steps.first),
        last: u64::from(steps.last()),
        count: u64::from(steps.end - steps.first),
    });
    comparison.totals = totals(before, after, steps);
    comparison.lines = lines::lines(before, after, steps, &aligned);
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
            ComparedRange::common(before.steps.unwrap_or(0), after.steps.unwrap_or(0))
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

fn totals(before: &Profile<'_>, after: &Profile<'_>, steps: Option<ComparedRange>) -> Vec<TotalChange> {
    let mut all = Vec::new();
    let counts = [
        (TotalQuantity::Steps, before.steps.map(u64::from), after.steps.map(u64::from)),
        (TotalQuantity::Ooms, Some(before.analysis.oom_count), Some(after.analysis.oom_count)),
    ];
    for (name, before, after) in counts {
        all.extend(TotalChange::of(None, name, before, after));
    }
    let ordinals: BTreeSet<u8> = before.devices.keys().chain(after.devices.keys()).copied().collect();
    let none = DeviceProfile::default();
    for ordinal in ordinals {
        let (old, new) =
            (before.devices.get(&ordinal).unwrap_or(&none), after.devices.get(&ordinal).unwrap_or(&none));
        let mut add = |name, before, after| all.extend(TotalChange::of(Some(ordinal), name, before, after));
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
    all
}

/// Lines of both runs by one number.
struct SharedLineIds<'a>([BTreeMap<&'a str, usize>; 2]);

impl<'a> SharedLineIds<'a> {
    fn new(before: &'a Profile<'_>, after: &'a Profile<'_>, aligned: &[(usize, usize)]) -> Self {
        let id = |profile: &'a Profile<'_>, index: usize| &*profile.lines[index].site.id;
        let mut names = [BTreeMap::new(), BTreeMap::new()];
        for (number, (one, other)) in aligned.iter().enumerate() {
            names[0].insert(id(before, *one), number);
            names[1].insert(id(after, *other), number);
        }
        Self(names)
    }

    /// `Err` for a line that only this run has.
    fn of<'b>(&self, run: usize, site: &'b Site) -> Result<usize, &'b str> {
        self.0[run].get(&*site.id).copied().ok_or(&site.id)
    }
}

fn leaks(before: &Profile<'_>, after: &Profile<'_>, names: &SharedLineIds<'_>) -> Vec<LeakChange> {
    let mut new: Vec<&Leak> = after.leaks.iter().collect();
    let mut changes = Vec::new();
    for leak in &before.leaks {
        let same = names.of(0, &leak.site).ok().and_then(|name| {
            let is_same = |other: &&Leak| {
                (other.kind, other.device) == (leak.kind, leak.device) && names.of(1, &other.site) == Ok(name)
            };
            new.iter().position(is_same)
        });
        let (old_side, new_side) = (LeakSide::of(leak), same.map(|at| LeakSide::of(new.remove(at))));
        let status = match &new_side {
            None => ChangeStatus::Disappeared,
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
        status: ChangeStatus::Appeared,
        before: None,
        after: Some(LeakSide::of(leak)),
    }));
    changes.sort_by_key(|change| (change.status, std::cmp::Reverse(change.bytes())));
    changes
}

fn ooms(before: &Profile<'_>, after: &Profile<'_>, aligned: &[(usize, usize)]) -> Vec<OomChange> {
    let count = |profile: &Profile<'_>, line: Option<usize>| {
        line.and_then(|line| profile.ooms.get(&profile.lines[line].id)).copied().unwrap_or(0)
    };
    let mut changes = Vec::new();
    for (one, other) in sides(before, after, aligned) {
        let (old, new) = (count(before, one), count(after, other));
        if old != new {
            let site = |profile: &Profile<'_>, line: Option<usize>| {
                line.map(|line| profile.lines[line].site.clone())
            };
            changes.push(OomChange {
                before: site(before, one),
                after: site(after, other),
                count: AmountChange::new(old, new),
            });
        }
    }
    changes
}

/// Lines that both have, then those of the first alone, then those of the second alone.
fn sides(
    before: &Profile<'_>,
    after: &Profile<'_>,
    aligned: &[(usize, usize)],
) -> Vec<(Option<usize>, Option<usize>)> {
    let old: BTreeSet<usize> = aligned.iter().map(|pair| pair.0).collect();
    let new: BTreeSet<usize> = aligned.iter().map(|pair| pair.1).collect();
    let both = aligned.iter().map(|(one, other)| (Some(*one), Some(*other)));
    let gone = (0..before.lines.len()).filter(|line| !old.contains(line)).map(|line| (Some(line), None));
    let came = (0..after.lines.len()).filter(|line| !new.contains(line)).map(|line| (None, Some(line)));
    both.chain(gone).chain(came).collect()
}
