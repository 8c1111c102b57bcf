//! What a book can be asked, while it is kept and when everything is read.

use super::{BlockOutcomes, LiveSet, SiteStats};
use crate::callsite::symbols::{SiteId, StackId};
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::peak_blocks::PeakBlock;
use crate::state::live_set::site_stats::{PEAK, STACK_PEAK};
use crate::state::live_set::step_peaks::{StepPeak, StepPeaks};
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::BlockTotals;

impl LiveSet {
    /// True when nothing ever happened here.
    pub(crate) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Blocks and bytes now.
    pub(crate) fn total(&self) -> BlockTotals {
        self.total
    }

    /// The highest moment.
    pub(crate) fn peak(&self) -> MemorySample {
        self.peak
    }

    /// From here on the peaks of steps are followed.
    pub(crate) fn follow_step_peaks(&mut self) {
        self.step_peaks = Some(Box::new(StepPeaks::at_step(self.step)));
    }

    /// The peak of the step before that of the peak, and its blocks; `None` if nobody asked, or if there is no such step.
    pub(crate) fn step_before_peak(&self) -> Option<(&StepPeak, Vec<PeakBlock>)> {
        let before = self.step_peaks.as_ref()?.before_peak()?;
        Some((before, before.blocks(&self.live)))
    }

    /// The blocks that were there at the highest moment, in the order in which they came.
    pub(crate) fn peak_blocks(&self) -> Vec<PeakBlock> {
        self.peak_blocks.all(&self.live)
    }

    /// The last event by the highest moment.
    pub(crate) fn peak_event(&self) -> u64 {
        self.peak_blocks.newest()
    }

    /// A site, if it ever held something.
    pub(crate) fn site(&self, site: SiteId) -> Option<&SiteStats> {
        self.sites.get(site.0 as usize).filter(|stats| stats.outcomes.allocated > 0)
    }

    /// Steps ended.
    pub(crate) fn steps_ended(&self) -> u32 {
        self.step
    }

    /// All blocks at the end of each step.
    pub(crate) fn series(&self) -> &StepSeries {
        &self.series
    }

    /// The live blocks.
    pub(crate) fn live(&self) -> &BlockMap {
        &self.live
    }

    /// The bins.
    pub(crate) fn bins(&self) -> &TimelineBins {
        &self.bins
    }

    /// Sites that ever held something.
    pub(crate) fn sites(&self) -> impl Iterator<Item = (SiteId, &SiteStats)> {
        self.sites
            .iter()
            .zip(0..)
            .filter(|(stats, _)| stats.outcomes.allocated > 0)
            .map(|(stats, id)| (SiteId(id), stats))
    }

    /// What a site held at the peak.
    pub(crate) fn at_peak(&self, site: &SiteStats) -> BlockTotals {
        site.counter.at(&self.marks, PEAK)
    }

    /// What became of a site's blocks until the end of the last step.
    pub(crate) fn outcomes(&self, site: &SiteStats) -> BlockOutcomes {
        if site.step_seen < self.step { site.outcomes } else { site.outcomes_at_step_end }
    }

    /// The stack of a site that held most at the peak.
    pub(crate) fn main_stack_at_peak(&self, site: SiteId) -> Option<StackId> {
        let at_peak =
            |stack: StackId| self.stacks[stack.0 as usize].counter.at(&self.stack_marks, STACK_PEAK).bytes;
        largest(self.stacks_of(site).map(|stack| (stack, at_peak(stack))))
    }

    /// The stack of a site that grew most.
    pub(crate) fn main_stack_of_growth(&self, site: SiteId, from: Option<u32>, to: u32) -> Option<StackId> {
        largest(self.stacks_that_grew(site, from, to).map(|(stack, held)| (stack, held.bytes)))
    }

    /// Stacks of a site with what they held more at the end of step `to` than at the end of step `from`, or than nothing. What
    /// a line holds once and for all (a workspace of a library) says nothing about what it leaks.
    pub(crate) fn stacks_that_grew(
        &self,
        site: SiteId,
        from: Option<u32>,
        to: u32,
    ) -> impl Iterator<Item = (StackId, BlockTotals)> {
        self.stacks_of(site).filter_map(move |stack| {
            let series = &self.stacks[stack.0 as usize].series;
            let (before, after) =
                (from.map_or(BlockTotals::default(), |step| series.at(step)), series.at(to));
            let bytes = after.bytes.checked_sub(before.bytes).filter(|bytes| *bytes > 0)?;
            Some((stack, BlockTotals { bytes, blocks: after.blocks.saturating_sub(before.blocks) }))
        })
    }

    /// The site of a stack that allocated here.
    pub(crate) fn site_of(&self, stack: StackId) -> SiteId {
        self.stacks[stack.0 as usize].site
    }

    /// What was live at the end of the last step: the stack and the step that it was allocated in.
    pub(crate) fn survivors(&self) -> impl Iterator<Item = (StackId, u32)> {
        let live = self.live.iter().map(|(_, block)| (block.stack, block.step));
        live.chain(self.freed_since_step.iter().copied()).filter(|(_, step)| *step < self.step)
    }

    /// What a stack held at step ends, coarsely.
    pub(crate) fn series_of(&self, stack: StackId) -> &StepSeries {
        &self.stacks[stack.0 as usize].series
    }

    /// Stacks of a site; all of them have allocated.
    pub(crate) fn stacks_of(&self, site: SiteId) -> impl Iterator<Item = StackId> {
        self.stacks_by_site.get(site.0 as usize).into_iter().flatten().copied()
    }
}

/// The stack with most bytes; of equals the first.
fn largest(stacks: impl Iterator<Item = (StackId, u64)>) -> Option<StackId> {
    stacks
        .filter(|(_, bytes)| *bytes > 0)
        .max_by_key(|(id, bytes)| (*bytes, std::cmp::Reverse(*id)))
        .map(|(id, _)| id)
}
