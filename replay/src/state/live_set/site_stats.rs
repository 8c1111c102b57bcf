//! One site and one stack of a book: what it holds, and what it held at the moments that matter.
//!
//! Constraint: a step end or a new peak concerns every site and stack, and most do not change then. Consequence: each does what
//! was put off (saves its old value, adds a point to its series, fills its bins) when it is next changed, or at the end.

use crate::callsite::symbols::SiteId;
use crate::state::live_set::lazy_counter::{Checkpoints, LazyCounter};
use crate::timeline::bins::{BinValues, TimelineBins};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

pub(crate) const PEAK: usize = 0;
pub(crate) const HIGH: usize = 1;
pub(crate) const LOW: usize = 2;
/// Never asked for: it makes every tally catch up once after a step end.
pub(crate) const STEP: usize = 3;
pub(crate) const MARKS: usize = 4;
/// Of stacks the bins are not asked for, in which a new high may come with every event.
pub(crate) const STACK_PEAK: usize = 0;
/// As [`STEP`].
pub(crate) const STACK_STEP: usize = 1;
pub(crate) const STACK_MARKS: usize = 2;
/// The site of a stack that never allocated here.
const NO_SITE: SiteId = SiteId(u32::MAX);
/// Points of a stack's series: it weighs stacks against each other and is never shown.
const MAX_STACK_POINTS: usize = 64;
/// Ages that are told apart; each is twice the one before.
pub(crate) const AGES: usize = 6;
/// Most places of free told apart per site.
const MAX_FREE_SITES: usize = 16;

/// What happened to the blocks of a site, as counted at a step end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockOutcomes {
    /// Allocated.
    pub allocated: u64,
    /// Freed.
    pub freed: u64,
    /// Freed in a later step than they were allocated in.
    pub freed_after_step: u64,
    /// Those by how many steps later: 1, 2 or 3, 4 to 7, ... and the rest.
    pub freed_by_age: [u32; AGES],
}

impl BlockOutcomes {
    #[inline]
    fn freed(&mut self, age_steps: u32) {
        self.freed += 1;
        if age_steps > 0 {
            self.freed_after_step += 1;
            let age = &mut self.freed_by_age[(age_steps.ilog2() as usize).min(AGES - 1)];
            *age = age.saturating_add(1);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct FreeSite {
    site: SiteId,
    count: u64,
    this_step: u64,
}

/// One site of a book.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteStats {
    pub(crate) counter: LazyCounter<MARKS>,
    pub(crate) series: StepSeries,
    pub(crate) step_seen: u32,
    pub(crate) bins: BinValues,
    pub(crate) outcomes: BlockOutcomes,
    pub(crate) outcomes_at_step_end: BlockOutcomes,
    free_sites: Vec<FreeSite>,
}

impl SiteStats {
    /// At the end of every step.
    pub(crate) fn series(&self) -> &StepSeries {
        &self.series
    }

    /// Blocks and bytes now.
    pub(crate) fn now(&self) -> BlockTotals {
        self.counter.now
    }

    /// Blocks it was ever given.
    pub(crate) fn allocated(&self) -> u64 {
        self.outcomes.allocated
    }

    /// A block of it was freed, where, and how many steps after it was allocated.
    #[inline]
    pub(crate) fn freed(&mut self, at: SiteId, age_steps: u32) {
        self.outcomes.freed(age_steps);
        if let Some(entry) = self.free_sites.iter_mut().find(|entry| entry.site == at) {
            entry.this_step += 1;
        } else if self.free_sites.len() < MAX_FREE_SITES {
            self.free_sites.push(FreeSite { site: at, count: 0, this_step: 1 });
        }
    }

    /// Bytes at the high and the low of each bin.
    pub(crate) fn bin_values(&self) -> &BinValues {
        &self.bins
    }

    /// Where most of its blocks were freed until the end of the last step.
    pub(crate) fn main_free_site(&self) -> Option<SiteId> {
        let best = self.free_sites.iter().max_by_key(|entry| entry.count)?;
        (best.count > 0).then_some(best.site)
    }

    /// Does what was put off since this site last changed.
    #[inline(never)]
    pub(crate) fn catch_up(&mut self, step: u32, marks: &Checkpoints<MARKS>, bins: &TimelineBins) {
        if self.step_seen < step {
            self.series.record(self.step_seen, self.counter.now);
            self.step_seen = step;
            self.outcomes_at_step_end = self.outcomes;
            for entry in &mut self.free_sites {
                entry.count += entry.this_step;
                entry.this_step = 0;
            }
        }
        self.fill_bins(bins.current(), bins);
        self.counter.save(marks);
    }

    /// Finishes the bins before `end`.
    pub(crate) fn fill_bins(&mut self, end: usize, bins: &TimelineBins) {
        if self.bins.len() >= end {
            return;
        }
        let all = bins.all();
        for bin in &all[self.bins.len()..end.min(all.len())] {
            let high = self.counter.at_clock(bin.high_clock, HIGH).bytes;
            let low = self.counter.at_clock(bin.low_clock, LOW).bytes;
            self.bins.push([high, low]);
        }
    }
}

/// One stack of a book. What a site's blocks are made of is asked for its growth: hence a coarse series.
#[derive(Clone, Debug)]
pub(crate) struct StackStats {
    pub(crate) counter: LazyCounter<STACK_MARKS>,
    pub(crate) site: SiteId,
    pub(crate) series: StepSeries,
    pub(crate) step_seen: u32,
}

impl Default for StackStats {
    fn default() -> Self {
        let series = StepSeries::with_max_points(MAX_STACK_POINTS);
        Self { counter: LazyCounter::default(), site: NO_SITE, series, step_seen: 0 }
    }
}

impl StackStats {
    /// Does what was put off since this stack last changed.
    #[inline(never)]
    pub(crate) fn catch_up(&mut self, step: u32, marks: &Checkpoints<STACK_MARKS>) {
        if self.step_seen < step {
            self.series.record(self.step_seen, self.counter.now);
            self.step_seen = step;
        }
        self.counter.save(marks);
    }
}
