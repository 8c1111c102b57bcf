//! Statistics of one call site and of one stack in a live set.
//!
//! A step end or a new peak concerns every site and stack, but most do not change around it. Each
//! therefore defers its work to its next change or to the end of the run. It then saves its value,
//! adds a point to its series and fills its bins. A site that is not touched costs nothing per
//! step.

use crate::state::live_set::lazy_counter::{Checkpoints, LazyCounter};
use crate::timeline::bins::{BinValues, TimelineBins};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;
use crate::util::ids::SiteId;

/// Checkpoint of sites: the peak of the live set.
pub(crate) const PEAK: usize = 0;
/// Checkpoint of sites: the high of the current bin.
pub(crate) const HIGH: usize = 1;
/// Checkpoint of sites: the low of the current bin.
pub(crate) const LOW: usize = 2;
/// Checkpoint of sites: the last step end. Its value is not used; setting it makes every counter do
/// its deferred work on the next change.
pub(crate) const STEP: usize = 3;
/// Number of checkpoints of sites.
pub(crate) const CHECKPOINTS: usize = 4;
/// Checkpoint of stacks: the peak. Stacks have no bins, because a high may occur at every event.
pub(crate) const STACK_PEAK: usize = 0;
/// Checkpoint of stacks: the last step end, as [`STEP`].
pub(crate) const STACK_STEP: usize = 1;
/// Number of checkpoints of stacks.
pub(crate) const STACK_CHECKPOINTS: usize = 2;
/// The site of a stack that never allocated in this set.
const NO_SITE: SiteId = SiteId(u32::MAX);
/// Points in the series of a stack, which only tells what the stack held before it grew.
const MAX_STACK_POINTS: usize = 64;
/// Number of age classes; each covers twice the ages of the one before.
pub(crate) const AGES: usize = 16;
/// Limit of the sites at which blocks of one site are freed; further ones are not counted.
const MAX_FREE_SITES: usize = 16;

/// Counts of a site's blocks by what happened to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockOutcomes {
    /// Number of blocks allocated.
    pub allocated: u64,
    /// Number of blocks freed.
    pub freed: u64,
}

/// Blocks freed in a later step than that of their allocation, by age in steps: 1, 2 to 3, 4 to 7,
/// ..., and all older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreedByAge(pub [u32; AGES]);

impl FreedByAge {
    /// Counts a free at this age, which is at least one step.
    pub(crate) fn count(&mut self, age_steps: u32) {
        let count = &mut self.0[age_class(age_steps)];
        *count = count.saturating_add(1);
    }

    /// Takes back one free that [`Self::count`] counted.
    pub(crate) fn uncount(&mut self, age_steps: u32) {
        let count = &mut self.0[age_class(age_steps)];
        *count = count.saturating_sub(1);
    }

    /// Adds the counts of another stack.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// An age in the middle of a class.
    pub(crate) fn typical_age(class: usize) -> u32 {
        ((1u32 << class) + (2u32 << class) - 1) / 2
    }

    /// Number of blocks in the class `class` and all older ones.
    pub(crate) fn count_from_class(&self, class: usize) -> u64 {
        self.0[class.min(AGES)..].iter().map(|count| u64::from(*count)).sum()
    }
}

fn age_class(age_steps: u32) -> usize {
    (age_steps.max(1).ilog2() as usize).min(AGES - 1)
}

/// A site at which blocks of another site are freed.
#[derive(Clone, Copy, Debug)]
struct FreeSite {
    site: SiteId,
    /// Number of frees up to the last recorded step end.
    count: u64,
    /// Number of frees since.
    this_step: u64,
}

/// The statistics of one call site.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteStats {
    pub(crate) counter: LazyCounter<CHECKPOINTS>,
    pub(crate) series: StepSeries,
    /// The first step without a point in `series`.
    pub(crate) recorded_step: u32,
    pub(crate) bins: BinValues,
    pub(crate) outcomes: BlockOutcomes,
    /// `outcomes` at the end of the step before `recorded_step`.
    pub(crate) outcomes_at_step_end: BlockOutcomes,
    free_sites: Vec<FreeSite>,
}

impl SiteStats {
    /// Live blocks at step ends.
    pub(crate) fn series(&self) -> &StepSeries {
        &self.series
    }

