//! What a live set keeps for viewers, if the options ask for it: a [`LifetimeTable`] of births and
//! deaths, the extremes of its totals in narrow bins, and what its memory consists of over time
//! ([`Composition`]).
//!
//! All have a fixed size, whatever the number of events. Bins of the table are those of the
//! timeline, or powers of two of them. `replay/tests/history/` compares all with a plain recount.

pub(crate) mod composition;
pub(crate) mod life_class;
pub(crate) mod lifetimes;

use crate::callsite::symbols::StackSite;
use crate::state::live_set::LiveBlock;
use crate::state::live_set::live_block::BlockOutcome;
use crate::state::live_set::peak_blocks::BlockFree;
use crate::timeline::bins::{MemorySample, TimelineBins};
use crate::timeline::extremes::ExtremeSeries;
use crate::util::ids::SiteId;
use composition::{Composition, Grouping};
use life_class::{LifeClass, LifeClasses};
use lifetimes::LifetimeTable;

/// The history of one live set.
#[derive(Clone, Debug)]
pub(crate) struct LiveHistory {
    pub(crate) blocks: LifetimeTable,
    /// Live, reserved and device bytes.
    pub(crate) series: ExtremeSeries<3>,
    pub(crate) classes: LifeClasses,
    /// Groups are sites by id, classes by their number, and pools as the caller numbers them.
    pub(crate) composition: Composition,
}

impl LiveHistory {
    /// An empty history of a run of length `span_ns` (0 if unknown).
    pub(crate) fn for_span(span_ns: u64) -> Self {
        Self {
            blocks: LifetimeTable::default(),
            series: ExtremeSeries::for_span(span_ns),
            classes: LifeClasses::default(),
            composition: Composition::for_span(span_ns),
        }
    }

    /// Handles the removal of a block of `site` by event number `event`, in the current bin.
    #[inline]
    pub(crate) fn on_removed(&mut self, block: &LiveBlock, site: SiteId, free: BlockFree, event: u64) {
        self.blocks.on_removed(block);
        if self.composition.was_at_high(block.serial) {
            let outcome = self.classes.outcome_of(free);
            self.add_to_groups(block, site, (outcome, free.step), event);
        }
    }

    /// Adds a block to its site and its class. `step` is that of the end of its life.
    fn add_to_groups(
        &mut self,
        block: &LiveBlock,
        site: SiteId,
        (outcome, step): (BlockOutcome, u32),
        event: u64,
    ) {
        let class = self.classes.number_of(block, outcome, step);
        let highs = self.composition.highs_of_block(block.serial, event);
        self.composition.add(Grouping::Class, class, highs, block.bytes);
        self.composition.add(Grouping::Site, site.0 as usize, highs, block.bytes);
    }

    /// Adds a block to its pool. `event` removed it; `u64::MAX` if it is live at the end.
    pub(crate) fn add_to_pool(&mut self, pool: usize, block: &LiveBlock, event: u64) {
        let highs = self.composition.highs_of_block(block.serial, event);
        self.composition.add(Grouping::Pool, pool, highs, block.bytes);
    }

    /// Handles event number `event`, which frees a block.
    #[inline]
    pub(crate) fn on_free(&mut self, origin: StackSite, event: u64) {
        self.classes.on_free(origin.stack, origin.context, event);
    }

    /// Begins the bin of an event that is about to change `live` bytes. `event` is the one before.
    #[inline]
    pub(crate) fn advance(&mut self, time_ns: u64, live: u64, event: u64) {
        self.composition.advance(time_ns, live, event);
    }

    /// Records the state after event number `event`.
    #[inline]
    pub(crate) fn observe(&mut self, sample: &MemorySample, event: u64) {
        self.series.observe(sample.time_ns, [sample.live, sample.reserved, sample.device]);
        self.composition.observe(sample.time_ns, sample.live, event);
    }

    /// Follows the bins of the timeline, to which bins were appended. `serial` is that of the last
    /// event before them.
    pub(crate) fn begin_bins(&mut self, bins: &TimelineBins, serial: u64) {
        self.blocks.begin_bins(bins.all().len(), serial);
    }

    /// Follows the bins of the timeline, which were merged in pairs.
    pub(crate) fn halve(&mut self) {
        self.blocks.halve();
    }

    /// Completes the history with the blocks that were not freed, and their sites. `step` is the
    /// last step.
    pub(crate) fn finish<'a, I: Iterator<Item = (&'a LiveBlock, SiteId)>>(
        &mut self,
        live: impl Fn() -> I,
        step: u32,
    ) {
        for (block, site) in live() {
            self.add_to_groups(block, site, (BlockOutcome::Live, step), u64::MAX);
        }
        self.composition.end_bin();
        self.blocks.finish(live().map(|(block, _)| block));
    }

    /// Bytes by class of lifetime at the high of each bin.
    pub(crate) fn class_values(&self) -> impl Iterator<Item = (&LifeClass, Vec<u64>)> {
        self.classes.all().iter().zip(self.composition.values(Grouping::Class))
    }
}
