//! Queries of a live set: totals, series, the peak, and statistics per site and stack.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{BlockOutcomes, FreedByAge, LiveBlock, LiveSet, SiteStats};
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::history::LiveHistory;
use crate::state::live_set::peak_blocks::PeakBlock;
use crate::state::live_set::rebase::RebasedState;
use crate::state::live_set::site_stats::{PEAK, STACK_PEAK, StackStats};
use crate::state::live_set::step_peaks::{StepPeak, StepPeaks};
use crate::timeline::bin_axis::BinAxis;
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::timeline::step_series::StepSeries;
use crate::util::block_totals::{BlockTotals, saturating_sum};
use crate::util::ids::{SiteId, StackId};

impl LiveSet {
    /// The step with the highest bytes of those before the current one, and its bytes.
    pub(crate) fn peak_of_earlier_steps(&self) -> Option<(u32, u64)> {
        let peak = if self.peak.step == self.step { self.earlier_peak } else { self.peak };
        (peak.live > 0).then_some((peak.step, peak.live))
    }

    /// True if the set had no allocations and frees.
    pub(crate) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Present total of the live blocks.
    pub(crate) fn total(&self) -> BlockTotals {
        self.total
    }

    /// The first moment of the highest live bytes.
    pub(crate) fn peak(&self) -> MemorySample {
        self.peak
    }

    /// Enables [`Self::step_before_peak`], at a cost of three comparisons per event.
    pub(crate) fn follow_step_peaks(&mut self) {
        self.step_peaks = Some(Box::new(StepPeaks::at_step(self.step)));
    }

    /// Enables [`Self::history`] of a run with this axis.
    pub(crate) fn keep_history(&mut self, axis: BinAxis) {
        self.history = Some(Box::new(LiveHistory::on_axis(&axis)));
    }

    /// The history; `None` if [`Self::keep_history`] was not called.
    pub(crate) fn history(&self) -> Option<&LiveHistory> {
        self.history.as_deref()
    }

    /// The history, for what the live set does not know itself.
    pub(crate) fn history_mut(&mut self) -> Option<&mut LiveHistory> {
        self.history.as_deref_mut()
    }

    /// The peak of the step before the step of the peak, with its blocks. `None` if
    /// [`Self::follow_step_peaks`] was not called, or if there is no such step.
    pub(crate) fn step_before_peak(&self) -> Option<(&StepPeak, Vec<PeakBlock>)> {
        let before = self.step_peaks.as_ref()?.before_peak()?;
        Some((before, before.collect_blocks(&self.live)))
    }

    /// The blocks live at the peak, in the order of their allocation.
    pub(crate) fn peak_blocks(&self) -> Vec<PeakBlock> {
        self.peak_blocks.collect(&self.live)
    }

    /// The last event before the peak.
    pub(crate) fn peak_event(&self) -> u64 {
        self.peak_blocks.newest()
    }

    /// Total of the blocks that were live when the program ended.
    pub(crate) fn end_total(&self) -> BlockTotals {
        self.end_total
    }