    /// Present total of its live blocks.
    pub(crate) fn now(&self) -> BlockTotals {
        self.counter.now
    }

    /// Number of blocks allocated over the whole run.
    pub(crate) fn allocated(&self) -> u64 {
        self.outcomes.allocated
    }

    /// Counts the free of a block by `free_site`.
    #[inline]
    pub(crate) fn count_free(&mut self, free_site: SiteId) {
        self.outcomes.freed += 1;
        if let Some(entry) = self.free_sites.iter_mut().find(|entry| entry.site == free_site) {
            entry.this_step += 1;
        } else if self.free_sites.len() < MAX_FREE_SITES {
            self.free_sites.push(FreeSite { site: free_site, count: 0, this_step: 1 });
        }
    }

    /// Bytes at the high and the low of each bin.
    pub(crate) fn bin_values(&self) -> &BinValues {
        &self.bins
    }

    /// The site that freed most of its blocks up to the last step end.
    pub(crate) fn main_free_site(&self) -> Option<SiteId> {
        let most = self.free_sites.iter().max_by_key(|entry| entry.count)?;
        (most.count > 0).then_some(most.site)
    }

    /// Does the work deferred since the last change. `step` is the current step.
    #[inline(never)]
    pub(crate) fn apply_deferred(
        &mut self,
        step: u32,
        checkpoints: &Checkpoints<CHECKPOINTS>,
        bins: &TimelineBins,
    ) {
        if self.recorded_step < step {
            self.series.record(self.recorded_step, self.counter.now);
            self.recorded_step = step;
            self.outcomes_at_step_end = self.outcomes;
            for entry in &mut self.free_sites {
                entry.count += entry.this_step;
                entry.this_step = 0;
            }
        }
        if self.bins.len() < bins.current() {
            self.fill_bins(bins.current(), bins);
        }
        self.counter.save(checkpoints);
    }

    /// Fills the values of the bins before `end`.
    #[inline(never)] // At most changes, the bins before are filled already.
    pub(crate) fn fill_bins(&mut self, end: usize, bins: &TimelineBins) {
        if self.bins.len() >= end {
            return;
        }
        let all = bins.all();
        for bin in &all[self.bins.len()..end.min(all.len())] {
            let high = self.counter.value_at_clock(bin.high_clock, HIGH).bytes;
            let low = self.counter.value_at_clock(bin.low_clock, LOW).bytes;
            self.bins.push([high, low]);
        }
    }
}

/// The statistics of one stack.
#[derive(Clone, Debug)]
pub(crate) struct StackStats {
    pub(crate) counter: LazyCounter<STACK_CHECKPOINTS>,
    pub(crate) site: SiteId,
    /// Its blocks that outlived their step and were freed.
    pub(crate) freed_by_age: FreedByAge,
    pub(crate) series: StepSeries,
    /// The first step without a point in `series`.
    pub(crate) recorded_step: u32,
    /// Number of earlier steps in which it allocated or one of its blocks was freed.
    pub(crate) earlier_steps: u32,
}

impl Default for StackStats {
    fn default() -> Self {
        let series = StepSeries::with_max_points(MAX_STACK_POINTS);
        Self {
            counter: LazyCounter::default(),
            site: NO_SITE,
            freed_by_age: FreedByAge::default(),
            series,
            recorded_step: 0,
            earlier_steps: 0,
        }
    }
}

impl StackStats {
    /// Does the work deferred since the last change. `step` is the current step.
    #[inline(never)]
    pub(crate) fn apply_deferred(&mut self, step: u32, checkpoints: &Checkpoints<STACK_CHECKPOINTS>) {
        if self.recorded_step < step {
            self.series.record(self.recorded_step, self.counter.now);
            self.recorded_step = step;
            self.earlier_steps += u32::from(self.site != NO_SITE);
        }
        self.counter.save(checkpoints);
    }

    /// True if the stack has allocated in this set.
    pub(crate) fn has_allocated(&self) -> bool {
        self.site != NO_SITE
    }

    /// Live bytes at the end of `step`, which has ended.
    pub(crate) fn bytes_at(&self, step: u32) -> u64 {
        if step < self.recorded_step { self.series.at(step).bytes } else { self.counter.now.bytes }
    }
}
