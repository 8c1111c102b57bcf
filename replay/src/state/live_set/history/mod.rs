//! What a live set keeps for viewers, if the options ask for it: a [`LifetimeTable`] of births and
//! deaths, the extremes of its totals in narrow bins, and the composition of the highest moment of
//! each bin of the timeline.
//!
//! All have a fixed size, whatever the number of events. Bins of the table are those of the
//! timeline, or powers of two of them. `replay/tests/history/` compares all with a plain recount.

pub(crate) mod group_series;
pub(crate) mod life_class;
pub(crate) mod lifetimes;

use crate::callsite::symbols::StackSite;
use crate::state::live_set::LiveBlock;
use crate::state::live_set::block_map::BlockMap;
use crate::state::live_set::live_block::BlockOutcome;
use crate::state::live_set::peak_blocks::BlockFree;
use crate::timeline::bins::{MemorySample, MergedExtremes, TimelineBins};
use crate::timeline::extremes::ExtremeSeries;
use group_series::{BinHighs, GroupSeries};
use life_class::{LifeClass, LifeClasses};
use lifetimes::LifetimeTable;

/// The history of one live set.
#[derive(Clone, Debug)]
pub(crate) struct LiveHistory {
    pub(crate) blocks: LifetimeTable,
    /// Live, reserved and device bytes.
    pub(crate) series: ExtremeSeries<3>,
    pub(crate) classes: LifeClasses,
    /// Bytes by class, at the highest live bytes of each bin.
    by_class: GroupSeries,
    /// Bytes by pool, as the caller numbers the pools.
    by_pool: GroupSeries,
    highs: BinHighs,
}

impl LiveHistory {
    /// An empty history of a run of length `span_ns` (0 if unknown).
    pub(crate) fn for_span(span_ns: u64) -> Self {
        Self {
            blocks: LifetimeTable::default(),
            series: ExtremeSeries::for_span(span_ns),
            classes: LifeClasses::default(),
            by_class: GroupSeries::default(),
            by_pool: GroupSeries::default(),
            highs: BinHighs::default(),
        }
    }

    /// Handles the removal of a block by event number `event`, in the current bin.
    #[inline]
    pub(crate) fn on_removed(&mut self, block: &LiveBlock, free: BlockFree, event: u64) {
        self.blocks.on_removed(block);
        if self.was_at_high(block) {
            let outcome = self.classes.outcome_of(free);
            self.add_to_class(block, outcome, free.step, event);
        }
    }

    /// True if a block was live at the high of a bin, as few are.
    #[inline]
    pub(crate) fn was_at_high(&self, block: &LiveBlock) -> bool {
        block.serial <= self.highs.latest()
    }

    fn add_to_class(&mut self, block: &LiveBlock, outcome: BlockOutcome, step: u32, event: u64) {
        let class = self.classes.number_of(block, outcome, step);
        self.by_class.add(class, self.highs.of_block(block.serial, event), block.bytes);
    }

    /// Adds a block to its pool. `event` removed it; `u64::MAX` if it is live at the end.
    pub(crate) fn add_to_pool(&mut self, pool: usize, block: &LiveBlock, event: u64) {
        self.by_pool.add(pool, self.highs.of_block(block.serial, event), block.bytes);
    }

    /// Handles event number `event`, which frees a block.
    #[inline]
    pub(crate) fn on_free(&mut self, origin: StackSite, event: u64) {
        self.classes.on_free(origin.stack, origin.context, event);
    }

    /// Records the state after an event.
    #[inline]
    pub(crate) fn observe(&mut self, sample: &MemorySample) {
        self.series.observe(sample.time_ns, [sample.live, sample.reserved, sample.device]);
    }

    /// Moves the high of the current bin to an event.
    pub(crate) fn set_high(&mut self, event: u64) {
        self.highs.set(event);
    }

    /// Follows the bins of the timeline, to which bins were appended. `serial` is that of the last
    /// event before them.
    pub(crate) fn begin_bins(&mut self, bins: &TimelineBins, serial: u64) {
        self.end_bin();
        self.highs.append(bins.all().len(), serial);
        self.blocks.begin_bins(bins.all().len(), serial);
    }

    /// Follows the bins of the timeline, which were merged in pairs.
    pub(crate) fn halve(&mut self, extremes: &[MergedExtremes]) {
        self.end_bin();
        self.highs.halve(extremes);
        self.by_class.halve(extremes);
        self.by_pool.halve(extremes);
        self.blocks.halve();
    }

    fn end_bin(&mut self) {
        self.by_class.end_bin(&self.highs);
        self.by_pool.end_bin(&self.highs);
    }

    /// Completes the history with the blocks that were not freed. `step` is the last step.
    pub(crate) fn finish(&mut self, live: &BlockMap, step: u32) {
        for (_, block) in live.iter() {
            self.add_to_class(block, BlockOutcome::Live, step, u64::MAX);
        }
        self.by_class.end_bin(&self.highs);
        self.blocks.finish(live.iter().map(|(_, block)| block));
    }

    /// Completes the pools, to which all blocks that were not freed are added.
    pub(crate) fn end_pools(&mut self) {
        self.by_pool.end_bin(&self.highs);
    }

    /// Bytes by class at the highest live bytes of each of `bins` bins.
    pub(crate) fn class_values(&self, bins: usize) -> impl Iterator<Item = (&LifeClass, Vec<u64>)> {
        self.classes.all().iter().zip(self.by_class.values(bins))
    }

    /// Bytes by pool at the highest live bytes of each of `bins` bins. Complete after
    /// [`Self::end_pools`].
    pub(crate) fn pool_values(&self, bins: usize) -> impl Iterator<Item = Vec<u64>> {
        self.by_pool.values(bins)
    }
}