    /// The blocks live when the program ended with their addresses, in arbitrary order.
    pub(crate) fn end_blocks(&self) -> impl Iterator<Item = (u64, LiveBlock)> + '_ {
        self.end_blocks.blocks(&self.live)
    }

    /// The sites with blocks live when the program ended, most bytes first. They sum to
    /// [`Self::end_total`].
    pub(crate) fn end_sites(&self) -> Vec<(SiteId, BlockTotals)> {
        let mut totals: BTreeMap<SiteId, BlockTotals> = BTreeMap::new();
        for (_, block) in self.end_blocks() {
            totals.entry(self.site_of(block.stack)).or_default().add(block.bytes);
        }
        let mut sites: Vec<_> = totals.into_iter().collect();
        sites.sort_by_key(|(id, live)| (Reverse(live.bytes), *id));
        sites
    }

    /// The sites with blocks live at the peak, most bytes first. They sum to its live bytes.
    pub(crate) fn peak_sites(&self) -> Vec<(SiteId, BlockTotals)> {
        let sites = self.sites().map(|(id, site)| (id, self.at_peak(site)));
        let mut sites: Vec<_> = sites.filter(|(_, live)| live.bytes > 0).collect();
        sites.sort_by_key(|(id, live)| (Reverse(live.bytes), *id));
        sites
    }

    /// The statistics of a site that has allocated.
    pub(crate) fn site(&self, site: SiteId) -> Option<&SiteStats> {
        self.sites.get(site.0 as usize).filter(|stats| stats.outcomes.allocated > 0)
    }

    /// Number of steps that have ended.
    pub(crate) fn steps_ended(&self) -> u32 {
        self.step
    }

    /// Total of the live blocks at step ends.
    pub(crate) fn series(&self) -> &StepSeries {
        &self.series
    }

    /// The live blocks by address.
    pub(crate) fn live(&self) -> &BlockMap {
        &self.live
    }

    /// Prepares [`Self::sorted_live`]. Visits each block, and sorts those that are newer than the
    /// last call.
    pub(crate) fn sort_live(&mut self) {
        self.order.update(&self.live, self.events);
    }

    /// The live blocks by ascending address. Call [`Self::sort_live`] after the last event.
    pub(crate) fn sorted_live(&self) -> &[(u64, LiveBlock)] {
        self.order.blocks(self.events)
    }

    /// The timeline of the live bytes.
    pub(crate) fn bins(&self) -> &TimelineBins {
        &self.bins
    }

    /// Time of the last event, on the clock of the trace; 0 without events.
    pub(crate) fn last_event_ns(&self) -> u64 {
        self.last.time_ns
    }

    /// The sites that have allocated, by id.
    pub(crate) fn sites(&self) -> impl Iterator<Item = (SiteId, &SiteStats)> {
        self.sites
            .iter()
            .zip(0..)
            .filter(|(stats, _)| stats.outcomes.allocated > 0)
            .map(|(stats, id)| (SiteId(id), stats))
    }

    /// The blocks of a site that were live at the peak.
    pub(crate) fn at_peak(&self, site: &SiteStats) -> BlockTotals {
        site.counter.value_at(&self.checkpoints, PEAK)
    }

    /// Allocations and frees of a site's blocks up to the last step end.
    pub(crate) fn outcomes(&self, site: &SiteStats) -> BlockOutcomes {
        if site.recorded_step < self.step { site.outcomes } else { site.outcomes_at_step_end }
    }

    /// The stack of a site with the most bytes at the peak.
    pub(crate) fn main_stack_at_peak(&self, site: SiteId) -> Option<StackId> {
        let bytes_at_peak = |stack: StackId| {
            self.stacks[stack.0 as usize].counter.value_at(&self.stack_checkpoints, STACK_PEAK).bytes
        };
        stack_with_most_bytes(self.stacks_of(site).map(|stack| (stack, bytes_at_peak(stack))))
    }

    /// The site of a stack that has allocated in this set.
    pub(crate) fn site_of(&self, stack: StackId) -> SiteId {
        self.stacks[stack.0 as usize].site
    }

    /// The blocks live at the last step end that were allocated in a step that has ended, in
    /// arbitrary order, and whether each was *released*: freed while the program went on. Frees
    /// after the last allocation are those of a program that ends, if it `ends_in_teardown`.
    pub(crate) fn survivors(&self, ends_in_teardown: bool) -> impl Iterator<Item = (&LiveBlock, bool)> {
        let released =
            if ends_in_teardown { self.freed_before_allocation } else { self.freed_since_step.len() };
        let live = self.live.iter().map(|(_, block)| (block, false));
        let freed = self.freed_since_step.iter().zip(0..).map(move |(block, at)| (block, at < released));
        live.chain(freed).filter(|(block, _)| block.step < self.step)
    }

    /// The blocks of a stack that outlived their step and were freed before the last step end.
    pub(crate) fn freed_by_age(&self) -> Vec<FreedByAge> {
        let mut freed: Vec<FreedByAge> = self.stacks.iter().map(|stack| stack.freed_by_age).collect();
        for block in &self.freed_since_step {
            freed[block.stack.0 as usize].uncount(self.step.saturating_sub(block.step));
        }
        freed
    }

    /// Number of blocks allocated over the whole run.
    pub(crate) fn allocated(&self) -> u64 {
        saturating_sum(self.sites.iter().map(SiteStats::allocated))
    }

    /// The statistics of a stack that has allocated.
    pub(crate) fn stack(&self, stack: StackId) -> &StackStats {
        &self.stacks[stack.0 as usize]
    }

    /// The state when the set was restarted; `None` for a whole run.
    pub(crate) fn rebased(&self) -> Option<&RebasedState> {
        self.rebased.as_deref()
    }

    /// The stacks of a site that have allocated. Empty before [`LiveSet::finish`].
    pub(crate) fn stacks_of(&self, site: SiteId) -> impl Iterator<Item = StackId> {
        self.stacks_by_site.get(site.0 as usize).into_iter().flatten().copied()
    }
}

/// The stack with the most bytes; the first one of equals.
fn stack_with_most_bytes(stacks: impl Iterator<Item = (StackId, u64)>) -> Option<StackId> {
    stacks.filter(|(_, bytes)| *bytes > 0).max_by_key(|(id, bytes)| (*bytes, Reverse(*id))).map(|(id, _)| id)
}
